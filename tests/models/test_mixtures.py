"""Mixtures of parts from different families: every pair occurs in a model that trains, or is refused with a reason."""

from __future__ import annotations

import functools
import itertools
import random
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.config.model import EncoderConfig
from bertjax.errors import UserError
from bertjax.models.model import abstract_params, bind, init_params
from bertjax.types import Params

jit = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})  # compilation dominates

# Every axis: its name, and the values of `EncoderConfig` that each choice sets.
AXES: dict[str, dict[str, dict[str, Any]]] = {
    "absolute": {
        "learned": {"position_embedding": "learned", "position_offset": 2},
        "sinusoidal": {"position_embedding": "sinusoidal", "embedding_scale": True},
        "fairseq": {"position_embedding": "fairseq", "position_offset": 2},
        "none": {"position_embedding": "none"},
    },
    "relative": {
        "none": {},
        "rotary": {"attention_position": "rotary", "global_rope_theta": 500.0},
        "rescaled": {"attention_position": "rotary", "rope_type": "dynamic", "rope_original_length": 3},
        "disentangled": {"attention_position": "disentangled", "position_buckets": 6, "norm_relative_embeddings": True},
        "disentangled-linear": {"attention_position": "disentangled", "share_att_key": True},
        "relative": {"attention_position": "relative", "relative_segments": True},
        "linear": {"attention_position": "relative_bias", "relative_bias": "linear"},
        "biased": {"attention_position": "relative_bias", "relative_attention_num_buckets": 8},
        "biased-by-layer": {"attention_position": "relative_bias", "relative_attention_shared": False},
    },
    "norm": {
        "post": {},
        "pre": {"norm_placement": "pre"},
        "pre-bare": {"norm_placement": "pre", "norm_bias": False},
        "post-rms": {"norm_type": "rms_norm"},
        "affine": {"norm_type": "affine"},
        "sandwich-rms": {"norm_placement": "sandwich", "norm_type": "rms_norm", "norm_zero_centered": True},
        "parallel": {"norm_placement": "parallel"},
        "normformer": {"norm_placement": "normformer"},
        "sub": {"norm_placement": "sub", "attention_gate": "silu"},
    },
    "heads": {
        "plain": {},
        "grouped": {"num_heads": 4, "num_key_value_heads": 2, "head_size": 6},
        "one": {"num_key_value_heads": 1, "qk_norm": True},
    },
    "table": {"tied": {}, "untied": {"tie_word_embeddings": False}, "wider": {"output_embedding_size": 20}},
    "first_norm": {"all": {}, "skipped": {"first_attention_norm": False}},
    "feed_forward": {
        "dense": {},
        "glu": {"feed_forward": "glu", "hidden_act": "gelu", "feed_forward_bias": False},
        "relu": {"hidden_act": "relu", "activation_dropout": 0.1, "feed_forward_inner_bias": False},
    },
    "sharing": {"none": {}, "all": {"num_groups": 1}, "groups": {"num_groups": 2, "inner_layers": 2}},
    "factor": {
        "none": {},
        "before": {"embedding_size": 8},
        "after": {"embedding_size": 8, "embedding_norm": "after", "zero_pad_embeddings": True},
        "words": {"embedding_size": 8, "embedding_norm": "words"},
        "no-norm": {"embedding_norm": "none", "embedding_size": 8},
        "trigram": {"embedding_norm": "after", "embedding_size": 8, "embedding_ngram": 3},
    },
    "types": {"two": {"type_vocab_size": 2}, "none": {"type_vocab_size": 0}},
    "sight": {
        "all": {},
        "local": {"local_attention": 4, "global_attn_every_n_layers": 3},
        "window": {"local_attention": 2, "global_attn_every_n_layers": 0},
        "often": {"local_attention": 2, "global_attn_every_n_layers": 2, "first_global_layer": 1},
        "causal": {"causal": True},
        "causal-local": {"causal": True, "local_attention": 4, "global_attn_every_n_layers": 3},
    },
    "bias": {"all": {}} | {bias: {"attention_bias": bias} for bias in ("none", "query_value", "query_key_value")},
    "extra": {
        "none": {},
        "convolution": {"conv_kernel_size": 3},
        "decoder": {"enhanced_decoder": True},
        "adapter": {"adapter_size": 6},
        "groups": {"attention_groups": 2, "feed_forward_groups": 4},
        "span": {"dynamic_conv_kernel_size": 5},
        "average": {"depth_weighted_average": True},
        "bottleneck": {"bottleneck_size": 8, "num_feedforward_networks": 2},
        "narrow": {"bottleneck_size": 8, "use_bottleneck_attention": True},
    },
}
PRE = ("pre", "pre-bare", "sandwich-rms", "parallel", "normformer", "sub")
DISTANCES = ("disentangled", "disentangled-linear", "relative")
# Pairs that no model has, and the words of the message.
REFUSED = {
    (("first_norm", "skipped"), ("norm", "post")): "first_attention_norm=false needs",
    (("first_norm", "skipped"), ("sharing", "all")): "first_attention_norm=false needs",
    (("first_norm", "skipped"), ("sharing", "groups")): "first_attention_norm=false needs",
    (("extra", "convolution"), ("sharing", "all")): "layer 0 must have parameters of its own",
    (("extra", "convolution"), ("sharing", "groups")): "layer 0 must have parameters of its own",
    (("extra", "decoder"), ("sharing", "all")): "enhanced_decoder runs the last layer again",
    (("extra", "decoder"), ("sharing", "groups")): "enhanced_decoder runs the last layer again",
    **{(("extra", "decoder"), ("norm", norm)): "enhanced_decoder needs norm_placement=post" for norm in PRE},
    **{
        (("extra", "average"), pair): "depth_weighted_average needs norms before"
        for pair in (
            ("norm", "post"),
            ("norm", "post-rms"),
            ("norm", "affine"),
            ("norm", "parallel"),
            ("sharing", "all"),
        )
    },
    (("extra", "average"), ("sharing", "groups")): "depth_weighted_average needs norms before",
    (("extra", "average"), ("relative", "relative")): "averages know one stream of blocks",
    (("first_norm", "skipped"), ("norm", "post-rms")): "first_attention_norm=false needs",
    (("first_norm", "skipped"), ("norm", "affine")): "first_attention_norm=false needs",
    **{
        (("extra", extra), pair): words
        for extra in ("bottleneck", "narrow")
        for pair, words in {
            **{("norm", norm): "needs norm_placement=post" for norm in PRE},
            **{("relative", each): "the embeddings of distances" for each in DISTANCES},
            ("first_norm", "skipped"): "first_attention_norm=false needs|needs norm_placement=post",
        }.items()
    },
    (("factor", "trigram"), ("sight", "causal")): "sees the next token",
    (("factor", "trigram"), ("sight", "causal-local")): "sees the next token",
    (("factor", "trigram"), ("relative", "relative")): "sees the next token",
    (("extra", "decoder"), ("sight", "causal-local")): "causal models have none",
    (("extra", "convolution"), ("sight", "causal-local")): "sees the next token",
    (("bias", "query_key_value"), ("relative", "relative")): "relative scores have biases of their own",
    (("extra", "decoder"), ("first_norm", "skipped")): "first_attention_norm=false needs|enhanced_decoder needs",
    (("absolute", "learned"), ("extra", "decoder")): "position_embedding must be none",
    (("absolute", "sinusoidal"), ("extra", "decoder")): "position_embedding must be none",
    (("absolute", "fairseq"), ("extra", "decoder")): "position_embedding must be none",
    (("relative", "rescaled"), ("sight", "causal")): "which a causal model does not know",
    (("relative", "rescaled"), ("sight", "causal-local")): "which a causal model does not know",
    (("extra", "decoder"), ("sight", "causal")): "causal models have none",
    (("extra", "convolution"), ("sight", "causal")): "sees the next token",
    (("extra", "span"), ("sight", "causal")): "sees the next token",
    (("extra", "span"), ("sight", "causal-local")): "sees the next token",
    (("extra", "span"), ("relative", "relative")): "knows the tokens of one sequence of states only",
    (("extra", "decoder"), ("relative", "relative")): "two streams tell masked words their positions already",
    (("bias", "query_value"), ("relative", "relative")): "relative scores have biases of their own",
    (("bias", "all"), ("relative", "relative")): "relative scores have biases of their own",
}
Pair = tuple[tuple[str, str], tuple[str, str]]
S = 12


