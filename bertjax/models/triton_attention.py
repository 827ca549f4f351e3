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
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array, Float, Int, UInt32

from bertjax.models.attention_context import AttentionContext
from bertjax.models.dropout import random_bits
from bertjax.models.mesh import per_device, target_platform
from bertjax.models.triton_blocks import (
    BLOCK,
    KernelSettings,
    block_bounds,
    drop_pairs,
    product,
    visible_blocks,
    visible_pairs,
)
from bertjax.models.triton_positions import SPAN, Positions, distance_table, sum_diagonals

Key = Array
_MASKED = -1e30  # no -inf: a query without a key would get nan


def triton_attention(
    q: Float[Array, "B S N H"],
    k: Float[Array, "B K N H"],
    v: Float[Array, "B K N H"],
    context: AttentionContext,
    dtype: Any,
    rate: float,
    key: Key | None,
    tables: Mapping[str, Float[Array, "D N H"]] | None = None,
) -> Float[Array, "B S N H"]:
    """Computes attention in blocks of `BLOCK` queries and keys, softmax in float32.

    Sequences are padded to a multiple of `BLOCK` with keys that nobody sees. Queries without a key get zero, and so
    does padding, which sees all real keys in the plain form: outputs at padding must not be used.

    Args:
        q, k, v, context: as in `dot_product_attention`.
        dtype: of the operands.
        rate: probability of dropping a probability.
        key: of the dropout; None = no dropout.
        tables: terms of disentangled attention (c2p, p2c) and the projected embedding of every distance, falling from
            S - 1 to 1 - S; None = no term.
    """
    length = q.shape[1]

    def pad(x: Array) -> Array:
        """Pads axis 1."""
        return jnp.pad(x, ((0, 0), (0, -x.shape[1] % BLOCK), *[(0, 0)] * (x.ndim - 2)))

    words, rate = jnp.zeros((q.shape[0], q.shape[2], 2), jnp.uint32), 0.0 if key is None else rate
    if key is not None and rate:
        words = random_bits(key, words.shape, batched=True)
    tables = {} if tables is None else tables
    settings = KernelSettings(context.window, context.causal, rate, target_platform() == "cpu", tuple(tables))
    key_ids = context.segment_ids if context.key_segment_ids is None else context.key_segment_ids
    arrays = *(pad(x.astype(dtype)) for x in (q, k, v)), pad(context.segment_ids), pad(key_ids), words
    padded = [distance_table(each.astype(dtype), arrays[0].shape[1]) for each in tables.values()]
    # the compiler cannot split it
    run, axes = functools.partial(_attend, settings), (2, 2, 2, None, None, 1)
    out = per_device(run, (*axes, *[1] * len(padded)), 2, *arrays, *padded, shared=len(padded))
    return out[:, :length]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(
    settings: KernelSettings,
    q: Float[Array, "B S N H"],
    k: Float[Array, "B K N H"],
    v: Float[Array, "B K N H"],
    query_ids: Int[Array, "B S"],
    key_ids: Int[Array, "B K"],
    words: UInt32[Array, "B N 2"],
    *tables: Float[Array, "R N H"],
) -> Float[Array, "B S N H"]:
    """Runs the forward kernel.

    Args:
        settings: what to compile.
        q, k, v: queries, keys and values; lengths are multiples of `BLOCK`.
        query_ids, key_ids: segment ids; 0 = padding.
        words: random bits of every sequence and head, for the dropout.
        tables: of `triton_positions`, one per term.
    """
    return _forward(settings, q, k, v, query_ids, key_ids, words, *tables)[0]


def _forward(settings: KernelSettings, *inputs: Array) -> tuple[Array, tuple[Array, ...]]:
    q, bounds = inputs[0], block_bounds(visible_blocks(settings, *inputs[3:5]))
    logs = jax.ShapeDtypeStruct((q.shape[0], q.shape[2], q.shape[1]), jnp.float32)
    out, log_sums = _call(_forward_kernel, settings, (bounds, *inputs[:6]), "bqkkqkk", inputs[6:], (q, logs))
    return out, (*inputs, out, log_sums)


def _backward(settings: KernelSettings, saved: tuple[Array, ...], grad: Array) -> tuple[Array | None, ...]:
    *inputs, out, log_sums = saved
    inputs, tables = inputs[:6], inputs[6:]
    q, k, v = inputs[:3]
    dots = (out.astype(jnp.float32) * grad.astype(jnp.float32)).sum(-1).transpose(0, 2, 1)
    arrays = (*inputs, grad.astype(q.dtype), log_sums, dots)
    visible = visible_blocks(settings, *inputs[3:5])
    bounds, by_key = block_bounds(visible), block_bounds(visible.swapaxes(1, 2))
    (grad_q,) = _call(_query_gradient_kernel, settings, (bounds, *arrays), "bqkkqkkqqq", tables, (q,))
    grad_k, grad_v = _call(_key_gradient_kernel, settings, (by_key, *arrays), "bkqqkqkkkk", tables, (k, v))
    grad_tables: tuple[Array, ...] = ()
    if tables:
        blocks = q.shape[1] // BLOCK + k.shape[1] // BLOCK - 1
        like = jax.ShapeDtypeStruct((q.shape[0], blocks, q.shape[2], SPAN, q.shape[3]), jnp.float32)
        parts = _call(_table_gradient_kernel, settings, arrays, "k" * 9, tables, (like,) * len(tables))
        grad_tables = tuple(sum_diagonals(each).astype(table.dtype) for each, table in zip(parts, tables, strict=True))
    return grad_q, grad_k, grad_v, None, None, None, *grad_tables


