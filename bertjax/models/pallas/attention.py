"""Fused attention with dropout that never holds the scores (arXiv:2205.14135, 2307.08691), for GPUs and TPUs.

Examples that are packed into one sequence cost what they would alone, up to a block: blocks of queries and keys without
a common segment, and those beyond the window, are skipped. Packing is therefore the form of examples of any length.

cuDNN's kernels draw their dropout from a state of the process, which no checkpoint holds, and splash has none; here a
probability is dropped by a hash of the key, the sequence, the head, the query and the key's position, which forward and
backward pass compute again. It is another mask than that of `dropout`, with the same rate, on every mesh. On a CPU the
kernels are interpreted.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from bertjax.models.attention_context import AttentionContext
from bertjax.models.dropout import random_bits
from bertjax.models.mesh import per_device, target_platform
from bertjax.models.pallas import kernels, mosaic, triton
from bertjax.models.pallas.blocks import (
    BLOCKS,
    KernelInputs,
    KernelSettings,
    Keys,
    Queries,
    block_bounds,
    distance_table,
    sum_diagonals,
    visible_blocks,
)

Key = Array
COMPILERS = {"tpu": "mosaic", "cuda": "triton", "cpu": "triton"}
"""Whose form of the kernels each platform runs; CPUs interpret it."""


class ScoreTerms(NamedTuple):
    """Terms that a kernel adds to the products of queries and keys.

    tables            embeddings of distances of each term, c2p and p2c (see `positions`), by falling distance
                      from K - 1 to 1 - S [G, D, N, H]; one set, or one per sequence
    distance_vectors  partners of the embeddings of c2p [B, S, N, H]; None = the queries
    type_scores       added to a query's scores of keys of another type [B, N, S]; None = nothing
    types             types of queries [B, S] and keys [B, K]
    """

    tables: Mapping[str, Float[Array, "G D N H"]]
    distance_vectors: Float[Array, "B S N H"] | None = None
    type_scores: Float[Array, "B N S"] | None = None
    types: tuple[Int[Array, "B S"], Int[Array, "B K"]] | None = None


def pallas_attention(
    q: Float[Array, "B S N H"],
    k: Float[Array, "B K N H"],
    v: Float[Array, "B K N H"],
    context: AttentionContext,
    dtype: Any,
    rate: float,
    key: Key | None,
    terms: ScoreTerms | None = None,
    divisor: float | None = None,
    soft_cap: float | None = None,
) -> Float[Array, "B S N H"]:
    """Computes attention in blocks of queries and keys, softmax in float32.

    Sequences are padded to a multiple of the block with keys that nobody sees. Queries without a key get zero, and so
    does padding, which sees all real keys in the plain form: outputs at padding must not be used.

    Args:
        q, k, v, context: as in `dot_product_attention`.
        dtype: type of the operands.
        rate: probability of dropping a probability.
        key: key of the dropout; None = no dropout.
        terms: further terms of the scores; None = there are none.
        divisor: divisor of the scores; None = sqrt(H).
        soft_cap: size below which scores stay; None = they are not capped.
    """
    length, num_keys, platform = q.shape[1], k.shape[1], target_platform()
    compiler = COMPILERS.get(platform, "triton")

    def pad(x: Array, axis: int = 1) -> Array:
        """Pads the axis of tokens."""
        return jnp.pad(x, [(0, -x.shape[axis] % BLOCKS[compiler] if each == axis else 0) for each in range(x.ndim)])

    def pad_if(x: Array | None, axis: int = 1) -> Array | None:
        return None if x is None else pad(x, axis)

    words, rate = jnp.zeros((q.shape[0], q.shape[2], 2), jnp.uint32), 0.0 if key is None else rate
    if key is not None and rate:
        words = random_bits(key, words.shape, batched=True)
    terms = ScoreTerms({}) if terms is None else terms
    q, k, v = (pad(x.astype(dtype)) for x in (q, k, v))
    partners = None if terms.distance_vectors is None else pad(terms.distance_vectors.astype(dtype))
    key_ids = context.segment_ids if context.key_segment_ids is None else context.key_segment_ids
    (query_ranks, key_ranks), (query_types, key_types) = context.ranks or (None, None), terms.types or (None, None)
    queries = Queries(
        q, pad(context.segment_ids), pad_if(query_ranks), pad_if(query_types), pad_if(terms.type_scores, 2), partners
    )
    keys = Keys(k, v, pad(key_ids), pad_if(key_ranks), pad_if(key_types))
    tables = [distance_table(each.astype(dtype), num_keys, q.shape[1], k.shape[1]) for each in terms.tables.values()]
    divisor = math.sqrt(q.shape[3]) if divisor is None else divisor
    settings = KernelSettings(
        compiler, platform == "cpu", context.window, context.causal, rate, divisor, tuple(terms.tables), soft_cap
    )
    return _per_device(settings, KernelInputs(queries, keys, words, tuple(tables)))[:, :length]


def _per_device(settings: KernelSettings, inputs: KernelInputs) -> Float[Array, "B S N H"]:
    """Runs the kernel on every device: the compiler cannot split it."""
    arrays, structure = jax.tree.flatten(inputs)

    def run(*arrays: Array) -> Array:
        return _attend(settings, jax.tree.unflatten(structure, arrays))

    axes = [{4: 2, 3: 1, 2: None}[x.ndim] for x in arrays]
    shared = len(inputs.tables) if inputs.tables and inputs.tables[0].shape[0] == 1 else 0
    return per_device(run, axes, 2, *arrays, shared=shared)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(settings: KernelSettings, inputs: KernelInputs) -> Float[Array, "B S N H"]:
    """Runs the forward kernel.

    Args:
        settings: what to compile.
        inputs: arrays, lengths multiples of the block.
    """
    return _forward(settings, inputs)[0]


def _call(
    kernel: Callable, settings: KernelSettings, inputs: KernelInputs, bounds: Array | None, grid: str, like: Any
) -> Any:
    run = {"triton": triton.call, "mosaic": mosaic.call}[settings.compiler]
    return run(kernel, settings, inputs, bounds, grid, like)


def _forward(settings: KernelSettings, inputs: KernelInputs) -> tuple[Array, tuple[Any, ...]]:
    q, bounds = inputs.queries.vectors, block_bounds(visible_blocks(settings, inputs.queries, inputs.keys))
    logs = jax.ShapeDtypeStruct((q.shape[0], q.shape[2], q.shape[1]), jnp.float32)
    out, log_sums = _call(kernels.forward, settings, inputs, bounds, "query", (q, logs))
    return out, (inputs, out, log_sums)


def _backward(settings: KernelSettings, saved: tuple[Any, ...], grad: Array) -> tuple[KernelInputs]:
    inputs, out, log_sums = saved
    queries, keys = inputs.queries, inputs.keys
    q, k = queries.vectors, keys.vectors
    dots = (out.astype(jnp.float32) * grad.astype(jnp.float32)).sum(-1).transpose(0, 2, 1)
    visible = visible_blocks(settings, queries, keys)
    bounds, by_key = block_bounds(visible), block_bounds(visible.swapaxes(1, 2))
    inputs = inputs._replace(queries=queries._replace(grad=grad.astype(q.dtype), log_sums=log_sums, dots=dots))
    like = Queries(q, None, type_scores=queries.type_scores, distance_vectors=queries.distance_vectors)
    grad_queries = _call(kernels.query_gradient, settings, inputs, bounds, "query", like)
    grad_k, grad_v = _call(kernels.key_gradient, settings, inputs, by_key, "key", (k, keys.values))
    grad_tables: tuple[Array, ...] = ()
    if inputs.tables:
        blocks = q.shape[1] // settings.block + k.shape[1] // settings.block - 1
        part = jax.ShapeDtypeStruct((q.shape[0], blocks, q.shape[2], 2 * settings.block, q.shape[3]), jnp.float32)
        parts = _call(kernels.table_gradient, settings, inputs, None, "diagonal", (part,) * len(inputs.tables))
        grad_tables = tuple(
            sum_diagonals(each, len(table)).astype(table.dtype)
            for each, table in zip(parts, inputs.tables, strict=True)
        )
    return (KernelInputs(grad_queries, Keys(grad_k, grad_v, None), None, grad_tables),)


_attend.defvjp(_forward, _backward)
