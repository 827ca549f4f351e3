"""Calls of cuDNN are those of jax, and their lengths and offsets describe the attention of the plain form."""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src.cudnn import fused_attention_stablehlo as private
from jax.sharding import AxisType

from bertjax.config.model import EncoderConfig
from bertjax.models import attention_kernels, cudnn, mesh
from bertjax.models.attention import average_values, dot_product_scores
from bertjax.models.attention_context import AttentionContext

MAXIMUM, ROWS, LENGTH, HEADS, WIDTH = 4, 4, 24, 2, 8
H100, A100 = "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB"
CALL = re.compile(r"stablehlo\.custom_call @(__cudnn[^(]+)\(([^)]*)\) \{(.*)\} : (.*)$", re.MULTILINE)


def packed_ids() -> jax.Array:
    """Returns sequences of several examples: with padding, full, of one token each and empty."""
    ids = np.zeros((ROWS, LENGTH), np.int32)
    ids[0, :7], ids[0, 7:15], ids[0, 15:19] = 1, 2, 3
    ids[1, :20], ids[1, 20:] = 1, 2
    ids[2, :4] = 1, 2, 3, 4
    return jnp.asarray(ids)


def single_ids() -> jax.Array:
    """Returns sequences of one example: with padding, full, of one token and empty."""
    return (jnp.arange(LENGTH)[None] < jnp.asarray([17, LENGTH, 1, 0])[:, None]).astype(jnp.int32)


def calls(function: Callable, *shapes: Any) -> list[tuple[Any, ...]]:
    """Returns target, settings, and what else is written of the calls of cuDNN in a program for GPUs."""
    text = jax.jit(function).trace(*shapes).lower(lowering_platforms=("cuda",)).as_text()
    results = []
    for target, operands, attributes, types in CALL.findall(text):
        settings = re.search(r'backend_config = ("(?:[^"\\]|\\.)*")', attributes)
        assert settings is not None
        parsed = json.loads(settings[1].replace("\\22", '\\"'))
        results.append((target, operands.count(","), json.loads(parsed), attributes.replace(settings[0], ""), types))
    return results


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("form", ["lengths", "offsets"])
@pytest.mark.parametrize("training", [False, True])
def test_calls_are_those_of_jax(monkeypatch: pytest.MonkeyPatch, form: str, causal: bool, training: bool) -> None:
    """Target, settings, operands, results and their layouts; jax is not asked for its GPU and its cuDNN."""
    monkeypatch.setattr(private, "check_cudnn_version", lambda: 91000)
    monkeypatch.setattr(private, "check_compute_capability", lambda _: True)
    monkeypatch.setattr(private, "is_cuda_compute_capability_equal", lambda _: False)
    mask = {"lengths": "PADDING", "offsets": ""}[form] + ("_CAUSAL" if causal else "")
    kind = private.MaskType[mask.strip("_") or "NO_MASK"]
    sizes = (ROWS,) if form == "lengths" else (ROWS, MAXIMUM + 1)

    def ours(q: jax.Array, k: jax.Array, v: jax.Array, ids: jax.Array) -> jax.Array:
        context = AttentionContext(ids, causal=causal, max_examples=MAXIMUM)
        return cudnn.segment_attention(q, k, v, context, form)

    def theirs(q: jax.Array, k: jax.Array, v: jax.Array, ids: jax.Array) -> jax.Array:
        lengths, offsets = jnp.zeros(sizes, jnp.int32), None
        if form == "offsets":
            offsets = jnp.zeros((ROWS, MAXIMUM + 2), jnp.int32)
        return private.dot_product_attention(
            q, k, v, None, None, lengths, lengths, offsets, offsets, scale=1 / math.sqrt(WIDTH), mask_type=kind
        )

    def program(attend: Callable) -> Callable:
        if not training:
            return attend
        return jax.grad(lambda *inputs: attend(*inputs).astype(jnp.float32).sum(), (0, 1, 2))

    vectors = jax.ShapeDtypeStruct((ROWS, LENGTH, HEADS, WIDTH), jnp.bfloat16)
    shapes = (*[vectors] * 3, jax.ShapeDtypeStruct((ROWS, LENGTH), jnp.int32))
    emitted = calls(program(ours), *shapes)
    assert [each[0] for each in emitted] == ["__cudnn$fmhaSoftmax", "__cudnn$fmhaSoftmaxBackward"][: 1 + training]
    assert emitted == calls(program(theirs), *shapes)


