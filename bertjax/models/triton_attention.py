"""Fused attention with dropout for GPUs: a Pallas kernel that never holds the scores (arXiv:2205.14135, 2307.08691).

Examples that are packed into one sequence cost what they would alone, up to a block: blocks of queries and keys without
a common segment, and those beyond the window, are skipped. Packing is therefore the form of examples of any length.

cuDNN's kernels draw their dropout from a state of the process, which no checkpoint holds; here a probability is dropped
by a hash of the key, the sequence, the head, the query and the key's position, which forward and backward pass compute
again. It is another mask than that of `dropout`, with the same rate, on every mesh. On a CPU the kernel is interpreted.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jaxtyping import Array, Bool, Float, Int, UInt32

from bertjax.models.attention_context import AttentionContext
from bertjax.models.dropout import mix_bits, random_bits
from bertjax.models.mesh import per_device, target_platform

Key = Array
BLOCK = 64
"""Queries and keys per block."""
_MASKED = -1e30  # no -inf: a query without a key would get nan


class _Settings(NamedTuple):
    """Constants of a compiled kernel."""

    window: int
    causal: bool
    rate: float
    interpret: bool


def triton_attention(
    q: Float[Array, "B S N H"],
    k: Float[Array, "B K N H"],
    v: Float[Array, "B K N H"],
    context: AttentionContext,
    dtype: Any,
    rate: float,
    key: Key | None,
) -> Float[Array, "B S N H"]:
    """Computes attention in blocks of `BLOCK` queries and keys, softmax in float32.

    Sequences are padded to a multiple of `BLOCK` with keys that nobody sees. Queries without a key get zero, and so
    does padding, which sees all real keys in the plain form: outputs at padding must not be used.

    Args:
        q, k, v, context: as in `dot_product_attention`.
        dtype: of the operands.
        rate: probability of dropping a probability.
        key: of the dropout; None = no dropout.
    """
    length = q.shape[1]

    def pad(x: Array) -> Array:
        """Pads axis 1."""
        return jnp.pad(x, ((0, 0), (0, -x.shape[1] % BLOCK), *[(0, 0)] * (x.ndim - 2)))

    words, rate = jnp.zeros((q.shape[0], q.shape[2], 2), jnp.uint32), 0.0 if key is None else rate
    if key is not None and rate:
        words = random_bits(key, words.shape, batched=True)
    settings = _Settings(context.window, context.causal, rate, interpret=target_platform() == "cpu")
    key_ids = context.segment_ids if context.key_segment_ids is None else context.key_segment_ids
    arrays = *(pad(x.astype(dtype)) for x in (q, k, v)), pad(context.segment_ids), pad(key_ids), words
    # the compiler cannot split it
    out = per_device(functools.partial(_attend, settings), (2, 2, 2, None, None, 1), 2, *arrays)
    return out[:, :length]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(
    settings: _Settings,
    q: Float[Array, "B S N H"],
    k: Float[Array, "B K N H"],
    v: Float[Array, "B K N H"],
    query_ids: Int[Array, "B S"],
    key_ids: Int[Array, "B K"],
    words: UInt32[Array, "B N 2"],
) -> Float[Array, "B S N H"]:
    """Runs the forward kernel.

    Args:
        settings: what to compile.
        q, k, v: queries, keys and values; lengths are multiples of `BLOCK`.
        query_ids, key_ids: segment ids; 0 = padding.
        words: random bits of every sequence and head, for the dropout.
    """
    return _forward(settings, q, k, v, query_ids, key_ids, words)[0]


def _forward(settings: _Settings, *inputs: Array) -> tuple[Array, tuple[Array, ...]]:
    q = inputs[0]
    logs = jax.ShapeDtypeStruct((q.shape[0], q.shape[2], q.shape[1]), jnp.float32)
    bounds = _bounds(_visible_blocks(settings, *inputs[3:5]))
    out, log_sums = _call(_forward_kernel, settings, (bounds, *inputs), "bqkkqkk", (q, logs))
    return out, (*inputs, out, log_sums)


def _backward(settings: _Settings, saved: tuple[Array, ...], grad: Array) -> tuple[Array | None, ...]:
    *inputs, out, log_sums = saved
    q, k, v = inputs[:3]
    dots = (out.astype(jnp.float32) * grad.astype(jnp.float32)).sum(-1).transpose(0, 2, 1)
    arrays = (*inputs, grad.astype(q.dtype), log_sums, dots)
    visible = _visible_blocks(settings, *inputs[3:5])
    (grad_q,) = _call(_query_gradient_kernel, settings, (_bounds(visible), *arrays), "bqkkqkkqqq", (q,))
    bounds = _bounds(visible.swapaxes(1, 2))
    grad_k, grad_v = _call(_key_gradient_kernel, settings, (bounds, *arrays), "bkqqkqkkkk", (k, v))
    return grad_q, grad_k, grad_v, None, None, None


_attend.defvjp(_forward, _backward)


def _call(
    kernel: Callable, settings: _Settings, arrays: tuple[Array, ...], parts: str, like: tuple[Any, ...]
) -> tuple[Array, ...]:
    """Runs a kernel for every block, head and sequence.

    Args:
        kernel: takes the settings, references to its parts of the arrays, and references to its blocks of the results.
        settings: what to compile.
        arrays: bounds [B, S / BLOCK, 2], and inputs [B, S, N, H], [B, N, S] or [B, S], S any length.
        parts: a letter for each: b for bounds, q where the kernel reads the block of the grid, k where it reads the
            whole sequence.
        like: arrays with the shapes and dtypes of the results.
    """
    batch, length, heads, width = like[0].shape

    def spec(x: Any, part: str) -> pl.BlockSpec:
        if part == "b":
            return pl.BlockSpec((None, None, 2), lambda block, head, sequence: (sequence, block, 0))
        whole = part == "k"
        axis = 2 if x.ndim == 3 else 1
        size = x.shape[axis] if whole else BLOCK

        def index(block: Any, head: Any, sequence: Any) -> tuple[Any, ...]:
            start = 0 if whole else block
            return {2: (sequence, start), 3: (sequence, head, start), 4: (sequence, start, head, 0)}[x.ndim]

        return pl.BlockSpec({2: (None, size), 3: (None, None, size), 4: (None, size, None, width)}[x.ndim], index)

    options = {} if settings.interpret else {"compiler_params": _compiler_params(width)}
    return pl.pallas_call(
        functools.partial(kernel, settings),
        grid=(length // BLOCK, heads, batch),
        in_specs=[spec(x, part) for x, part in zip(arrays, parts, strict=True)],
        out_specs=[spec(x, "q") for x in like],
        out_shape=[jax.ShapeDtypeStruct(x.shape, x.dtype) for x in like],
        interpret=settings.interpret,
        name=f"attention{kernel.__name__.removesuffix('_kernel')}",
        **options,
    )(*arrays)


def _compiler_params(width: int) -> Any:
    from jax.experimental.pallas import triton

    return triton.CompilerParams(num_warps=4 if width <= 64 else 8, num_stages=2)


def _forward_kernel(
    settings: _Settings,
    bounds_ref: Any,
    q_ref: Any,
    k_ref: Any,
    v_ref: Any,
    query_ids_ref: Any,
    key_ids_ref: Any,
    words_ref: Any,
    out_ref: Any,
    log_sums_ref: Any,
) -> None:
    """Computes the output of a block of queries, and the logarithm of each query's sum of exponentials."""
    block, q, query_ids = pl.program_id(0), q_ref[...], query_ids_ref[...]

    def add_keys(index: Any, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        out, largest, total = carry
        keys = pl.ds(index * BLOCK, BLOCK)
        visible = _visible(settings, query_ids, key_ids_ref[keys], block, index)
        scores = jnp.where(visible, _scores(q, k_ref[keys, :]), _MASKED)
        next_largest = jnp.maximum(largest, scores.max(axis=1))
        weights = jnp.where(visible, jnp.exp(scores - next_largest[:, None]), 0.0)
        shrink = jnp.exp(largest - next_largest)
        total = total * shrink + weights.sum(axis=1)
        weights = _drop(settings, weights, words_ref, block, index)
        out = out * shrink[:, None] + _product(weights.astype(v_ref.dtype), v_ref[keys, :], 1, 0)
        return out, next_largest, total

    initial = jnp.zeros(q.shape, jnp.float32), jnp.full(BLOCK, _MASKED, jnp.float32), jnp.zeros(BLOCK, jnp.float32)
    out, largest, total = jax.lax.fori_loop(bounds_ref[0], bounds_ref[1], add_keys, initial)
    total = jnp.where(total > 0, total, 1.0)
    out_ref[...] = (out / total[:, None]).astype(out_ref.dtype)
    log_sums_ref[...] = largest + jnp.log(total)


def _query_gradient_kernel(
    settings: _Settings,
    bounds_ref: Any,
    q_ref: Any,
    k_ref: Any,
    v_ref: Any,
    query_ids_ref: Any,
    key_ids_ref: Any,
    words_ref: Any,
    grad_ref: Any,
    log_sums_ref: Any,
    dots_ref: Any,
    grad_q_ref: Any,
) -> None:
    """Computes the gradient of a block of queries."""
    block, q, query_ids, grad = pl.program_id(0), q_ref[...], query_ids_ref[...], grad_ref[...]
    log_sums, dots = log_sums_ref[...], dots_ref[...]

    def add_keys(index: Any, grad_q: Array) -> Array:
        keys = pl.ds(index * BLOCK, BLOCK)
        visible = _visible(settings, query_ids, key_ids_ref[keys], block, index)
        weights = _weights(visible, _scores(q, k_ref[keys, :]), log_sums)
        grad_weights = _drop(settings, _product(grad, v_ref[keys, :], 1, 1), words_ref, block, index)
        grad_scores = weights * (grad_weights - dots[:, None])
        return grad_q + _product(grad_scores.astype(q.dtype), k_ref[keys, :], 1, 0)

    grad_q = jax.lax.fori_loop(bounds_ref[0], bounds_ref[1], add_keys, jnp.zeros(q.shape, jnp.float32))
    grad_q_ref[...] = (grad_q / math.sqrt(q.shape[1])).astype(grad_q_ref.dtype)


def _key_gradient_kernel(
    settings: _Settings,
    bounds_ref: Any,
    q_ref: Any,
    k_ref: Any,
    v_ref: Any,
    query_ids_ref: Any,
    key_ids_ref: Any,
    words_ref: Any,
    grad_ref: Any,
    log_sums_ref: Any,
    dots_ref: Any,
    grad_k_ref: Any,
    grad_v_ref: Any,
) -> None:
    """Computes the gradients of a block of keys and values."""
    block, k, v, key_ids = pl.program_id(0), k_ref[...], v_ref[...], key_ids_ref[...]

    def add_queries(index: Any, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        grad_k, grad_v = carry
        queries = pl.ds(index * BLOCK, BLOCK)
        q, grad = q_ref[queries, :], grad_ref[queries, :]
        visible = _visible(settings, query_ids_ref[queries], key_ids, index, block)
        weights = _weights(visible, _scores(q, k), log_sums_ref[queries])
        dropped = _drop(settings, weights, words_ref, index, block)
        grad_v = grad_v + _product(dropped.astype(v.dtype), grad, 0, 0)
        grad_weights = _drop(settings, _product(grad, v, 1, 1), words_ref, index, block)
        grad_scores = weights * (grad_weights - dots_ref[queries][:, None])
        return grad_k + _product(grad_scores.astype(q.dtype), q, 0, 0), grad_v

    zeros = jnp.zeros(k.shape, jnp.float32)
    grad_k, grad_v = jax.lax.fori_loop(bounds_ref[0], bounds_ref[1], add_queries, (zeros, zeros))
    grad_k_ref[...] = (grad_k / math.sqrt(k.shape[1])).astype(grad_k_ref.dtype)
    grad_v_ref[...] = grad_v.astype(grad_v_ref.dtype)


def _product(a: Array, b: Array, a_axis: int, b_axis: int) -> Array:
    """Sums over one axis of each of two matrices, float32."""
    return jax.lax.dot_general(a, b, (((a_axis,), (b_axis,)), ((), ())), preferred_element_type=jnp.float32)


def _scores(q: Array, k: Array) -> Array:
    return _product(q, k, 1, 1) / math.sqrt(q.shape[1])


def _weights(visible: Array, scores: Array, log_sums: Array) -> Array:
    """Returns the softmax of scores whose sums of exponentials are known."""
    return jnp.where(visible, jnp.exp(jnp.where(visible, scores, _MASKED) - log_sums[:, None]), 0.0)


def _visible(settings: _Settings, query_ids: Array, key_ids: Array, query_block: Any, key_block: Any) -> Array:
    """Returns the rule of `attention_context.visibility_mask` for real queries of a block and the keys of one."""
    query, key = query_ids[:, None], key_ids[None, :]
    visible = (key > 0) & (query == key)
    if settings.window or settings.causal:
        distance = _positions(query_block)[:, None] - _positions(key_block)[None, :]
        visible = visible & (distance >= 0) if settings.causal else visible
        visible = visible & (jnp.abs(distance) <= settings.window // 2) if settings.window else visible
    return visible


def _positions(block: Any) -> Array:
    return block * BLOCK + jnp.arange(BLOCK)


def _visible_blocks(
    settings: _Settings, query_ids: Int[Array, "B S"], key_ids: Int[Array, "B K"]
) -> Bool[Array, "B I J"]:
    """Returns False for a block of queries and one of keys whose ranges of segment ids have nothing in common.

    That skips every block of other segments if ids rise along the sequence, as packing numbers them.
    """

    def ranges(ids: Array) -> tuple[Array, Array]:
        blocks = ids.reshape(ids.shape[0], -1, BLOCK)
        return jnp.where(blocks > 0, blocks, np.iinfo(np.int32).max).min(axis=2), blocks.max(axis=2)

    (first_query, last_query), (first_key, last_key) = ranges(query_ids), ranges(key_ids)
    visible = (first_query[:, :, None] <= last_key[:, None]) & (first_key[:, None] <= last_query[:, :, None])
    distance = jnp.arange(visible.shape[1])[:, None] - jnp.arange(visible.shape[2])[None, :]
    visible = visible & (distance >= 0)[None] if settings.causal else visible
    reach = -(-(settings.window // 2) // BLOCK)
    return visible & (jnp.abs(distance) <= reach)[None] if settings.window else visible


def _bounds(visible: Bool[Array, "B I J"]) -> Int[Array, "B I 2"]:
    """Returns for each I the first visible J and the one after the last, both 0 if there is none."""
    numbers = jnp.arange(visible.shape[2], dtype=jnp.int32)[None, None]
    after = jnp.where(visible, numbers + 1, 0).max(axis=2)
    first = jnp.where(visible, numbers, np.int32(visible.shape[2])).min(axis=2)
    return jnp.stack([jnp.minimum(first, after), after], axis=2)


def _drop(settings: _Settings, x: Array, words_ref: Any, query_block: Any, key_block: Any) -> Array:
    if not settings.rate:
        return x
    keep = keep_block(words_ref[0], words_ref[1], _positions(query_block), _positions(key_block), settings.rate)
    return jnp.where(keep, x / (1 - settings.rate), 0.0)


def keep_block(first: Array, second: Array, queries: Array, keys: Array, rate: float) -> Array:
    """Returns True for the probabilities [Q, K] that dropout keeps: a hash of two words and both positions.

    Args:
        first, second: random words of the sequence and head.
        queries, keys: positions, int32.
        rate: probability of dropping one.
    """
    rows = mix_bits(queries.astype(jnp.uint32) ^ first)[:, None]
    columns = (keys.astype(jnp.uint32) * np.uint32(0x9E3779B9))[None, :]  # 2**32 / the golden ratio
    return mix_bits((rows + columns) ^ second) >= np.uint32(min(round(rate * 2**32), 2**32 - 1))