def config_of(choice: dict[str, str]) -> EncoderConfig:
    values: dict[str, Any] = {}
    for axis, name in choice.items():
        values |= AXES[axis][name]
    sizes: dict[str, Any] = {
        "vocab_size": 40,
        "hidden_size": 16,
        "num_layers": 5,
        "num_heads": 2,
        "intermediate_size": 20,
    }
    sizes |= {"max_position_embeddings": S, "hidden_dropout": 0.1, "attention_dropout": 0.1}
    return EncoderConfig(padded_vocab_size=48, initializer_range=0.2, **(sizes | values))


def is_refused(choice: dict[str, str]) -> bool:
    try:
        config_of(choice)
    except UserError:
        return True
    return False


def pairs_of(choice: dict[str, str]) -> set[Pair]:
    return set(itertools.combinations(sorted(choice.items()), 2))


def draws(draw: random.Random, pair: Pair, count: int) -> list[dict[str, str]]:
    """Returns random mixtures that have this pair."""
    return [{axis: draw.choice([*names]) for axis, names in AXES.items()} | dict(pair) for _ in range(count)]


def _best(draw: random.Random, pair: Pair, open_pairs: set[Pair], impossible: set[Pair]) -> dict[str, str] | None:
    """Returns an allowed mixture with this pair and many of the open ones; None if hundreds have none."""
    for count in (50, 800):
        drawn = [choice for choice in draws(draw, pair, count) if not pairs_of(choice) & impossible]
        drawn.sort(key=lambda choice: len(pairs_of(choice) & open_pairs), reverse=True)
        best = next((choice for choice in drawn if not is_refused(choice)), None)
        if best is not None:
            return best
    return None


