"""The kernel for GPUs with XLNet's terms, interpreted: it is the formula, and the plain form in both streams."""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractDevice, AbstractMesh, AxisType

from bertjax.config.model import EncoderConfig
from bertjax.models import attention_kernels
from bertjax.models.attention_context import AttentionContext, PredictionRanks
from bertjax.models.dropout import random_bits
from bertjax.models.model import abstract_params, bind
from bertjax.models.pallas import attention as fused_attention
from bertjax.models.pallas.attention import ScoreTerms
from bertjax.models.pallas.blocks import keep_block
from bertjax.models.two_stream import run_two_streams
from bertjax.objectives.plm.permutation import permutation_ranks
from bertjax.types import Params

BATCH, LENGTH, MEMORY, TARGETS, HEADS, WIDTH, RATE = 2, 150, 70, 9, 2, 16, 0.2
KEYS = MEMORY + LENGTH
KEY = jax.random.key(5)
CONFIG = EncoderConfig(
    family="xlnet",
    vocab_size=50,
    hidden_size=HEADS * WIDTH,
    num_layers=2,
    num_heads=HEADS,
    intermediate_size=40,
    type_vocab_size=0,
    position_embedding="none",
    embedding_norm="none",
    attention_position="relative",
    relative_segments=True,
    attention_bias="none",
    hidden_dropout=0.0,
    attention_dropout=0.0,
)
KERNEL = dataclasses.replace(CONFIG, attention_implementation="pallas")
Arrays = dict[str, jax.Array]


def drawn(sets: int) -> tuple[Arrays, AttentionContext, tuple[jax.Array, jax.Array], jax.Array]:
    """Returns what the kernel multiplies, who sees whom, token types, and factors of the outputs."""
    draw = np.random.default_rng(0)
    shapes = {
        "q": (BATCH, LENGTH, HEADS, WIDTH),
        "k": (BATCH, KEYS, HEADS, WIDTH),
        "v": (BATCH, KEYS, HEADS, WIDTH),
        "table": (sets, KEYS + LENGTH - 1, HEADS, WIDTH),
        "partners": (BATCH, LENGTH, HEADS, WIDTH),
        "type_scores": (BATCH, HEADS, LENGTH),
    }
    arrays = {name: jnp.asarray(draw.normal(size=shape), jnp.float32) for name, shape in shapes.items()}
    ids = np.ones((BATCH, LENGTH), np.int32)
    ids[0, 140:] = 0
    ranks = draw.integers(0, 80, (BATCH, LENGTH)), draw.integers(0, 80, (BATCH, LENGTH))
    front = ((0, 0), (MEMORY, 0))
    context = AttentionContext(
        jnp.asarray(ids),
        key_segment_ids=jnp.asarray(np.pad(ids, front, constant_values=1)),
        ranks=PredictionRanks(*map(jnp.asarray, (ranks[0], np.pad(ranks[1], front, constant_values=-1)))),
    )
    types = draw.integers(0, 3, (BATCH, LENGTH)), draw.integers(0, 3, (BATCH, KEYS))
    factors = draw.normal(size=shapes["q"]) * (ids > 0)[:, :, None, None]
    return arrays, context, (jnp.asarray(types[0]), jnp.asarray(types[1])), jnp.asarray(factors, jnp.float32)


def kernel(arrays: Arrays, context: AttentionContext, types: Any, key: jax.Array | None) -> jax.Array:
    terms = ScoreTerms({"c2p": arrays["table"]}, arrays["partners"], arrays["type_scores"], types)
    dtype = "bfloat16" if arrays["q"].dtype == jnp.bfloat16 else "float32"
    qkv = arrays["q"], arrays["k"], arrays["v"]
    return fused_attention.pallas_attention(*qkv, context, dtype, RATE, key, terms)


