"""cuDNN's flash attention by lengths of sequences, or by offsets of packed examples, instead of a mask as a full bias.

The custom calls are those of jax (jax-ml/jax: jax/_src/cudnn/fused_attention_stablehlo.py), whose public function has
no offsets; XLA builds cuDNN's graphs from them. There is no dropout: XLA takes its seed as a constant of the program
and its offset from a counter of the process, so masks could not be functions of seed and cursor.

cuDNN writes nothing where a token belongs to no segment, and only some versions of XLA clear the results before
(openxla/xla: pull requests 44867, 46500). That memory may hold NaN, which no mask removes later: 0 * NaN = NaN. Here
every query belongs to a segment, and so does every key but the padding of `lengths`, whose gradients are cleared.
"""

from __future__ import annotations

import functools
import json
import math
import re
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from bertjax.models.attention_context import AttentionContext
from bertjax.models.mesh import num_batch_shards, per_device, target_device_kind

_HAS_OFFSETS = re.compile(r"\bG?[HB]\d{2,3}\b")  # Hopper and Blackwell: H100, GH200, B200
_DIMENSIONS = {  # of queries and results [B, S, N, H], keys and values [B, K, N, H], scores [B, N, S, K]
    "bmm1": ((3, 3), ((0, 2), (0, 2))),
    "bmm2": ((3, 1), ((0, 1), (0, 2))),
    "bmm1_grad_gemm1": ((2, 1), ((0, 1), (0, 2))),
    "bmm1_grad_gemm2": ((3, 1), ((0, 1), (0, 2))),
    "bmm2_grad_gemm1": ((2, 1), ((0, 1), (0, 2))),
    "bmm2_grad_gemm2": ((3, 3), ((0, 2), (0, 2))),
}
"""Axes of each matmul, contracted and batch, of its left and its right factor."""


class Segments(NamedTuple):
    """Parts of the sequences of a device, whose queries attend to their keys and to no others.

    query_lengths, key_lengths
             tokens of each: [B], one per sequence; with offsets [B, R], in any sequence, the unused last, of length 0
    offsets  where each begins, in numbers from the first of all, and after them the end [B, R + 1]; None = where its
             sequence does
    """

    query_lengths: Int[Array, "*r"]
    key_lengths: Int[Array, "*r"]
    offsets: Int[Array, "B R1"] | None = None


def segment_form(context: AttentionContext, shape: tuple[int, ...]) -> str:
    """Returns what describes visibility to cuDNN: `offsets`, `lengths`, or `mask` where only a matrix does.

    Offsets need Hopper or later, and are 32-bit numbers. They are preferred, since no gradient must be cleared.

    Args:
        context: visibility.
        shape: sizes of the queries of all devices [B, S, N, H].
    """
    if context.max_examples is None or context.mask is not None or context.window or context.ranks is not None:
        return "mask"
    fits = math.ceil(shape[0] / num_batch_shards()) * math.prod(shape[1:]) < 1 << 31
    if context.key_segment_ids is None and fits and _HAS_OFFSETS.search(target_device_kind()):
        return "offsets"
    return "lengths" if context.max_examples == 1 else "mask"


def segment_attention(
    q: Float[Array, "B S N H"],
    k: Float[Array, "B K N H"],
    v: Float[Array, "B K N H"],
    context: AttentionContext,
    form: str,
) -> Float[Array, "B S N H"]:
    """Computes attention within the examples of each sequence, on every device for its part.

    With lengths, padding sees all real keys, as in the plain form; with offsets it sees padding. Gradients at padding
    are zero if those of its outputs are.

    Args:
        q, k, v, context: as in `dot_product_attention`, 16-bit.
        form: `offsets` or `lengths`: see `segment_form`.
    """
    max_examples = context.max_examples if form == "offsets" else None
    keys = context.segment_ids if context.key_segment_ids is None else context.key_segment_ids
    run = functools.partial(_run, context.causal, max_examples)
    return per_device(run, (2, 2, 2, None, None), 2, q, k, v, context.segment_ids, keys)


def _run(
    causal: bool, max_examples: int | None, q: Array, k: Array, v: Array, query_ids: Array, key_ids: Array
) -> Array:
    if max_examples is None:
        return _attend(causal, q, k, v, padded_segments(query_ids, key_ids))
    return _attend(causal, q, k, v, packed_segments(query_ids, max_examples, q.shape[2] * q.shape[3]))


def padded_segments(query_ids: Int[Array, "B S"], key_ids: Int[Array, "B K"]) -> Segments:
    """Returns one segment per sequence: all queries, and the real keys, which come first.

    A sequence without a real key gets one all the same: cuDNN before 9.25 gives NaN for queries without a key
    (NVIDIA/cudnn-frontend: issue 943).

    Args:
        query_ids, key_ids: examples of queries and keys; 0 = padding.
    """
    real = (key_ids > 0).sum(axis=1, dtype=jnp.int32)
    return Segments(jnp.full(len(query_ids), query_ids.shape[1], jnp.int32), jnp.maximum(real, 1))


def packed_segments(segment_ids: Int[Array, "B S"], max_examples: int, token_size: int) -> Segments:
    """Returns a segment per example and one for the padding of every sequence.

    Args:
        segment_ids: example of each token; 0 = padding, after the examples.
        max_examples: most examples per sequence, on average.
        token_size: numbers per token, N * H.
    """
    batch, slots = len(segment_ids), max_examples + 1
    changes = segment_ids[:, 1:] != segment_ids[:, :-1]
    first = jnp.pad(changes, ((0, 0), (1, 0)), constant_values=True).reshape(-1)
    numbers = jnp.arange(1, batch * (slots + 1) + 1)
    # token at which segment 1, 2, ... begins; the number of all tokens if there is none
    begins = jnp.searchsorted(jnp.cumsum(first), numbers, method="scan_unrolled").astype(jnp.int32)
    lengths = jnp.diff(begins)[: batch * slots].reshape(batch, slots)
    return Segments(lengths, lengths, begins.reshape(batch, slots + 1) * token_size)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(causal: bool, q: Array, k: Array, v: Array, segments: Segments) -> Array:
    return _forward_call(causal, q, k, v, segments, training=False)[0]