@functools.cache
def covering() -> tuple[list[dict[str, str]], set[Pair]]:
    """Returns few mixtures that together have every allowed pair, found greedily; and the refused pairs."""
    draw = random.Random(0)
    values = {axis: list(choices) for axis, choices in AXES.items()}
    open_pairs = {
        pair for one, other in itertools.combinations(sorted(values), 2)
        for pair in (((one, a), (other, b)) for a in values[one] for b in values[other])
    }  # fmt: skip
    result, impossible = [], set()
    while open_pairs:
        pair = min(open_pairs)
        best = None if pair in REFUSED else _best(draw, pair, open_pairs, impossible)  # a test tries those, in seconds
        if best is None:
            impossible.add(pair)
            open_pairs.remove(pair)
            continue
        result.append(best)
        open_pairs -= pairs_of(best)
    return result, impossible


@functools.cache
def sample() -> list[dict[str, str]]:
    """Returns few of these mixtures that have every choice."""
    result, open_choices = [], {(axis, name) for axis, choices in AXES.items() for name in choices}
    while open_choices:
        best = max(covering()[0], key=lambda choice: len(open_choices & set(choice.items())))
        result.append(best)
        open_choices -= set(best.items())
    return result


def name_of(choice: dict[str, str]) -> str:
    return "-".join(choice.values())


def batches() -> tuple[dict[str, jax.Array], dict[str, jax.Array]]:
    """Returns two examples packed in a row with padding after them, and each in a separate row."""
    rng = np.random.default_rng(0)
    packed = {
        "input_ids": rng.integers(5, 40, (1, S)),
        "segment_ids": np.asarray([[1] * 4 + [2] * 6 + [0] * 2]),
        "position_ids": np.asarray([[0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 0, 0]]),
        "token_type_ids": np.asarray([[0, 0, 1, 1, 0, 0, 0, 1, 1, 1, 0, 0]]),
    }
    alone = {name: np.zeros((2, S), np.int64) for name in packed}
    for row, part in enumerate((slice(0, 4), slice(4, 10))):
        for name, values in packed.items():
            alone[name][row, : part.stop - part.start] = 1 if name == "segment_ids" else values[0, part]
    return tuple({name: jnp.asarray(v, jnp.int32) for name, v in batch.items()} for batch in (packed, alone))