class Layout:
    """What the lengths and offsets of a call say: the segments of queries and keys, and who sees whom.

    All sequences follow one another: T queries, U keys. `belongs` is True where a token belongs to a segment, [R, T]
    and [R, U], `positions` counts tokens in theirs.
    """

    def __init__(self, settings: dict[str, Any], arrays: tuple[jax.Array, ...], token_size: int):
        batch, _, *sizes = map(int, settings["intermediate_tensor_shape"]["dimensions"])
        count = batch * settings["max_seg_per_batch"]
        lengths, begins = [x.reshape(-1) for x in arrays[:2]], [jnp.arange(batch) * size for size in sizes]
        if len(arrays) == 4:
            begins = [x.reshape(-1)[:count] // token_size for x in arrays[2:]]
        self.belongs, self.positions = [], []
        for length, begin, size in zip(lengths, begins, sizes, strict=True):
            index = jnp.arange(batch * size)[None]
            inside = (index >= begin[:, None]) & (index < (begin + length)[:, None])
            self.belongs.append(inside)
            self.positions.append(index[0] - begin @ inside)
        queries, keys = self.belongs
        self.visible = (queries[:, :, None] & keys[:, None, :]).any(axis=0)
        if "CAUSAL" in settings["mask_type"]:
            self.visible &= self.positions[0][:, None] >= self.positions[1][None]

    def restore(self, x: jax.Array, side: int, like: Any) -> jax.Array:
        """[T, N, H] -> [B, N, S, H], NaN where a token belongs to no segment."""
        batch, heads, _, width = like.shape
        x = jnp.where(self.belongs[side].any(axis=0)[:, None, None], x, jnp.nan)
        return x.reshape(batch, -1, heads, width).transpose(0, 2, 1, 3).astype(like.dtype)


def literal_call(target: str, results: Any, *, legacy_backend_config: str, **_: Any) -> Callable:
    """Returns what such a call of cuDNN computes, as its operands say; memory that it does not write is NaN."""
    settings = json.loads(legacy_backend_config)["cudnn_fmha_backend_config"]
    scale = settings["fmha_scale"]

    def run(q: jax.Array, k: jax.Array, v: jax.Array, *others: jax.Array) -> list[jax.Array]:
        saved, arrays = (others[:3], others[3:]) if "Backward" in target else ((), others)
        layout = Layout(settings, arrays, q.shape[2] * q.shape[3])
        q, k, v = (x.astype(jnp.float32).reshape(-1, *x.shape[2:]) for x in (q, k, v))
        scores = jnp.where(layout.visible[None], scale * jnp.einsum("qnh,knh->nqk", q, k), -jnp.inf)
        slots = jnp.argmax(layout.belongs[0], axis=0), slice(None), layout.positions[0]  # of the queries in `log_sums`
        if not saved:
            log_sums = jax.nn.logsumexp(scores, axis=-1)
            out = layout.restore(jnp.einsum("nqk,knh->qnh", jnp.exp(scores - log_sums[..., None]), v), 0, results[0])
            written = [jnp.full(each.shape, jnp.nan).at[slots].set(log_sums.T) for each in results[1:-1]]
            return [out, *written, jnp.zeros(0)]
        log_sums, grad, out = saved[0], *(x.astype(jnp.float32).reshape(q.shape) for x in saved[1:])
        weights = jnp.exp(scores - log_sums[slots].T[..., None])
        dots = jnp.einsum("qnh,knh->nqk", grad, v) - (grad * out).sum(axis=-1).T[..., None]
        grads = scale * weights * dots
        products = ("nqk,knh->qnh", grads, k), ("nqk,qnh->knh", grads, q), ("nqk,qnh->knh", weights, grad)
        of = zip(products, (0, 1, 1), results, strict=False)
        return [*(layout.restore(jnp.einsum(*each), side, like) for each, side, like in of), jnp.zeros(0)]

    return run


def plain(q: jax.Array, k: jax.Array, v: jax.Array, context: AttentionContext) -> jax.Array:
    config = EncoderConfig(hidden_size=HEADS * WIDTH, num_heads=HEADS)
    q, k, v = (x.astype(jnp.float32) for x in (q, k, v))
    return average_values(dot_product_scores(q, k, config), v, context.visible(), config, None)


def values_and_gradients(attend: Callable, real: jax.Array, num_keys: int) -> list[np.ndarray]:
    """Returns the outputs of all tokens, and the gradients of a function of those that are real."""
    rng = np.random.default_rng(0)
    q, k, v, weights = (
        jnp.asarray(rng.normal(size=(ROWS, size, HEADS, WIDTH)), jnp.bfloat16)
        for size in (LENGTH, num_keys, num_keys, LENGTH)
    )

    def loss(q: jax.Array, k: jax.Array, v: jax.Array) -> tuple[jax.Array, jax.Array]:
        out = attend(q, k, v).astype(jnp.float32)
        return jnp.where(real[:, :, None, None], out * weights, 0.0).sum(), out

    (_, out), gradients = jax.jit(jax.value_and_grad(loss, (0, 1, 2), has_aux=True))(q, k, v)
    return [np.asarray(each, np.float32) for each in (out, *gradients)]


def check(context: AttentionContext, form: str, num_keys: int = LENGTH) -> None:
    """Checks values and gradients; nothing may be NaN, and gradients at padding must be zero."""
    real = context.segment_ids > 0
    if context.key_segment_ids is not None:
        real &= (context.key_segment_ids > 0).any(axis=1, keepdims=True)
    run = functools.partial(cudnn.segment_attention, context=context, form=form)
    out, *gradients = values_and_gradients(run, real, num_keys)
    expected, *expected_gradients = values_and_gradients(functools.partial(plain, context=context), real, num_keys)
    assert np.isfinite(out).all()
    compared = real if form == "offsets" else real.any(axis=1)  # padding, too: it sees the same keys
    assert np.abs(out - expected)[np.asarray(compared)].max() < 2e-2
    for mine, theirs in zip(gradients, expected_gradients, strict=True):
        assert np.abs(mine - theirs).max() < 5e-2
    keys = context.segment_ids if context.key_segment_ids is None else context.key_segment_ids
    for mine, ids in zip(gradients, (context.segment_ids, keys, keys), strict=True):
        assert not mine[np.asarray(ids) == 0].any()


@pytest.mark.parametrize("causal", [False, True])
def test_offsets_are_those_of_packed_examples(monkeypatch: pytest.MonkeyPatch, causal: bool) -> None:
    monkeypatch.setattr(jax.ffi, "ffi_call", literal_call)
    check(AttentionContext(packed_ids(), causal=causal, max_examples=MAXIMUM), "offsets")
    check(AttentionContext(single_ids(), causal=causal, max_examples=1), "offsets")


@pytest.mark.parametrize("causal", [False, True])
def test_lengths_are_those_of_padded_sequences(monkeypatch: pytest.MonkeyPatch, causal: bool) -> None:
    monkeypatch.setattr(jax.ffi, "ffi_call", literal_call)
    check(AttentionContext(single_ids(), causal=causal, max_examples=1), "lengths")


def test_lengths_are_those_of_the_keys_in_cross_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax.ffi, "ffi_call", literal_call)
    keys = (jnp.arange(30)[None] < jnp.asarray([30, 5, 12, 0])[:, None]).astype(jnp.int32)
    check(AttentionContext(single_ids(), key_segment_ids=keys, max_examples=1), "lengths", 30)


