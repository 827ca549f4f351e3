"""The four kernels of attention: forward, and the gradients of queries, of keys and values, and of distance tables.

They are what `triton.call` and `mosaic.call` run for a block, a head and a sequence.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from bertjax.models.linear import soft_cap
from bertjax.models.pallas.blocks import (
    KernelSettings,
    Keys,
    Positions,
    Queries,
    drop_pairs,
    load,
    product,
    store,
    visible_pairs,
)

_MASKED = -1e30  # no -inf: a query without a key would get nan


class KernelProgram(NamedTuple):
    """Inputs of a kernel for its block.

    block          number of the block, or of the diagonal
    queries, keys  references
    words          random words of the sequence and head
    bounds         first block of the other side, and the one after the last; None = the kernel needs none
    positions      terms of distances
    """

    block: Any
    queries: Queries
    keys: Keys
    words: tuple[Any, Any]
    bounds: tuple[Any, Any] | None
    positions: Positions


def kernel_name(settings: KernelSettings, kernel: Callable) -> str:
    """Returns the name by which profiles and `tools.roofline` know a kernel."""
    family = {(): "", ("c2p",): "relative_"}.get(settings.terms, "disentangled_")
    return f"{family}attention_{kernel.__name__}" + (f"_window{settings.window}" if settings.window else "")


def forward(settings: KernelSettings, program: KernelProgram, outputs: tuple[Any, Any]) -> None:
    """Computes the output of a block of queries, and the logarithm of each query's sum of exponentials.

    Args:
        settings: what to compile.
        program: what the kernel reads.
        outputs: references to the block of each result.
    """
    block, queries = program.block, load(settings, program.queries)

    def add_keys(index: Any, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        (out, largest, total), keys = carry, load(settings, program.keys, index)
        visible = visible_pairs(settings, queries, keys, block, index)
        scores = jnp.where(visible, _scores(settings, program.positions, queries, keys, (block, index)), _MASKED)
        next_largest = jnp.maximum(largest, scores.max(axis=1))
        weights = jnp.where(visible, jnp.exp(scores - next_largest[:, None]), 0.0)
        shrink = jnp.exp(largest - next_largest)
        total = total * shrink + weights.sum(axis=1)
        weights = drop_pairs(settings, weights, program.words, block, index)
        out = out * shrink[:, None] + product(weights.astype(keys.values.dtype), keys.values, 1, 0)
        return out, next_largest, total

    zeros = jnp.zeros(queries.vectors.shape, jnp.float32)
    initial = zeros, jnp.full(settings.block, _MASKED, jnp.float32), jnp.zeros(settings.block, jnp.float32)
    assert program.bounds is not None
    out, largest, total = jax.lax.fori_loop(*program.bounds, add_keys, initial)
    total = jnp.where(total > 0, total, 1.0)
    store(outputs[0], out / total[:, None])
    store(outputs[1], largest + jnp.log(total))


def query_gradient(settings: KernelSettings, program: KernelProgram, outputs: Queries) -> None:
    """Computes the gradients of a block of queries: of their vectors, and of the scores of types.

    Args: as in `forward`.
    """
    block, queries, positions = program.block, load(settings, program.queries), program.positions
    has_distances, has_types = "c2p" in settings.terms, outputs.type_scores is not None

    def add_keys(index: Any, totals: tuple[Array, Array | None, Array | None]) -> tuple[Any, ...]:
        (vectors, by_distance, type_scores), keys = totals, load(settings, program.keys, index)
        _, grad_scores = _pair_gradients(settings, program, queries, keys, (block, index))
        narrow = grad_scores.astype(queries.vectors.dtype)
        vectors = vectors + product(narrow, keys.vectors, 1, 0)
        if by_distance is not None:
            by_distance = by_distance + positions.gradient("c2p", narrow, positions.first_row(block, index))
        if type_scores is not None:
            differs = queries.types[:, None] != keys.types[None, :]
            type_scores = type_scores + jnp.where(differs, grad_scores, 0.0).sum(axis=1)
        return vectors, by_distance, type_scores

    zeros = jnp.zeros(queries.vectors.shape, jnp.float32)
    initial = zeros, zeros if has_distances else None, jnp.zeros(settings.block, jnp.float32) if has_types else None
    assert program.bounds is not None
    vectors, by_distance, type_scores = jax.lax.fori_loop(*program.bounds, add_keys, initial)
    if by_distance is not None:
        by_distance = positions.in_order(by_distance)
        if outputs.distance_vectors is None:
            vectors = vectors + by_distance
        else:
            store(outputs.distance_vectors, by_distance / settings.divisor)
    store(outputs.vectors, vectors / settings.divisor)
    if has_types:
        store(outputs.type_scores, type_scores / settings.divisor)


def key_gradient(settings: KernelSettings, program: KernelProgram, outputs: tuple[Any, Any]) -> None:
    """Computes the gradients of a block of keys and values. Args: as in `forward`."""
    block, keys, positions = program.block, load(settings, program.keys), program.positions
    has_distances = "p2c" in settings.terms

    def add_queries(index: Any, totals: tuple[Array, Array, Array | None]) -> tuple[Any, ...]:
        (grad_k, grad_v, by_distance), queries = totals, load(settings, program.queries, index)
        dropped, grad_scores = _pair_gradients(settings, program, queries, keys, (index, block))
        narrow = grad_scores.astype(queries.vectors.dtype)
        grad_v = grad_v + product(dropped.astype(keys.values.dtype), queries.grad, 0, 0)
        grad_k = grad_k + product(narrow, queries.vectors, 0, 0)
        if by_distance is not None:
            by_distance = by_distance + positions.gradient("p2c", narrow, positions.first_row(index, block))
        return grad_k, grad_v, by_distance

    zeros = jnp.zeros(keys.vectors.shape, jnp.float32)
    assert program.bounds is not None
    initial = zeros, zeros, zeros if has_distances else None
    grad_k, grad_v, by_distance = jax.lax.fori_loop(*program.bounds, add_queries, initial)
    grad_k = grad_k if by_distance is None else grad_k + positions.in_order(by_distance)
    store(outputs[0], grad_k / settings.divisor)
    store(outputs[1], grad_v)


def table_gradient(settings: KernelSettings, program: KernelProgram, outputs: tuple[Any, ...]) -> None:
    """Computes the gradients of the rows of the tables that the blocks of one diagonal read. Args: as in `forward`."""
    positions = program.positions
    query_blocks = max(program.queries.ids.shape) // settings.block
    shift = program.block - (positions.key_blocks - 1)

    def add(block: Any, totals: tuple[Array, ...]) -> tuple[Array, ...]:
        blocks = block, block - shift
        queries, keys = load(settings, program.queries, blocks[0]), load(settings, program.keys, blocks[1])
        _, grad_scores = _pair_gradients(settings, program, queries, keys, blocks)
        narrow = grad_scores.astype(queries.vectors.dtype)
        parts = positions.table_gradients(narrow, queries.by_distance, keys.vectors)
        return tuple(total + part for total, part in zip(totals, parts, strict=True))

    zeros = tuple(jnp.zeros(ref.shape, jnp.float32) for ref in outputs)
    bounds = jnp.maximum(shift, 0), jnp.minimum(query_blocks, positions.key_blocks + shift)
    for ref, total in zip(outputs, jax.lax.fori_loop(*bounds, add, zeros), strict=True):
        store(ref, total / settings.divisor)


def _scores(
    settings: KernelSettings, positions: Positions, queries: Queries, keys: Keys, blocks: tuple[Any, Any]
) -> Float[Array, "Q K"]:
    scores = product(queries.vectors, keys.vectors, 1, 1)
    if settings.terms:
        scores = scores + positions.scores(queries.by_distance, keys.vectors, positions.first_row(*blocks))
    if queries.type_scores is not None:
        differs = queries.types[:, None] != keys.types[None, :]
        scores = scores + jnp.where(differs, queries.type_scores[:, None], 0.0)
    return soft_cap(scores / settings.divisor, settings.soft_cap)


def _pair_gradients(
    settings: KernelSettings, program: KernelProgram, queries: Queries, keys: Keys, blocks: tuple[Any, Any]
) -> tuple[Float[Array, "Q K"], Float[Array, "Q K"]]:
    """Returns the weights of the values after dropout, and the gradient of the products times `divisor`, float32.

    Args:
        settings: what to compile.
        program: terms of positions and random words.
        queries, keys: blocks.
        blocks: numbers of the block of queries and of that of keys.
    """
    visible = visible_pairs(settings, queries, keys, *blocks)
    scores = _scores(settings, program.positions, queries, keys, blocks)
    weights = jnp.where(visible, jnp.exp(jnp.where(visible, scores, _MASKED) - queries.log_sums[:, None]), 0.0)
    dropped = drop_pairs(settings, weights, program.words, *blocks)
    grad_weights = drop_pairs(settings, product(queries.grad, keys.values, 1, 1), program.words, *blocks)
    grad_scores = weights * (grad_weights - queries.dots[:, None])
    if settings.soft_cap is not None:
        grad_scores = grad_scores * (1.0 - jnp.square(scores / settings.soft_cap))
    return dropped, grad_scores
