"""Kernels agree with the plain form, lower for their platform, and refuse what they cannot compute."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType

from bertjax.config.model import EncoderConfig
from bertjax.errors import UserError
from bertjax.models import attention_kernels
from bertjax.models.attention import dot_product_attention
from bertjax.models.attention_context import AttentionContext, attention_mask

ROWS, LENGTH, HEADS, WIDTH = 4, 200, 2, 40  # neither the length nor the width is a multiple of 128
PLAIN = EncoderConfig(
    hidden_size=HEADS * WIDTH,
    num_heads=HEADS,
    hidden_dropout=0.0,
    attention_dropout=0.0,
    attention_implementation="xla",
)
NARROW = dataclasses.replace(PLAIN, hidden_size=128, compute_dtype="bfloat16")
KINDS = [pytest.param(0, False, id="whole"), pytest.param(0, True, id="causal"), pytest.param(30, False, id="window")]
KINDS += [pytest.param(30, True, id="causal window")]
INTERPRETED = [
    KINDS[0],
    KINDS[3],
    *(pytest.param(*kind.values, id=kind.id, marks=pytest.mark.long) for kind in KINDS[1:3]),
]


def with_implementation(config: EncoderConfig, name: str) -> EncoderConfig:
    return dataclasses.replace(config, attention_implementation=name)


def segments() -> jax.Array:
    """Returns rows of several examples: short, full, and out of order."""
    ids = np.zeros((ROWS, LENGTH), np.int32)
    ids[0, :70], ids[0, 70:150], ids[0, 150:190] = 1, 2, 3
    ids[1, :90], ids[2], ids[3, 20:] = 1, 1, 2
    return jnp.asarray(ids)


def values_and_gradients(config: EncoderConfig, window: int, causal: bool) -> list[np.ndarray]:
    """Returns the output at real tokens and the gradients of a function of it with respect to q, k, v."""
    draw = np.random.default_rng(0).normal(size=(4, ROWS, LENGTH, HEADS, WIDTH))
    *qkv, weights = (jnp.asarray(each, jnp.float32) for each in draw)
    ids = segments()
    real = (ids > 0)[:, :, None, None]

    def loss(q: jax.Array, k: jax.Array, v: jax.Array) -> tuple[jax.Array, jax.Array]:
        out = jnp.where(real, dot_product_attention(q, k, v, AttentionContext(ids, window, causal), config, None), 0.0)
        return (out * weights).sum(), out

    (_, out), gradients = jax.jit(jax.value_and_grad(loss, (0, 1, 2), has_aux=True))(*qkv)
    return [np.asarray(each) for each in (out, *gradients)]


@pytest.mark.long
@pytest.mark.parametrize(("window", "causal"), INTERPRETED)
def test_splash_interpreted_is_the_plain_form(window: int, causal: bool) -> None:
    expected = values_and_gradients(PLAIN, window, causal)
    result = values_and_gradients(with_implementation(PLAIN, "interpret"), window, causal)
    for name, mine, plain in zip(("out", "dq", "dk", "dv"), result, expected, strict=True):
        assert np.abs(mine - plain).max() <= 2e-6 * max(1.0, np.abs(plain).max()), name  # sums of 200 products


@pytest.mark.long
def test_splash_caps_scores() -> None:
    config = dataclasses.replace(PLAIN, attention_soft_cap=0.5)
    expected = values_and_gradients(config, 30, True)
    result = values_and_gradients(with_implementation(config, "interpret"), 30, True)
    for name, mine, plain in zip(("out", "dq", "dk", "dv"), result, expected, strict=True):
        assert np.abs(mine - plain).max() <= 2e-6 * max(1.0, np.abs(plain).max()), name


def test_scores_are_capped_or_the_cap_is_refused() -> None:
    capped = dataclasses.replace(NARROW, attention_soft_cap=0.5)
    with pytest.raises(UserError, match="attention_implementation=cudnn cannot cap scores"):
        with_implementation(capped, "cudnn")
    x, context = jnp.zeros((2, 8, HEADS, 64), jnp.bfloat16), AttentionContext(jnp.ones((2, 8), jnp.int32))
    assert not attention_kernels.kernel_limitation("cudnn", NARROW, context, x, x, False)
    assert "cannot cap scores" in attention_kernels.kernel_limitation("cudnn", capped, context, x, x, False)
    for changes, words in (
        ({"attention_position": "relative_bias"}, "not the scores of attention_position=relative_bias"),
        ({"attention_position": "relative", "attention_bias": "none"}, "not the scores of"),
        ({"attention_position": "disentangled"}, "not the scores of"),
    ):
        with pytest.raises(UserError, match=words):
            dataclasses.replace(capped, **changes)
    with pytest.raises(UserError, match="attention_scale_size=9 and attention_position=disentangled"):
        dataclasses.replace(NARROW, attention_position="disentangled", attention_scale_size=9)
    with pytest.raises(UserError, match="attention_scale_size=9 needs attention_scale=true"):
        dataclasses.replace(NARROW, attention_scale=False, attention_scale_size=9)


@pytest.mark.long
@pytest.mark.parametrize(("window", "causal"), INTERPRETED)
def test_splash_is_finite_at_padding_which_is_not_cleared(window: int, causal: bool) -> None:
    draw = np.random.default_rng(0).normal(size=(3, ROWS, LENGTH, HEADS, WIDTH))
    context = AttentionContext(segments(), window, causal)

    def loss(q: jax.Array, k: jax.Array, v: jax.Array) -> tuple[jax.Array, jax.Array]:
        out = attention_kernels.splash_attention(q, k, v, context, PLAIN, interpret=True)
        return jnp.square(out).sum(), out

    qkv = (jnp.asarray(each, jnp.float32) for each in draw)
    (_, out), gradients = jax.jit(jax.value_and_grad(loss, (0, 1, 2), has_aux=True))(*qkv)
    assert np.asarray(out)[np.asarray(segments()) == 0].any()
    assert all(np.isfinite(each).all() for each in (out, *gradients))


@pytest.mark.long
def test_splash_runs_on_the_shards_of_a_mesh() -> None:
    config = with_implementation(PLAIN, "interpret")
    alone = values_and_gradients(config, 30, False)
    mesh = jax.make_mesh((2, 2, 2), ("data", "fsdp", "tensor"), axis_types=(AxisType.Auto,) * 3)
    q, ids = jnp.zeros((ROWS, LENGTH, HEADS, WIDTH)), segments()
    with jax.set_mesh(mesh):
        text = str(jax.make_jaxpr(lambda q: dot_product_attention(q, q, q, AttentionContext(ids), config, None))(q))
        shared = values_and_gradients(config, 30, False)
    assert "shard_map" in text
    for mine, plain in zip(shared, alone, strict=True):
        assert np.abs(mine - plain).max() <= 1e-6


def lowered(implementation: str, platform: str, window: int, causal: bool, keys: int | None = None) -> str:
    """Returns the program of gradients for a platform; with `keys` that of cross-attention to so many tokens."""
    config = with_implementation(NARROW, implementation)

    def loss(q: jax.Array, ids: jax.Array, k: jax.Array, key_ids: jax.Array) -> jax.Array:
        k, key_ids = (q, None) if keys is None else (k, key_ids)
        context = AttentionContext(ids, window, causal, key_segment_ids=key_ids)
        return dot_product_attention(q, k, k, context, config, None).astype(jnp.float32).sum()

    def shapes(length: int) -> tuple[jax.ShapeDtypeStruct, jax.ShapeDtypeStruct]:
        return jax.ShapeDtypeStruct((2, length, 2, 64), jnp.float32), jax.ShapeDtypeStruct((2, length), jnp.int32)

    program = jax.jit(jax.grad(loss, (0, 2))).trace(*shapes(256), *shapes(keys or 256))
    return program.lower(lowering_platforms=(platform,)).as_text()


@pytest.mark.parametrize(("window", "causal"), KINDS)
def test_splash_lowers_for_tpu_and_builds_no_matrix(window: int, causal: bool) -> None:
    text = lowered("splash", "tpu", window, causal)
    assert text.count("@tpu_custom_call") >= 3  # forward, and backward by queries and by keys
    assert not re.search(r"tensor<(2x)?(\d+x)?256x256x", text)


@pytest.mark.parametrize(("window", "causal"), KINDS)
def test_cudnn_lowers_for_gpu_with_the_mask(monkeypatch: pytest.MonkeyPatch, window: int, causal: bool) -> None:
    private = pytest.importorskip("jax._src.cudnn.fused_attention_stablehlo")
    monkeypatch.setattr(private, "check_cudnn_version", lambda: 91000)
    text = lowered("cudnn", "cuda", window, causal)
    assert '__cudnn$fmhaScaleBiasSoftmax"' in text or "@__cudnn$fmhaScaleBiasSoftmax(" in text
    assert "__cudnn$fmhaScaleBiasSoftmaxBackward" in text and "tensor<2x1x256x256xbf16>" in text


def test_cross_attention_takes_the_kernels_of_every_platform(monkeypatch: pytest.MonkeyPatch) -> None:
    """A source of another length than the target: no plain scores on any platform."""
    private = pytest.importorskip("jax._src.cudnn.fused_attention_stablehlo")
    monkeypatch.setattr(private, "check_cudnn_version", lambda: 91000)
    facts: dict[str, Any] = {"keys": 384, "key_segment_ids": jnp.ones((1, 384), jnp.int32)}
    auto = with_implementation(NARROW, "auto")
    for platform, kernel in (("cpu", "tiled"), ("cuda", "cudnn"), ("tpu", "splash")):
        assert chosen(auto, platform, monkeypatch, **facts) == kernel
        text = lowered("auto", platform, 0, False, 384)
        assert (text.count("@tpu_custom_call") >= 3) == (kernel == "splash")
        assert ("__cudnn$fmhaScaleBiasSoftmaxBackward" in text) == (kernel == "cudnn")
        assert ("tensor<2x1x256x384xbf16>" in text) == (kernel == "cudnn")  # the mask
        assert ("tensor<2x2x256x384xf32>" in text) == (kernel == "tiled")  # one tile holds all of so few scores
    assert chosen(auto, "cuda", monkeypatch, **facts | {"length": 255}) == "xla"
    assert chosen(auto, "tpu", monkeypatch, **facts, dropping=True) == "xla"


def test_the_platform_is_that_of_the_default_device() -> None:
    assert attention_kernels.target_platform() == "cpu"
    with jax.default_device(jax.devices("cpu")[3]):
        assert attention_kernels.target_platform() == "cpu"


def test_the_platform_of_a_mesh_comes_first() -> None:
    """Ahead-of-time compilation suits the target devices, not those of this machine."""
    device = jax.sharding.AbstractDevice("TPU v5 lite", 1, "tpu")
    mesh = jax.sharding.AbstractMesh((4,), ("data",), axis_types=(AxisType.Auto,), abstract_device=device)
    with jax.sharding.use_abstract_mesh(mesh):
        assert attention_kernels.target_platform() == "tpu"


def chosen(config: EncoderConfig, platform: str, monkeypatch: pytest.MonkeyPatch, **facts: Any) -> str:
    monkeypatch.setattr(attention_kernels, "target_platform", lambda: platform)
    length = facts.pop("length", 256)
    q = jnp.zeros((1, length, config.num_heads, config.head_dim))
    k = jnp.zeros((1, facts.pop("keys", length), config.num_heads, config.head_dim))
    dropping = facts.pop("dropping", False)
    return attention_kernels.choose_kernel(
        config, AttentionContext(jnp.ones((1, length), jnp.int32), **facts), q, k, dropping
    )


def test_auto_takes_a_kernel_only_where_it_is_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    auto = with_implementation(NARROW, "auto")
    assert chosen(auto, "cuda", monkeypatch) == "cudnn"
    assert chosen(auto, "tpu", monkeypatch) == "splash"
    assert chosen(auto, "cpu", monkeypatch) == "tiled" and chosen(auto, "rocm", monkeypatch) == "xla"
    for platform in ("cuda", "tpu"):
        wide = dataclasses.replace(auto, compute_dtype="float32")
        assert chosen(wide, platform, monkeypatch) == "xla"
        assert chosen(auto, platform, monkeypatch, dropping=True) == {"cuda": "pallas", "tpu": "xla"}[platform]
        assert chosen(wide, platform, monkeypatch, dropping=True) == "xla"
        assert chosen(auto, platform, monkeypatch, keys=300) == "xla"
        mask = attention_mask(jnp.ones((1, 256), jnp.int32))
        assert chosen(auto, platform, monkeypatch, mask=mask) == "xla"
    odd = dataclasses.replace(auto, hidden_size=40)
    assert chosen(odd, "cuda", monkeypatch, dropping=True) == "xla"
    large = dataclasses.replace(auto, hidden_size=512)
    assert chosen(large, "cuda", monkeypatch, dropping=True) == "xla"
    assert chosen(odd, "cuda", monkeypatch) == "xla" and chosen(odd, "tpu", monkeypatch) == "splash"
    assert chosen(auto, "cuda", monkeypatch, length=255) == "xla"
    # long rows use blocks of a window, not the full mask
    assert chosen(auto, "cuda", monkeypatch, window=128, length=4096) == "xla"
    assert chosen(auto, "cuda", monkeypatch, window=128, length=4096, dropping=True) == "xla"
    assert chosen(auto, "cuda", monkeypatch, window=128, length=128) == "cudnn"
    assert chosen(auto, "tpu", monkeypatch, window=128, length=4096) == "splash"
    monkeypatch.setattr(attention_kernels, "triton_compiles", lambda: False)
    assert chosen(auto, "cuda", monkeypatch, dropping=True) == "xla"


@pytest.mark.parametrize(
    ("implementation", "changes", "facts", "reason"),
    [
        ("cudnn", {"compute_dtype": "float32"}, {}, "compute_dtype"),
        ("splash", {"compute_dtype": "float32"}, {}, "compute_dtype"),
        ("cudnn", {"attention_dropout": 0.1}, {"dropping": True}, "attention_dropout must be 0 in training, not 0.1"),
        ("interpret", {"attention_dropout": 0.1}, {"dropping": True}, "attention_dropout"),
        ("cudnn", {"hidden_size": 40}, {}, "head size that is a multiple of 8 and at most 128, not 20"),
        ("cudnn", {"hidden_size": 512}, {}, "at most 128, not 256"),
        ("cudnn", {}, {"length": 255}, "even length, not 255"),
        ("splash", {}, {"keys": 300}, "queries and keys of the same sequences"),
    ],
)
def test_what_a_kernel_cannot_do_is_refused(
    monkeypatch: pytest.MonkeyPatch, implementation: str, changes: dict[str, Any], facts: dict[str, Any], reason: str
) -> None:
    config = dataclasses.replace(with_implementation(NARROW, implementation), **changes)
    with pytest.raises(UserError, match=f"attention_implementation={implementation} .*{reason}.*; set xla or auto"):
        chosen(config, "cpu", monkeypatch, **facts)


@pytest.mark.parametrize("implementation", ["cudnn", "splash", "interpret"])
def test_kernels_and_scores_with_terms_of_positions_are_refused(implementation: str) -> None:
    for position in ("disentangled", "relative", "relative_bias"):
        with pytest.raises(UserError, match="the kernel knows no such terms of positions"):
            EncoderConfig(attention_position=position, attention_bias="none", attention_implementation=implementation)