@pytest.mark.parametrize("form", ["lengths", "offsets"])
def test_every_device_has_offsets_of_its_own(monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    monkeypatch.setattr(jax.ffi, "ffi_call", literal_call)
    shards = jax.make_mesh((2, 2, 2), ("data", "fsdp", "tensor"), axis_types=(AxisType.Auto,) * 3)
    with jax.set_mesh(shards):
        check(AttentionContext(single_ids(), max_examples=1), form)
        if form == "offsets":
            check(AttentionContext(packed_ids(), max_examples=MAXIMUM), form)


def test_a_sequence_may_have_more_examples_where_others_have_fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Offsets are one list for all sequences of a device, so padding before an example is right, too."""
    monkeypatch.setattr(jax.ffi, "ffi_call", literal_call)
    ids = packed_ids().at[3, 5:9].set(1)
    check(AttentionContext(ids, max_examples=3), "offsets")


@pytest.mark.parametrize(
    ("kind", "facts", "form"),
    [
        (H100, {"max_examples": 8}, "offsets"),
        ("NVIDIA GH200 480GB", {"max_examples": 1}, "offsets"),
        ("NVIDIA B200", {"max_examples": 8, "causal": True}, "offsets"),
        (A100, {"max_examples": 8}, "mask"),
        (A100, {"max_examples": 1}, "lengths"),
        ("NVIDIA L4", {"max_examples": 1, "causal": True}, "lengths"),
        (H100, {}, "mask"),
        (H100, {"max_examples": 1, "window": 8}, "mask"),
        (H100, {"max_examples": 1, "key_segment_ids": jnp.ones((ROWS, 30), jnp.int32)}, "lengths"),
        (H100, {"max_examples": 8, "key_segment_ids": jnp.ones((ROWS, 30), jnp.int32)}, "mask"),
    ],
)
def test_what_examples_say_needs_no_mask(
    monkeypatch: pytest.MonkeyPatch, kind: str, facts: dict[str, Any], form: str
) -> None:
    monkeypatch.setattr(cudnn, "target_device_kind", lambda: kind)
    assert cudnn.segment_form(AttentionContext(packed_ids(), **facts), (ROWS, LENGTH, HEADS, WIDTH)) == form


def test_offsets_that_need_more_than_32_bits_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cudnn, "target_device_kind", lambda: H100)
    context, shape = AttentionContext(packed_ids(), max_examples=8), (2048, 1024, 16, 64)
    assert cudnn.segment_form(context, shape) == "mask"
    shards = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    with jax.set_mesh(shards):
        assert cudnn.segment_form(context, shape) == "offsets"


def test_the_kind_of_a_device_is_that_of_the_mesh() -> None:
    device = jax.sharding.AbstractDevice(A100, None, "gpu")
    abstract = jax.sharding.AbstractMesh((4,), ("data",), axis_types=(AxisType.Auto,), abstract_device=device)
    assert mesh.target_device_kind() == jax.devices()[0].device_kind
    with jax.sharding.use_abstract_mesh(abstract):
        assert mesh.target_device_kind() == A100 and mesh.target_platform() == "cuda"


def test_dots_keeps_the_results_of_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rematerialization by `dots` runs the forward kernel once."""
    from bertjax.models.layer_stack import _is_matmul

    def attend(q: jax.Array) -> jax.Array:
        context = AttentionContext(single_ids(), max_examples=1)
        return cudnn.segment_attention(q, q, q, context, "offsets").astype(jnp.float32).sum()

    saving = jax.checkpoint(attend, policy=_is_matmul)
    shape = jax.ShapeDtypeStruct((ROWS, LENGTH, HEADS, WIDTH), jnp.bfloat16)
    assert [each[0] for each in calls(jax.grad(saving), shape)] == [
        "__cudnn$fmhaSoftmax",
        "__cudnn$fmhaSoftmaxBackward",
    ]


def test_attention_by_cudnn_takes_the_form_without_a_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cudnn, "target_device_kind", lambda: H100)
    shape = jax.ShapeDtypeStruct((ROWS, LENGTH, HEADS, WIDTH), jnp.float32)
    context = AttentionContext(packed_ids(), max_examples=MAXIMUM)
    emitted = calls(lambda q: attention_kernels.cudnn_attention(q, q, q, context), shape)
    assert [each[0] for each in emitted] == ["__cudnn$fmhaSoftmax"]
