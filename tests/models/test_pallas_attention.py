"""The kernel with dropout for GPUs, interpreted: it agrees with the plain form; masks follow key and position."""

from __future__ import annotations

import dataclasses
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractDevice, AbstractMesh, AxisType

from bertjax.config.model import EncoderConfig
from bertjax.errors import UserError
from bertjax.models import attention_kernels
from bertjax.models.attention import dot_product_attention
from bertjax.models.attention_context import AttentionContext
from bertjax.models.dropout import random_bits
from bertjax.models.pallas import attention as fused_attention
from bertjax.models.pallas.blocks import keep_block

BATCH, LENGTH, HEADS, WIDTH, RATE = 2, 150, 2, 16, 0.2
CONFIG = EncoderConfig(hidden_size=HEADS * WIDTH, num_heads=HEADS, attention_dropout=RATE)
KEY = jax.random.key(5)
KINDS = [(0, False), (0, True), (40, False), (100, False), (40, True)]
FEW_KINDS = [pytest.param(*kind, marks=[] if kind == (40, True) else pytest.mark.weekly) for kind in KINDS]
WITHOUT_DROPOUT = [(0, False), *(pytest.param(*kind, marks=pytest.mark.long) for kind in KINDS[1:4]), (40, True)]
IDS = jnp.asarray(np.array([1, 2, 3, 0, 1]).repeat([40, 50, 40, 20, 150]).reshape(BATCH, LENGTH), jnp.int32)


def inputs(keys: int = LENGTH) -> list[jax.Array]:
    """Returns queries, keys, values and factors of the outputs."""
    draw = np.random.default_rng(0)
    lengths = (LENGTH, keys, keys, LENGTH)
    return [jnp.asarray(draw.normal(size=(BATCH, length, HEADS, WIDTH)), jnp.float32) for length in lengths]


def run(
    implementation: str, context: AttentionContext, key: jax.Array | None = None, cap: float | None = None
) -> list[np.ndarray]:
    """Returns the output at real tokens, and the gradients of q, k and v."""
    config = dataclasses.replace(CONFIG, attention_implementation=implementation, attention_soft_cap=cap)
    *qkv, factors = inputs(
        (context.segment_ids if context.key_segment_ids is None else context.key_segment_ids).shape[1]
    )
    real = (IDS > 0)[:, :, None, None]

    def loss(q: jax.Array, k: jax.Array, v: jax.Array) -> tuple[jax.Array, jax.Array]:
        out = jnp.where(real, dot_product_attention(q, k, v, context, config, key), 0.0)
        return (out * factors).sum(), out

    (_, out), gradients = jax.jit(jax.value_and_grad(loss, (0, 1, 2), has_aux=True))(*qkv)
    return [np.asarray(each) for each in (out, *gradients)]


def keep_mask(context: AttentionContext) -> jax.Array:
    """Returns the mask of dropout as a matrix [B, N, S, K]."""
    words, positions = random_bits(KEY, (BATCH, HEADS, 2)), jnp.arange(LENGTH)
    draw = jax.vmap(jax.vmap(lambda pair: keep_block(pair[0], pair[1], positions[:, None], positions[None], RATE)))
    return draw(words)


def plain_dropout(q: jax.Array, k: jax.Array, v: jax.Array, context: AttentionContext) -> jax.Array:
    """Returns attention with the mask of the kernel, by the formula."""
    scores = jnp.einsum("bqnh,bknh->bnqk", q, k) / math.sqrt(WIDTH)
    weights = jax.nn.softmax(jnp.where(context.visible(), scores, -1e30), axis=-1)
    return jnp.einsum("bnqk,bknh->bqnh", jnp.where(keep_mask(context), weights / (1 - RATE), 0.0), v)


@pytest.mark.long
@pytest.mark.parametrize(("window", "causal"), WITHOUT_DROPOUT)
def test_without_dropout_it_is_the_plain_form(window: int, causal: bool) -> None:
    context = AttentionContext(IDS, window, causal)
    for ours, plain in zip(run("pallas", context), run("xla", context), strict=True):
        assert np.abs(ours - plain).max() <= 3e-6


@pytest.mark.long
def test_capped_scores_are_the_plain_form() -> None:
    context = AttentionContext(IDS, 40, True)
    uncapped = run("pallas", context)
    for ours, plain, other in zip(run("pallas", context, cap=0.5), run("xla", context, cap=0.5), uncapped, strict=True):
        assert np.abs(ours - plain).max() <= 3e-6 and np.abs(ours - other).max() > 0.1


@pytest.mark.long
def test_a_decoder_attends_to_a_source_of_another_length() -> None:
    source = jnp.asarray(np.array([1, 2, 3, 1, 0]).repeat([30, 10, 30, 60, 10]).reshape(BATCH, 70), jnp.int32)
    context = AttentionContext(IDS, key_segment_ids=source)
    for ours, plain in zip(run("pallas", context), run("xla", context), strict=True):
        assert np.abs(ours - plain).max() <= 3e-6