_attend.defvjp(_forward, _backward)


def _call(
    kernel: Callable,
    settings: KernelSettings,
    arrays: tuple[Array, ...],
    parts: str,
    tables: Sequence[Array],
    like: tuple[Any, ...],
) -> tuple[Array, ...]:
    """Runs a kernel for every block, head and sequence.

    Args:
        kernel: takes the settings, the terms of positions, references to its parts of the arrays, and references to its
            blocks of the results.
        settings: what to compile.
        arrays: bounds [B, S / BLOCK, 2], and inputs [B, S, N, H], [B, N, S] or [B, S], S any length.
        parts: a letter for each: b for bounds, q where the kernel reads the block of the grid, k where it reads the
            whole sequence.
        tables: of the terms [R, N, H], read whole.
        like: arrays with the shapes and dtypes of the results: as `arrays`, or [B, I, N, C, H] for I blocks.
    """
    tokens = next(x for x in arrays if x.ndim == 4)
    batch, _, heads, width = tokens.shape
    blocks = like[0].shape[1] // (1 if like[0].ndim == 5 else BLOCK)

    def spec(x: Any, part: str) -> pl.BlockSpec:
        if part == "b":
            return pl.BlockSpec((None, None, 2), lambda block, head, sequence: (sequence, block, 0))
        if x.ndim == 5:
            return pl.BlockSpec(
                (None, None, None, *x.shape[3:]), lambda block, head, sequence: (sequence, block, head, 0, 0)
            )
        whole = part == "k"
        axis = 2 if x.ndim == 3 else 1
        size = x.shape[axis] if whole else BLOCK

        def index(block: Any, head: Any, sequence: Any) -> tuple[Any, ...]:
            start = 0 if whole else block
            return {2: (sequence, start), 3: (sequence, head, start), 4: (sequence, start, head, 0)}[x.ndim]

        return pl.BlockSpec({2: (None, size), 3: (None, None, size), 4: (None, size, None, width)}[x.ndim], index)

    table_specs = [pl.BlockSpec((x.shape[0], None, width), lambda block, head, sequence: (0, head, 0)) for x in tables]
    memory = [jax.ShapeDtypeStruct((batch, blocks, heads, BLOCK, SPAN), tokens.dtype)] * bool(tables)
    options = {} if settings.interpret else {"compiler_params": _compiler_params(width, bool(tables))}

    def run(*refs: Any) -> None:
        *others, scratch = refs if tables else (*refs, None)
        positions = Positions(settings.terms, tuple(others[: len(tables)]), scratch, settings.interpret)
        kernel(settings, positions, *others[len(tables) :])

    results = pl.pallas_call(
        run,
        grid=(blocks, heads, batch),
        in_specs=[*table_specs, *(spec(x, part) for x, part in zip(arrays, parts, strict=True))],
        out_specs=[spec(x, "q") for x in (*like, *memory)],
        out_shape=[jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (*like, *memory)],
        interpret=settings.interpret,
        name=f"{'disentangled_' if tables else ''}attention{kernel.__name__.removesuffix('_kernel')}",
        **options,
    )(*tables, *arrays)
    return tuple(results[: len(like)])


def _compiler_params(width: int, has_memory: bool) -> Any:
    from jax.experimental.pallas import triton

    # No loads of a later block ahead of time where these read what the kernel writes.
    return triton.CompilerParams(num_warps=4 if width <= 64 else 8, num_stages=1 if has_memory else 2)


