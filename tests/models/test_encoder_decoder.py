"""Encoder and decoder of any two kinds: who sees what, what they share, and how many parameters they have."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from bertjax.config.encoder_decoder import PRESETS, EncoderDecoderConfig, encoder_decoder_preset
from bertjax.config.model import EncoderConfig
from bertjax.errors import UserError
from bertjax.io.tree_paths import flatten_tree
from bertjax.models.attention import dot_product_attention
from bertjax.models.attention_context import AttentionContext
from bertjax.models.encoder_decoder import abstract_params, bind, complete_params, count_params, init_params

jit = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})  # compiling is the cost
S, T, VOCAB = 9, 7, 40
Values = dict[str, Any]

PARTS: dict[str, list[Values]] = {
    "absolute": [{}, {"position_embedding": "sinusoidal", "embedding_scale": True}, {"position_embedding": "none"}],
    "relative": [
        {},
        {"attention_position": "rotary"},
        {"attention_position": "disentangled", "position_buckets": 6},
        {"attention_position": "relative", "attention_bias": "none"},
        {"attention_position": "relative_bias", "relative_attention_num_buckets": 8},
        {"attention_scale": False, "attention_bias": "none"},
    ],
    "norm": [
        {},
        {"norm_placement": "pre", "norm_type": "rms_norm"},
        {"norm_placement": "sandwich"},
        {"norm_placement": "normformer"},
        {"norm_placement": "parallel", "norm_bias": False},
    ],
    "heads": [{}, {"num_heads": 4, "num_key_value_heads": 2, "head_size": 6}, {"qk_norm": True}],
    "feed_forward": [{}, {"feed_forward": "glu", "feed_forward_bias": False}],
    "layers": [{}, {"num_groups": 1}, {"num_groups": 2, "inner_layers": 2}, {"remat": "full"}],
    "window": [{}, {"local_attention": 4, "global_attn_every_n_layers": 2}],
    "head": [{}, {"mlm_head": "bias"}, {"mlm_head": "tied", "tie_word_embeddings": False, "scale_logits": True}],
}
KINDS = st.fixed_dictionaries({axis: st.sampled_from(values) for axis, values in PARTS.items()})
FIRST = {axis: values[0] for axis, values in PARTS.items()}
LAST = {axis: values[-1] for axis, values in PARTS.items()} | {"relative": PARTS["relative"][4]}


def network(kind: dict[str, Values], width: int = 16) -> EncoderConfig:
    sizes: Values = {
        "hidden_size": width,
        "num_layers": 3,
        "num_heads": 2,
        "intermediate_size": 20,
        "vocab_size": VOCAB,
    }
    sizes |= {"max_position_embeddings": 12, "padded_vocab_size": 48, "initializer_range": 0.2}
    return EncoderConfig(**{name: value for part in (sizes, *kind.values()) for name, value in part.items()})


def packed(lengths: list[list[int]], size: int, draw: np.random.Generator) -> dict[str, np.ndarray]:
    """Returns ids, segments and positions of sequences that hold examples of these lengths."""
    batch = {name: np.zeros((len(lengths), size), np.int32) for name in ("segment_ids", "position_ids")}
    for row, examples in enumerate(lengths):
        ends = np.cumsum(examples)
        for index, (end, length) in enumerate(zip(ends, examples, strict=True)):
            batch["segment_ids"][row, end - length : end] = index + 1
            batch["position_ids"][row, end - length : end] = np.arange(length)
    ids = draw.integers(5, VOCAB, batch["segment_ids"].shape)
    types = np.zeros_like(ids)
    return {"input_ids": ids, **batch, "token_type_ids": types}


def check_sight(config: EncoderDecoderConfig) -> None:
    """Runs one batch with all comparisons: two examples packed and alone, another end, other padding, other lengths."""
    draw = np.random.default_rng(0)
    source = packed([[4, 3], [4], [3], [4], [4]], S, draw)
    target = packed([[2, 5], [2], [5], [2], [2]], T, draw)
    for side, cuts in ((source, (4, 7)), (target, (2, 7))):
        ids = side["input_ids"]
        ids[1, : cuts[0]] = ids[3, : cuts[0]] = ids[4, : cuts[0]] = ids[0, : cuts[0]]
        ids[2, : cuts[1] - cuts[0]] = ids[0, cuts[0] : cuts[1]]
    target["input_ids"][3, 1] = (target["input_ids"][0, 1] + 1) % VOCAB  # another last token
    params = jit(functools.partial(init_params, config))(jax.random.key(0))

    @jit
    def run(params: Any, source: Any, target: Any) -> tuple[jax.Array, Any, jax.Array]:
        def logits(params: Any, key: jax.Array | None) -> jax.Array:
            model = bind(config, params)
            states = model.encode(**source, key=key).last_hidden_state
            out = model.decode(states, source["segment_ids"], **target, key=key)
            return model.decoder.mlm_logits(out.last_hidden_state)

        plain = logits(params, None)
        grads = jax.grad(lambda params: jax.nn.log_softmax(logits(params, None)[:1])[..., 7].mean())(params)
        return plain, grads, logits(params, jax.random.key(1))

    plain, grads, dropped = map(jax.device_get, run(params, source, target))
    assert np.isfinite(dropped).all() and np.abs(dropped - plain)[..., :VOCAB].max() > 1e-3
    close = functools.partial(np.testing.assert_allclose, atol=3e-5)
    close(plain[0, :2], plain[1, :2])  # packed = alone
    close(plain[0, 2:7], plain[2, :5])
    close(plain[3, 0], plain[1, 0])  # a later token changes nothing before it
    assert np.abs(plain[3, 1] - plain[1, 1])[:VOCAB].max() > 1e-4
    close(plain[4, :2], plain[1, :2])  # sequence 4 has other ids at padding
    unused = [path for path, leaf in flatten_tree(grads).items() if not np.abs(leaf).max() > 0]
    assert not [path for path in unused if "cross_attention" in path and not path.endswith("key/bias")]
    used = {path.split("/")[0] for path in flatten_tree(grads) if path not in unused}
    assert used == {"encoder", "decoder"}  # gradients reach both


def pair(encoder: dict[str, Values], decoder: dict[str, Values], width: int, sharing: str) -> EncoderDecoderConfig:
    one = network(encoder)
    return EncoderDecoderConfig(one, network(decoder, width).as_decoder(one), sharing)


@pytest.mark.long
@pytest.mark.parametrize(
    ("encoder", "decoder", "width", "sharing"),
    [
        pytest.param(FIRST, LAST, 16, "embeddings", id="plain"),
        pytest.param(LAST, FIRST, 24, "none", id="odd"),
    ],
)
def test_an_example_sees_its_source_and_no_later_token(
    encoder: dict[str, Values], decoder: dict[str, Values], width: int, sharing: str
) -> None:
    check_sight(pair(encoder, decoder, width, sharing))


@pytest.mark.weekly
@settings(
    max_examples=4, deadline=None, derandomize=True, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
)
@given(encoder=KINDS, decoder=KINDS, shape=st.sampled_from([(16, "embeddings"), (16, "none"), (24, "none")]))
def test_any_encoder_and_decoder_do(
    encoder: dict[str, Values], decoder: dict[str, Values], shape: tuple[int, str]
) -> None:
    check_sight(pair(encoder, decoder, *shape))


@pytest.mark.long
def test_shared_layers_are_held_once() -> None:
    model = network(FIRST)
    config = EncoderDecoderConfig.symmetric(model, "all")
    decoder = flatten_tree(abstract_params(config)["decoder"])
    assert {path.split("/")[2] if path.startswith("encoder") else path.split("/")[0] for path in decoder} == {
        "cross_attention",
        "mlm_head",
    }
    params = jit(functools.partial(init_params, config))(jax.random.key(0))
    encoder, complete = complete_params(config, params)
    assert complete["encoder"]["layers"]["attention"] == encoder["encoder"]["layers"]["attention"]


@pytest.mark.long
@pytest.mark.parametrize("implementation", ["tiled", "interpret"])
def test_kernels_of_cross_attention_are_the_plain_form(implementation: str) -> None:
    """Queries and keys of other lengths, packed, with padding and an example without a source."""
    draw = np.random.default_rng(0).normal
    query_ids = jnp.asarray([[1] * 100 + [2] * 60 + [0] * 5, [1] * 80 + [2] * 85])
    key_ids = jnp.asarray([[1] * 200 + [2] * 100 + [0] * 3, [1] * 290 + [0] * 13])
    q, k, v = (jnp.asarray(draw(size=(2, length, 2, 40)), jnp.float32) for length in (165, 303, 303))
    context = AttentionContext(query_ids, key_segment_ids=key_ids)
    plain = EncoderConfig(hidden_size=80, num_heads=2, attention_implementation="xla")

    def out_and_grads(config: EncoderConfig) -> list[np.ndarray]:
        def loss(*qkv: jax.Array) -> tuple[jax.Array, jax.Array]:
            out = dot_product_attention(*qkv, context, config, None)
            out = jnp.where((query_ids > 0)[:, :, None, None], out, 0.0)
            return jnp.square(out).sum(), out

        (_, out), grads = jit(jax.value_and_grad(loss, (0, 1, 2), has_aux=True))(q, k, v)
        return [np.asarray(each) for each in (out, *grads)]

    expected = out_and_grads(plain)
    assert not expected[0][1, 80:].any() and expected[0][1, :80].any()  # no source: zero
    for mine, theirs in zip(
        out_and_grads(plain.replace(attention_implementation=implementation)), expected, strict=True
    ):
        np.testing.assert_allclose(mine, theirs, atol=5e-6)


# As `transformers` counts them (without position tables of sinusoids): BART and T5 as released; the others built there
# from the sizes of their papers, bert2bert without the pooler. Vocabulary, and parameters.
COUNTS = {
    "transformer-base": (37_000, 63_082_496 + 37_000),  # the bias of the output, a buffer there
    "transformer-big": (37_000, 214_245_376 + 37_000),
    "bert2bert": (30_522, 246_772_794),
    "roberta-shared": (50_265, 153_064_281),  # 277,119,321 unshared, less an encoder of 124,055,040
    "t5-small": (32_128, 60_506_624),
    "t5-base": (32_128, 222_903_552),
    "t5-large": (32_128, 737_668_096),
    "t5-3b": (32_128, 2_851_598_336),
    "t5-11b": (32_128, 11_307_321_344),
    "t5-v1.1-small": (32_128, 76_961_152),
    "t5-v1.1-base": (32_128, 247_577_856),
    "t5-v1.1-large": (32_128, 783_150_080),
    "t5-v1.1-xl": (32_128, 2_849_757_184),
    "t5-v1.1-xxl": (32_128, 11_135_332_352),
    "m2m100-418m": (128_112, 483_905_536),
    "m2m100-1.2b": (128_112, 1_239_470_080),
    "nllb-200-600m": (256_206, 615_073_792),
    "nllb-200-1.3b": (256_206, 1_370_638_336),
    "nllb-200-3.3b": (256_206, 3_344_863_232),
    "bart-base": (50_265, 139_420_416 + 50_265),
    "bart-large": (50_265, 406_291_456 + 50_265),
}


@pytest.mark.long
def test_published_sizes_have_their_numbers_of_parameters() -> None:
    counted = {name: (vocab, count_params(encoder_decoder_preset(name, vocab))) for name, (vocab, _) in COUNTS.items()}
    assert counted == COUNTS and set(COUNTS) == set(PRESETS)


def test_what_does_not_fit_is_refused_with_the_reason() -> None:
    model = network(FIRST)
    decoder = model.as_decoder(model)
    with pytest.raises(UserError, match="a decoder needs causal=true"):
        EncoderDecoderConfig(model, dataclasses.replace(decoder, causal=False))
    with pytest.raises(UserError, match="attends to states of 16, but the encoder has hidden_size=24"):
        EncoderDecoderConfig(network(FIRST, 24), decoder)
    with pytest.raises(UserError, match="cannot share all: num_layers is 3 and 2"):
        EncoderDecoderConfig(model, dataclasses.replace(decoder, num_layers=2), "all")
    with pytest.raises(UserError, match="cannot share embeddings: vocab_size is 40 and 30"):
        EncoderDecoderConfig(model, dataclasses.replace(decoder, vocab_size=30))
    with pytest.raises(UserError, match=r"decoder\.sharing.*some"):
        EncoderDecoderConfig(model, decoder, "some")
    with pytest.raises(UserError, match="attention_scale=false and attention_position=disentangled"):
        network(FIRST | {"x": {"attention_scale": False, "attention_position": "disentangled"}})
