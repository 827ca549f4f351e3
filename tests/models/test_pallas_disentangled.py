"""The kernel for GPUs with DeBERTa's terms of distances, interpreted: it agrees with the formula and the plain form."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.sharding import AbstractDevice, AbstractMesh, AxisType

from bertjax.config.model import EncoderConfig
from bertjax.errors import UserError
from bertjax.models import attention_kernels
from bertjax.models.attention_context import AttentionContext
from bertjax.models.dropout import random_bits
from bertjax.models.model import abstract_params, bind
from bertjax.models.pallas import attention as fused_attention
from bertjax.models.pallas import mosaic
from bertjax.models.pallas.attention import ScoreTerms
from bertjax.models.pallas.blocks import keep_block
from bertjax.types import Params

BATCH, LENGTH, HEADS, WIDTH, RATE = 2, 150, 2, 16, 0.2  # two blocks and a part
KEY = jax.random.key(5)
IDS = jnp.asarray(np.array([1, 2, 3, 0, 1]).repeat([40, 50, 40, 20, 150]).reshape(BATCH, LENGTH), jnp.int32)
CONFIG = EncoderConfig(
    family="deberta-v2",
    vocab_size=50,
    hidden_size=HEADS * WIDTH,
    num_layers=2,
    num_heads=HEADS,
    intermediate_size=40,
    max_position_embeddings=LENGTH,
    type_vocab_size=0,
    position_embedding="none",
    attention_position="disentangled",
    position_buckets=16,
    max_relative_positions=64,
    norm_relative_embeddings=True,
    share_att_key=True,
    embedding_norm="after",
    embedding_projection_bias=False,
    enhanced_decoder=True,
    hidden_dropout=0.0,
    attention_dropout=0.0,
)


def inputs(terms: tuple[str, ...]) -> tuple[list[jax.Array], dict[str, jax.Array], jax.Array]:
    """Returns queries, keys and values, tables, and factors of the outputs."""
    draw = np.random.default_rng(0)
    shapes = [(BATCH, LENGTH, HEADS, WIDTH)] * 4 + [(2 * LENGTH - 1, HEADS, WIDTH)] * len(terms)
    *qkv, factors = (jnp.asarray(draw.normal(size=shape), jnp.float32) for shape in shapes[:4])
    return qkv, {term: jnp.asarray(draw.normal(size=shapes[4]), jnp.float32) for term in terms}, factors


def run_kernel(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    context: AttentionContext,
    key: jax.Array | None,
    tables: Mapping[str, jax.Array],
) -> jax.Array:
    terms = ScoreTerms({term: table[None] for term, table in tables.items()})
    divisor = math.sqrt(q.shape[-1] * (1 + len(tables)))
    dtype = "bfloat16" if q.dtype == jnp.bfloat16 else "float32"
    return fused_attention.pallas_attention(q, k, v, context, dtype, RATE, key, terms, divisor)


def formula(
    q: jax.Array, k: jax.Array, v: jax.Array, tables: Mapping[str, jax.Array], context: AttentionContext, drop: bool
) -> jax.Array:
    """Returns attention by the definition, with the kernel's mask of dropout."""
    rows = LENGTH - 1 - (jnp.arange(LENGTH)[:, None] - jnp.arange(LENGTH)[None, :])  # falling distance
    scores = jnp.einsum("bqnh,bknh->bnqk", q, k)
    if "c2p" in tables:
        scores += jnp.einsum("bqnh,qknh->bnqk", q, tables["c2p"][rows])
    if "p2c" in tables:
        scores += jnp.einsum("bknh,qknh->bnqk", k, tables["p2c"][rows])
    scores /= math.sqrt(WIDTH * (1 + len(tables)))
    weights = jax.nn.softmax(jnp.where(context.visible(), scores, -1e30), axis=-1)
    if drop:
        words, positions = random_bits(KEY, (BATCH, HEADS, 2)), jnp.arange(LENGTH)
        keep = jax.vmap(jax.vmap(lambda pair: keep_block(pair[0], pair[1], positions[:, None], positions[None], RATE)))(
            words
        )
        weights = jnp.where(keep, weights / (1 - RATE), 0.0)
    return jnp.einsum("bnqk,bknh->bqnh", weights, v)


@pytest.mark.long
@pytest.mark.parametrize(
    ("terms", "causal", "drop", "compiler"),
    [
        (("c2p", "p2c"), False, True, "triton"),
        pytest.param(("p2c",), True, False, "triton", marks=pytest.mark.weekly),
        pytest.param(("c2p",), False, False, "triton", marks=pytest.mark.weekly),
        pytest.param(("c2p", "p2c"), True, True, "mosaic", marks=pytest.mark.long),
    ],
)
def test_outputs_and_all_gradients_are_the_formula(
    terms: tuple[str, ...], causal: bool, drop: bool, compiler: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(fused_attention.COMPILERS, "cpu", compiler)
    context, (qkv, tables, factors) = AttentionContext(IDS, causal=causal), inputs(terms)
    real = (IDS > 0)[:, :, None, None]

    def kernel(q: jax.Array, k: jax.Array, v: jax.Array, tables: Mapping[str, jax.Array]) -> jax.Array:
        key = KEY if drop else None
        return run_kernel(q, k, v, context, key, tables)

    def run(attend: Any) -> Any:
        def loss(*arrays: Any) -> tuple[jax.Array, jax.Array]:
            out = jnp.where(real, attend(*arrays), 0.0)
            return (out * factors).sum(), out

        return jax.jit(jax.value_and_grad(loss, (0, 1, 2, 3), has_aux=True))(*qkv, tables)

    (_, out), gradients = run(kernel)
    (_, expected), plain = run(lambda *arrays: formula(*arrays, context, drop))
    assert np.abs(out - expected).max() <= 1e-5
    for ours, theirs in zip(jax.tree.leaves(gradients), jax.tree.leaves(plain), strict=True):
        assert np.abs(ours - theirs).max() <= 1e-5 and np.abs(theirs).max() > 0.1


@pytest.mark.parametrize("shift", [0, 9])
def test_the_rotation_of_tpus_is_the_interpreted_one(shift: int) -> None:
    x = jnp.asarray(np.random.default_rng(0).normal(size=(8, 16)), jnp.float32)

    def kernel(x_ref: Any, out_ref: Any) -> None:
        out_ref[...] = mosaic.rotation(x_ref[...], shift)

    out = pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype), interpret=True)(x)
    np.testing.assert_array_equal(out, mosaic.interpreted_rotation(x, shift))