def _forward_kernel(
    settings: KernelSettings,
    positions: Positions,
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
        visible = visible_pairs(settings, query_ids, key_ids_ref[keys], block, index)
        scores = jnp.where(visible, _scores(positions, q, k_ref[keys, :], positions.first_row(block, index)), _MASKED)
        next_largest = jnp.maximum(largest, scores.max(axis=1))
        weights = jnp.where(visible, jnp.exp(scores - next_largest[:, None]), 0.0)
        shrink = jnp.exp(largest - next_largest)
        total = total * shrink + weights.sum(axis=1)
        weights = drop_pairs(settings, weights, words_ref, block, index)
        out = out * shrink[:, None] + product(weights.astype(v_ref.dtype), v_ref[keys, :], 1, 0)
        return out, next_largest, total

    initial = jnp.zeros(q.shape, jnp.float32), jnp.full(BLOCK, _MASKED, jnp.float32), jnp.zeros(BLOCK, jnp.float32)
    out, largest, total = jax.lax.fori_loop(bounds_ref[0], bounds_ref[1], add_keys, initial)
    total = jnp.where(total > 0, total, 1.0)
    out_ref[...] = (out / total[:, None]).astype(out_ref.dtype)
    log_sums_ref[...] = largest + jnp.log(total)


def _query_gradient_kernel(
    settings: KernelSettings,
    positions: Positions,
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
        visible, row = (
            visible_pairs(settings, query_ids, key_ids_ref[keys], block, index),
            positions.first_row(block, index),
        )
        weights = _weights(visible, _scores(positions, q, k_ref[keys, :], row), log_sums)
        grad_weights = drop_pairs(settings, product(grad, v_ref[keys, :], 1, 1), words_ref, block, index)
        grad_scores = (weights * (grad_weights - dots[:, None])).astype(q.dtype)
        return grad_q + product(grad_scores, k_ref[keys, :], 1, 0) + positions.query_gradient(grad_scores, row)

    grad_q = jax.lax.fori_loop(bounds_ref[0], bounds_ref[1], add_keys, jnp.zeros(q.shape, jnp.float32))
    grad_q_ref[...] = (grad_q / _divisor(positions, q)).astype(grad_q_ref.dtype)


def _key_gradient_kernel(
    settings: KernelSettings,
    positions: Positions,
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
        visible, row = (
            visible_pairs(settings, query_ids_ref[queries], key_ids, index, block),
            positions.first_row(index, block),
        )
        weights = _weights(visible, _scores(positions, q, k, row), log_sums_ref[queries])
        dropped = drop_pairs(settings, weights, words_ref, index, block)
        grad_v = grad_v + product(dropped.astype(v.dtype), grad, 0, 0)
        grad_weights = drop_pairs(settings, product(grad, v, 1, 1), words_ref, index, block)
        grad_scores = (weights * (grad_weights - dots_ref[queries][:, None])).astype(q.dtype)
        return grad_k + product(grad_scores, q, 0, 0) + positions.key_gradient(grad_scores, row), grad_v

    zeros = jnp.zeros(k.shape, jnp.float32)
    grad_k, grad_v = jax.lax.fori_loop(bounds_ref[0], bounds_ref[1], add_queries, (zeros, zeros))
    grad_k_ref[...] = (grad_k / _divisor(positions, k)).astype(grad_k_ref.dtype)
    grad_v_ref[...] = grad_v.astype(grad_v_ref.dtype)


def _table_gradient_kernel(
    settings: KernelSettings,
    positions: Positions,
    q_ref: Any,
    k_ref: Any,
    v_ref: Any,
    query_ids_ref: Any,
    key_ids_ref: Any,
    words_ref: Any,
    grad_ref: Any,
    log_sums_ref: Any,
    dots_ref: Any,
    *grad_table_refs: Any,
) -> None:
    """Computes the gradients of the rows of the tables that the blocks of one diagonal read."""
    query_blocks, key_blocks = q_ref.shape[0] // BLOCK, k_ref.shape[0] // BLOCK
    shift, row = pl.program_id(0) - (key_blocks - 1), pl.program_id(0) * BLOCK

    def add(block: Any, totals: tuple[Array, ...]) -> tuple[Array, ...]:
        queries, keys = pl.ds(block * BLOCK, BLOCK), pl.ds((block - shift) * BLOCK, BLOCK)
        q, k, v, grad = q_ref[queries, :], k_ref[keys, :], v_ref[keys, :], grad_ref[queries, :]
        visible = visible_pairs(settings, query_ids_ref[queries], key_ids_ref[keys], block, block - shift)
        weights = _weights(visible, _scores(positions, q, k, row), log_sums_ref[queries])
        grad_weights = drop_pairs(settings, product(grad, v, 1, 1), words_ref, block, block - shift)
        grad_scores = (weights * (grad_weights - dots_ref[queries][:, None])).astype(q.dtype)
        parts = positions.table_gradients(grad_scores, q, k)
        return tuple(total + part for total, part in zip(totals, parts, strict=True))

    zeros = tuple(jnp.zeros((SPAN, q_ref.shape[1]), jnp.float32) for _ in grad_table_refs)
    bounds = jnp.maximum(shift, 0), jnp.minimum(query_blocks, key_blocks + shift)
    for ref, total in zip(grad_table_refs, jax.lax.fori_loop(*bounds, add, zeros), strict=True):
        ref[...] = total / _divisor(positions, q_ref)


def _scores(positions: Positions, q: Array, k: Array, row: Any) -> Array:
    scores = product(q, k, 1, 1)
    scores = scores + positions.scores(q, k, row) if positions.terms else scores
    return scores / _divisor(positions, q)


def _divisor(positions: Positions, q: Any) -> float:
    return math.sqrt(q.shape[1] * (1 + len(positions.terms)))


def _weights(visible: Array, scores: Array, log_sums: Array) -> Array:
    """Returns the softmax of scores whose sums of exponentials are known."""
    return jnp.where(visible, jnp.exp(jnp.where(visible, scores, _MASKED) - log_sums[:, None]), 0.0)