def formula(arrays: Arrays, context: AttentionContext, types: Any, key: jax.Array | None) -> jax.Array:
    """Returns attention by the definition, with the kernel's mask of dropout."""
    queries, keys = jnp.arange(LENGTH), jnp.arange(KEYS)
    rows = KEYS - 1 - (MEMORY + queries[:, None] - keys[None, :])  # falling distance
    table = jnp.broadcast_to(arrays["table"], (BATCH, *arrays["table"].shape[1:]))
    scores = jnp.einsum("bqnh,bknh->bnqk", arrays["q"], arrays["k"])
    scores += jnp.einsum("bqnh,bqknh->bnqk", arrays["partners"], table[:, rows])
    differs = types[0][:, None, :, None] != types[1][:, None, None, :]
    scores += jnp.where(differs, arrays["type_scores"][..., None], 0.0)
    weights = jax.nn.softmax(jnp.where(context.visible(), scores / math.sqrt(WIDTH), -1e30), axis=-1)
    if key is not None:
        words = random_bits(key, (BATCH, HEADS, 2))
        keep = jax.vmap(jax.vmap(lambda pair: keep_block(pair[0], pair[1], queries[:, None], keys[None], RATE)))(words)
        weights = jnp.where(keep, weights / (1 - RATE), 0.0)
    return jnp.einsum("bnqk,bknh->bqnh", weights, arrays["v"])