def _forward(causal: bool, q: Array, k: Array, v: Array, segments: Segments) -> tuple[Array, tuple[Any, ...]]:
    out, log_sums = _forward_call(causal, q, k, v, segments, training=True)
    return out, (q, k, v, segments, out, log_sums)


def _backward(causal: bool, saved: tuple[Any, ...], grad: Array) -> tuple[Array | None, ...]:
    q, k, v, segments, out, log_sums = saved
    operands = (q, k, v, log_sums, grad, out)
    grads = _call("fmhaSoftmaxBackward", causal, operands, segments, [_heads_first(x) for x in (q, k, v)])
    grad_q, grad_k, grad_v = (x.transpose(0, 2, 1, 3) for x in grads)
    if segments.offsets is None:
        real = (jnp.arange(k.shape[1])[None] < segments.key_lengths[:, None])[:, :, None, None]
        grad_k, grad_v = (jnp.where(real, x, jnp.zeros((), x.dtype)) for x in (grad_k, grad_v))
    return grad_q, grad_k, grad_v, None


_attend.defvjp(_forward, _backward)


def _forward_call(causal: bool, q: Array, k: Array, v: Array, segments: Segments, training: bool) -> list[Array]:
    """Returns the averages [B, S, N, H], and in training the logarithms of the sums of exponentials."""
    log_sums = jax.ShapeDtypeStruct((segments.query_lengths.size, q.shape[2], q.shape[1]), jnp.float32)
    out, *rest = _call("fmhaSoftmax", causal, (q, k, v), segments, [_heads_first(q), *[log_sums] * training])
    return [out.transpose(0, 2, 1, 3), *rest]


def _heads_first(x: Array) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((x.shape[0], x.shape[2], x.shape[1], x.shape[3]), x.dtype)


def _call(
    name: str, causal: bool, operands: tuple[Array, ...], segments: Segments, results: list[jax.ShapeDtypeStruct]
) -> list[Array]:
    """Emits a call of cuDNN; its results [B, N, S, H] lie in memory as [B, S, N, H]."""
    query_lengths, key_lengths, offsets = segments
    operands += (query_lengths, key_lengths) if offsets is None else (query_lengths, key_lengths, offsets, offsets)
    call = jax.ffi.ffi_call(
        f"__cudnn${name}",
        [*results, jax.ShapeDtypeStruct((0,), jnp.uint8)],  # the last one is memory that XLA adds
        vmap_method="sequential",
        output_layouts=[*((0, 2, 1, 3) if len(each.shape) == 4 else None for each in results), None],
        custom_call_api_version=2,
        legacy_backend_config=json.dumps(_settings(operands[0], operands[1], segments, causal, "Backward" in name)),
    )
    return list(call(*operands)[:-1])


def _settings(q: Array, k: Array, segments: Segments, causal: bool, backward: bool) -> dict[str, Any]:
    """Returns the fields of XLA's `CudnnfMHABackendConfig` as JSON."""
    batch, length, heads, width = q.shape
    packed = segments.offsets is not None
    mask = "CAUSAL" if causal else "NO_MASK"  # with offsets XLA masks by lengths anyway
    if not packed:
        mask = "PADDING_CAUSAL" if causal else "PADDING"
    layout: dict[str, Any] = {name: [] for name in ("dim_level_types", "dim_unique", "dim_ordered", "tiles")}
    layout |= dict.fromkeys(("element_size_in_bits", "memory_space", "dynamic_shape_metadata_prefix_bytes"), "0")
    layout |= dict.fromkeys(("index_primitive_type", "pointer_primitive_type"), "PRIMITIVE_TYPE_INVALID")
    scores = {
        "element_type": {"bfloat16": "BF16", "float16": "F16"}[q.dtype.name],
        "dimensions": [str(size) for size in (batch, heads, length, k.shape[1])],
        "tuple_shapes": [],
        "layout": layout | {"minor_to_major": ["3", "2", "1", "0"]},
        "is_dynamic_dimension": [False] * 4,
    }
    attention = {
        "algorithm": {
            "algo_id": "0",
            "math_type": "TENSOR_OP_MATH",
            "tuning_knobs": {"17": "1", "24": "0"},
            "is_cudnn_frontend": True,
            "workspace_size": "0",
        },
        "fmha_scale": 1.0 / math.sqrt(width),
        "intermediate_tensor_shape": scores,
        "is_flash_attention": True,
        "mask_type": mask,
        "dropout_rate": 0.0,
        "seed": 42,
        "sliding_window_length": 0,
        "max_seg_per_batch": segments.query_lengths.shape[1] if packed else 1,
        "is_paged_attention": False,
    }
    for matmul, (contracted, batches) in _DIMENSIONS.items():
        if ("grad" in matmul) == backward:
            attention[f"{matmul}_dot_dimension_numbers"] = {
                f"{side}_{kind}_dimensions": [str(axis) for axis in axes]
                for side, one, many in zip(("lhs", "rhs"), contracted, batches, strict=True)
                for kind, axes in (("contracting", (one,)), ("batch", many))
            }
    return {"operation_queue_id": "0", "cudnn_fmha_backend_config": attention}