@pytest.mark.long
@pytest.mark.parametrize(
    ("window", "causal", "compiler"),
    [
        pytest.param(0, False, "triton", marks=pytest.mark.weekly),
        (40, True, "triton"),
        pytest.param(40, False, "mosaic", marks=pytest.mark.long),
    ],
)
def test_with_dropout_it_is_the_formula_with_its_mask(
    window: int, causal: bool, compiler: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(fused_attention.COMPILERS, "cpu", compiler)
    context = AttentionContext(IDS, window, causal)
    real = (IDS > 0)[:, :, None, None]
    *qkv, factors = inputs()

    def loss(q: jax.Array, k: jax.Array, v: jax.Array) -> tuple[jax.Array, jax.Array]:
        out = jnp.where(real, plain_dropout(q, k, v, context), 0.0)
        return (out * factors).sum(), out

    (_, out), gradients = jax.value_and_grad(loss, (0, 1, 2), has_aux=True)(*qkv)
    for ours, plain in zip(run("pallas", context, KEY), (out, *gradients), strict=True):
        assert np.abs(ours - plain).max() <= 1e-5


@pytest.mark.parametrize(("window", "causal"), FEW_KINDS)
def test_blocks_of_other_segments_are_not_read(window: int, causal: bool) -> None:
    """NaN in a value reaches the output even with a probability of zero."""
    ids = jnp.asarray(np.array([1, 2, 3, 0]).repeat([128, 70, 58, 64])[None], jnp.int32)
    draw = np.random.default_rng(1)
    q, k, v, factors = (jnp.asarray(draw.normal(size=(1, 320, HEADS, WIDTH)), jnp.float32) for _ in range(4))
    config = dataclasses.replace(CONFIG, attention_implementation="pallas")
    first, rest = ids == 1, ids > 1

    def loss(q: jax.Array, k: jax.Array, v: jax.Array, real: jax.Array) -> jax.Array:
        out = dot_product_attention(q, k, v, AttentionContext(ids, window, causal), config, KEY)
        return jnp.where(real[:, :, None, None], out * factors, 0.0).sum()

    gradients = jax.jit(jax.grad(loss, (0, 1, 2)))
    for real, others in ((first, ids != 1), (rest, ids <= 1)):
        poisoned = (jnp.where(others[:, :, None, None], jnp.nan, x) for x in (q, k, v))
        inside = np.asarray(real)[0]
        for damaged, clean in zip(gradients(*poisoned, real), gradients(q, k, v, real), strict=True):
            assert np.array_equal(np.asarray(damaged)[0, inside], np.asarray(clean)[0, inside])
            assert np.abs(np.asarray(clean)[0, inside]).max() > 0


def test_masks_drop_their_share_and_differ() -> None:
    """By row, column, head and sequence; pairs of neighbors are dropped as often as independent ones."""
    keep = np.asarray(keep_mask(AttentionContext(IDS)))
    bound = 5 * math.sqrt(RATE * (1 - RATE) / keep.size)
    assert abs(1 - keep.mean() - RATE) <= bound
    for axis in range(4):
        first, second = (np.take(keep, range(begin, keep.shape[axis] - 1 + begin), axis) for begin in (0, 1))
        assert abs((~first & ~second).mean() - RATE**2) <= 3 * bound, axis
    per_row = (~keep).sum(-1).ravel()
    assert 0.85 <= per_row.var() / (LENGTH * RATE * (1 - RATE)) <= 1.15
    other = keep_block(jnp.uint32(1), jnp.uint32(2), jnp.arange(LENGTH)[:, None], jnp.arange(LENGTH)[None], RATE)
    assert abs((~np.asarray(other) & ~keep[0, 0]).mean() - RATE**2) <= 0.02


def test_blocks_of_a_mask_are_parts_of_it() -> None:
    words = jnp.uint32(3), jnp.uint32(4)
    whole = keep_block(*words, jnp.arange(128)[:, None], jnp.arange(128)[None], RATE)
    part = keep_block(*words, jnp.arange(64, 128)[:, None], jnp.arange(0, 64)[None], RATE)
    assert np.array_equal(whole[64:, :64], part)


@pytest.mark.long
def test_a_mesh_drops_the_same_elements() -> None:
    context = AttentionContext(IDS)
    alone = run("pallas", context, KEY)
    mesh = jax.make_mesh((2, 1, 2), ("data", "fsdp", "tensor"), axis_types=(AxisType.Auto,) * 3)
    with jax.set_mesh(mesh):
        shared = run("pallas", context, KEY)
    for mine, plain in zip(shared, alone, strict=True):
        assert np.abs(mine - plain).max() <= 1e-6


@pytest.mark.parametrize(
    ("platform", "call"), [("cuda", "custom_call @__gpu$xla.gpu.triton"), ("tpu", "custom_call @tpu_custom_call")]
)
def test_it_lowers_and_holds_no_scores(platform: str, call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (attention_kernels, fused_attention):
        monkeypatch.setattr(module, "target_platform", lambda: platform)
    config = dataclasses.replace(CONFIG, hidden_size=128, attention_implementation="pallas", compute_dtype="bfloat16")

    def loss(q: jax.Array, ids: jax.Array, key: jax.Array) -> jax.Array:
        return dot_product_attention(q, q, q, AttentionContext(ids), config, key).astype(jnp.float32).sum()

    q, ids = jax.ShapeDtypeStruct((2, 320, 2, 64), jnp.bfloat16), jax.ShapeDtypeStruct((2, 320), jnp.int32)
    device = AbstractDevice("NVIDIA H100 80GB HBM3", None, "gpu")
    with jax.sharding.use_abstract_mesh(AbstractMesh((1,), ("data",), (AxisType.Auto,), abstract_device=device)):
        text = jax.jit(jax.grad(loss)).trace(q, ids, KEY).lower(lowering_platforms=(platform,)).as_text()
    assert text.count(call) == 3
    assert not re.search(r"x(320|384)x(320|384)x", text)


def test_head_sizes_that_the_kernel_cannot_multiply_are_refused() -> None:
    config = dataclasses.replace(CONFIG, hidden_size=48, attention_implementation="pallas")
    q = jnp.zeros((1, 8, 2, 24))
    with pytest.raises(UserError, match="needs a head size of 16, 32, 64, 128, 256, not 24"):
        dot_product_attention(q, q, q, AttentionContext(jnp.ones((1, 8), jnp.int32)), config, KEY)