@pytest.mark.long
@pytest.mark.parametrize(
    ("sets", "key", "compiler"),
    [
        pytest.param(1, None, "triton", marks=pytest.mark.weekly),
        (BATCH, KEY, "triton"),
        pytest.param(1, KEY, "mosaic", marks=pytest.mark.long),
    ],
)
def test_outputs_and_all_gradients_are_the_formula(
    sets: int, key: jax.Array | None, compiler: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(fused_attention.COMPILERS, "cpu", compiler)
    arrays, context, types, factors = drawn(sets)

    def run(attend: Any) -> Any:
        def loss(arrays: Arrays) -> tuple[jax.Array, jax.Array]:
            out = attend(arrays, context, types, key) * factors
            return out.sum(), out

        return jax.jit(jax.value_and_grad(loss, has_aux=True))(arrays)

    (_, out), gradients = run(kernel)
    (_, expected), plain = run(formula)
    assert np.abs(out - expected).max() <= 2e-5
    for name, theirs in plain.items():
        assert np.abs(theirs).max() > 0.1
        np.testing.assert_allclose(gradients[name], theirs, atol=2e-5, err_msg=name)


@pytest.mark.long
def test_tables_of_every_sequence_on_a_mesh() -> None:
    arrays, context, types, factors = drawn(BATCH)
    gradients = jax.jit(jax.grad(lambda arrays: (kernel(arrays, context, types, KEY) * factors).sum()))
    alone = gradients(arrays)
    with jax.set_mesh(jax.make_mesh((2, 1, 2), ("data", "fsdp", "tensor"), axis_types=(AxisType.Auto,) * 3)):
        shared = gradients(arrays)
    for name, plain in alone.items():
        np.testing.assert_allclose(shared[name], plain, atol=3e-6, err_msg=name)


def model_inputs() -> tuple[Arrays, Params]:
    draw = np.random.default_rng(2)
    inputs = {
        "input_ids": draw.integers(1, 50, (BATCH, LENGTH)),
        "segment_ids": np.repeat([[1] * 140 + [0] * 10, [1] * LENGTH], 1, axis=0),
        "position_ids": np.tile(np.arange(LENGTH), (BATCH, 1)),
        "token_type_ids": np.tile(np.arange(LENGTH) // 60, (BATCH, 1)),
    }
    params = jax.tree_util.tree_map_with_path(
        lambda path, leaf: jnp.asarray(draw.normal(float(path[-1].key == "scale"), 0.3, leaf.shape), jnp.float32),
        abstract_params(CONFIG, ("mlm",)),
    )
    return {name: jnp.asarray(array, jnp.int32) for name, array in inputs.items()}, params


def both(loss: Any, params: Params) -> None:
    """Compares a loss, states and gradients of the plain form and of the kernel."""
    plain, ours = (
        jax.jit(jax.value_and_grad(functools.partial(loss, config), has_aux=True))(params)
        for config in (CONFIG, KERNEL)
    )
    assert "pallas_call" in str(jax.make_jaxpr(functools.partial(loss, KERNEL))(params))
    for mine, theirs in zip(jax.tree.leaves(ours), jax.tree.leaves(plain), strict=True):
        assert np.abs(mine - theirs).max() <= 2e-5 * max(1.0, np.abs(theirs).max())


@pytest.mark.long
@pytest.mark.parametrize("with_memory", [False, True])
def test_two_streams_are_the_plain_ones(with_memory: bool) -> None:
    inputs, params = model_inputs()
    draw = np.random.default_rng(3)
    order = np.full((BATCH, LENGTH), -1)
    order[:, :80] = np.where(draw.random((BATCH, 80)) < 0.4, [draw.permutation(80) for _ in range(BATCH)], -1)
    order[:, [79, 120]] = 1000, 7  # functional
    functional = np.isin(np.tile(np.arange(LENGTH), (BATCH, 1)), (79, 120))
    targets = np.stack([np.flatnonzero(row[:79] >= 0)[:TARGETS] for row in order])
    ranks = permutation_ranks(jnp.asarray(order, jnp.int32), jnp.asarray(functional), (80, 70))
    memory = jnp.asarray(draw.normal(size=(2, BATCH, MEMORY, HEADS * WIDTH)), jnp.float32) if with_memory else None
    real = (inputs["segment_ids"] > 0)[:, :, None]

    def loss(config: EncoderConfig, params: Params) -> tuple[jax.Array, Any]:
        out = run_two_streams(
            bind(config, ("mlm",), params).encoder,
            **inputs,
            visible=ranks,
            targets=jnp.asarray(targets),
            memory=memory,
            backward=jnp.asarray([False, True]),
        )
        content = jnp.where(real, out.content, 0.0)
        return content.var() + out.targets.var(), (content, out.targets, out.memory[:, :, :140])

    both(loss, params)


@pytest.mark.long
def test_an_encoder_is_the_plain_one() -> None:
    inputs, params = model_inputs()
    real = (inputs["segment_ids"] > 0)[:, :, None]

    def loss(config: EncoderConfig, params: Params) -> tuple[jax.Array, jax.Array]:
        states = jnp.where(real, bind(config, ("mlm",), params).encode(**inputs).last_hidden_state, 0.0)
        return states.var(), states

    both(loss, params)


@pytest.mark.parametrize(
    ("platform", "call"), [("cuda", "custom_call @__gpu$xla.gpu.triton"), ("tpu", "custom_call @tpu_custom_call")]
)
def test_it_lowers_and_holds_no_scores(platform: str, call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (attention_kernels, fused_attention):
        monkeypatch.setattr(module, "target_platform", lambda: platform)
    arrays, context, types, _ = drawn(1)
    arrays = {name: jnp.asarray(array, jnp.bfloat16) for name, array in arrays.items()}
    device = AbstractDevice("NVIDIA H100 80GB HBM3", None, "gpu")
    with jax.sharding.use_abstract_mesh(AbstractMesh((1,), ("data",), (AxisType.Auto,), abstract_device=device)):
        loss = lambda arrays: kernel(arrays, context, types, KEY).astype("f4").sum()  # noqa: E731
        text = jax.jit(jax.grad(loss)).trace(arrays).lower(lowering_platforms=(platform,)).as_text()
    assert text.count(call) == 4  # forward; gradients of queries, of keys, of the table
    assert not re.search(r"x(150|192|256)x(220|256|369|448|512)x(f|bf)", text)