def run_model(config: EncoderConfig) -> list[np.ndarray]:
    """Returns the last hidden states and the gradients of all weights, of a loss at some positions of the sequences."""
    draw = np.random.default_rng(2)
    tokens = jnp.asarray(draw.integers(1, 50, (BATCH, LENGTH)), jnp.int32)
    positions = jnp.broadcast_to(jnp.arange(LENGTH, dtype=jnp.int32), (BATCH, LENGTH))
    few = jnp.asarray(draw.integers(0, 130, (BATCH, 9)), jnp.int32)
    params = jax.tree_util.tree_map_with_path(
        lambda path, leaf: jnp.asarray(draw.normal(float(path[-1].key == "scale"), 0.3, leaf.shape), jnp.float32),
        abstract_params(config, ("mlm",)),
    )

    def loss(params: Params) -> tuple[jax.Array, jax.Array]:
        model = bind(config, ("mlm",), params)
        encoded = model.encode(tokens, IDS, positions, jnp.zeros_like(tokens))
        states = jnp.where((IDS > 0)[:, :, None], encoded.last_hidden_state, 0.0)
        return model.mlm_hidden_states(encoded, IDS, positions, few).var(), states

    (_, states), gradients = jax.jit(jax.value_and_grad(loss, has_aux=True))(params)
    return [np.asarray(each) for each in (states, *jax.tree.leaves(gradients))]


@pytest.mark.long
def test_a_model_is_the_plain_one() -> None:
    """With the enhanced decoder, whose queries at some positions take the plain form."""
    plain, ours = (run_model(dataclasses.replace(CONFIG, attention_implementation=name)) for name in ("xla", "pallas"))
    for mine, theirs in zip(ours, plain, strict=True):
        assert np.abs(mine - theirs).max() <= 2e-5 * max(1.0, np.abs(theirs).max())


@pytest.mark.long
def test_a_mesh_sums_the_gradients_of_the_tables() -> None:
    context, (qkv, tables, factors) = AttentionContext(IDS), inputs(("c2p", "p2c"))

    def loss(q: jax.Array, k: jax.Array, v: jax.Array, tables: Mapping[str, jax.Array]) -> jax.Array:
        out = run_kernel(q, k, v, context, KEY, tables)
        return (jnp.where((IDS > 0)[:, :, None, None], out, 0.0) * factors).sum()

    gradients = jax.jit(jax.grad(loss, (0, 1, 2, 3)))
    alone = gradients(*qkv, tables)
    with jax.set_mesh(jax.make_mesh((2, 1, 2), ("data", "fsdp", "tensor"), axis_types=(AxisType.Auto,) * 3)):
        shared = gradients(*qkv, tables)
    for mine, plain in zip(jax.tree.leaves(shared), jax.tree.leaves(alone), strict=True):
        assert np.abs(mine - plain).max() <= 3e-6


@pytest.mark.parametrize(
    ("platform", "call"), [("cuda", "custom_call @__gpu$xla.gpu.triton"), ("tpu", "custom_call @tpu_custom_call")]
)
def test_it_lowers_and_holds_no_scores(platform: str, call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (attention_kernels, fused_attention):
        monkeypatch.setattr(module, "target_platform", lambda: platform)

    def loss(q: jax.Array, table: jax.Array, ids: jax.Array, key: jax.Array) -> jax.Array:
        context, tables = AttentionContext(ids), {"c2p": table, "p2c": table}
        return run_kernel(q, q, q, context, key, tables).astype("f4").sum()

    q, table = jax.ShapeDtypeStruct((2, 320, 2, 64), jnp.bfloat16), jax.ShapeDtypeStruct((639, 2, 64), jnp.bfloat16)
    device = AbstractDevice("NVIDIA H100 80GB HBM3", None, "gpu")
    with jax.sharding.use_abstract_mesh(AbstractMesh((1,), ("data",), (AxisType.Auto,), abstract_device=device)):
        traced = jax.jit(jax.grad(loss, (0, 1))).trace(q, table, jax.ShapeDtypeStruct((2, 320), jnp.int32), KEY)
        text = traced.lower(lowering_platforms=(platform,)).as_text()
    assert text.count(call) == 4  # forward; gradients of queries, of keys, of tables
    assert not re.search(r"x(320|384)x(320|384|639|640|768)x(f|bf)", text)


def test_what_the_kernel_cannot_do_is_refused() -> None:
    with pytest.raises(UserError, match="the kernel knows no such terms of positions"):
        EncoderConfig(attention_position="relative_bias", attention_bias="none", attention_implementation="pallas")
    with pytest.raises(UserError, match="needs a head size of 16, 32, 64, 128, 256, not 24"):
        run_model(dataclasses.replace(CONFIG, attention_implementation="pallas", hidden_size=48))