MODELS = [
    pytest.param(
        choice,
        id=name_of(choice),
        marks=pytest.mark.long if choice in sample() else pytest.mark.weekly,
    )
    for choice in covering()[0]
]


def params_of(config: EncoderConfig, choice: dict[str, str]) -> Params:
    """Returns initial parameters, or such of a normal distribution where each part's occur in another mixture."""
    if choice in sample():
        return jit(lambda key: init_params(config, ("mlm",), key))(jax.random.key(0))
    rng = np.random.default_rng(0)

    def fill(path: Any, leaf: jax.ShapeDtypeStruct) -> jax.Array:
        return jnp.asarray(rng.normal(float(path[-1].key == "scale"), 0.2, leaf.shape), leaf.dtype)

    return jax.tree_util.tree_map_with_path(fill, abstract_params(config, ("mlm",)))


@pytest.mark.parametrize("choice", MODELS)
def test_every_pair_of_parts_trains_and_packs(choice: dict[str, str]) -> None:
    """One small step along the gradient lowers the loss; an example gives the same packed in a row and alone.

    Every choice, in one mixture or more, initializes its parameters and drops out.
    """
    config = config_of(choice)
    packed, alone = batches()
    batch = {name: jnp.concatenate([packed[name], alone[name]]) for name in packed}  # one program for both
    real = (packed["segment_ids"] > 0)[..., None]

    def loss(params: Params, key: jax.Array | None) -> tuple[jax.Array, jax.Array]:
        model = bind(config, ("mlm",), params)
        hidden = model.encode(**batch, key=key).last_hidden_state
        logits = jax.nn.log_softmax(model.mlm_logits(hidden[:1]))
        picked = jnp.take_along_axis(logits, packed["input_ids"][..., None], axis=-1)
        return -jnp.where(real, picked, 0.0).sum() / real.sum(), hidden

    params = params_of(config, choice)
    step = jit(lambda params: jax.value_and_grad(loss, has_aux=True)(params, None))
    (before, hidden), gradient = step(params)
    norm = np.sqrt(sum((np.asarray(leaf) ** 2).sum() for leaf in jax.tree.leaves(gradient)))
    moved = jax.tree.map(lambda leaf, grad: leaf - 1e-3 * np.asarray(grad) / norm, params, gradient)
    (after, _), _ = step(moved)
    assert np.isfinite(before)
    assert after < before
    if choice in sample():
        dropped, _ = jit(loss)(params, jax.random.key(0))
        assert np.isfinite(dropped) and dropped != before
    np.testing.assert_allclose(hidden[0, :4], hidden[1, :4], atol=2e-5)
    np.testing.assert_allclose(hidden[0, 4:10], hidden[2, :6], atol=2e-5)


def test_what_makes_no_sense_is_known_and_refused_with_the_reason() -> None:
    assert covering()[1] == set(REFUSED)
    draw = random.Random(1)
    assert all(is_refused(choice) for pair in REFUSED for choice in draws(draw, pair, 200))


@pytest.mark.parametrize(("pair", "words"), REFUSED.items(), ids=lambda value: str(value)[:60])
def test_a_refusal_says_why(pair: Pair, words: str) -> None:
    neutral = {axis: next(iter(choices)) for axis, choices in AXES.items()} | {"absolute": "none", "norm": "post"}
    if dict(pair).get("extra") == "average" and "norm" not in dict(pair):
        neutral["norm"] = "pre"
    if dict(pair).get("first_norm") == "skipped" and not dict(pair).get("norm", "").startswith("post"):
        neutral["norm"] = "pre"
    if dict(pair).get("relative") == "relative":
        neutral["bias"] = "none"
    with pytest.raises(UserError, match=words):
        config_of(neutral | dict(pair))
