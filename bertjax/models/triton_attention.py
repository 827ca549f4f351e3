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
from typing import Any, NamedTuple

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
    Keys,
    Queries,
    block_bounds,
    drop_pairs,
    load,
    product,
    visible_blocks,
    visible_pairs,
)
from bertjax.models.triton_positions import SPAN, Positions, distance_table, sum_diagonals

Key = Array
_MASKED = -1e30  # no -inf: a query without a key would get nan


class ScoreTerms(NamedTuple):
    """What a kernel adds to the products of queries and keys.

    tables            embeddings of distances of each term, c2p and p2c (see `triton_positions`), by falling distance
                      from K - 1 to 1 - S [G, D, N, H]; one set, or one per sequence
    distance_vectors  partners of the embeddings of c2p [B, S, N, H]; None = the queries
    type_scores       added to a query's scores of keys of another type [B, N, S]; None = nothing
    types             types of queries [B, S] and keys [B, K]
    """

    tables: Mapping[str, Float[Array, "G D N H"]]
    distance_vectors: Float[Array, "B S N H"] | None = None
    type_scores: Float[Array, "B N S"] | None = None
    types: tuple[Int[Array, "B S"], Int[Array, "B K"]] | None = None


def triton_attention(
    q: Float[Array, "B S N H"],
    k: Float[Array, "B K N H"],
    v: Float[Array, "B K N H"],
    context: AttentionContext,
    dtype: Any,
    rate: float,
    key: Key | None,
    terms: ScoreTerms | None = None,
    divisor: float | None = None,
) -> Float[Array, "B S N H"]:
    """Computes attention in blocks of `BLOCK` queries and keys, softmax in float32.

    Sequences are padded to a multiple of `BLOCK` with keys that nobody sees. Queries without a key get zero, and so
    does padding, which sees all real keys in the plain form: outputs at padding must not be used.

    Args:
        q, k, v, context: as in `dot_product_attention`.
        dtype: of the operands.
        rate: probability of dropping a probability.
        key: of the dropout; None = no dropout.
        terms: further terms of the scores; None = there are none.
        divisor: of the scores; None = sqrt(H).
    """
    length, num_keys = q.shape[1], k.shape[1]

    def pad(x: Array, axis: int = 1) -> Array:
        """Pads the axis of tokens."""
        return jnp.pad(x, [(0, -x.shape[axis] % BLOCK if each == axis else 0) for each in range(x.ndim)])

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
        context.window, context.causal, rate, target_platform() == "cpu", divisor, tuple(terms.tables)
    )
    return _per_device(settings, queries, keys, words, tables)[:, :length]


def _per_device(
    settings: KernelSettings, queries: Queries, keys: Keys, words: Array, tables: Sequence[Array]
) -> Float[Array, "B S N H"]:
    """Runs the kernel on every device: the compiler cannot split it."""
    arrays, structure = jax.tree.flatten((queries, keys, words))

    def run(*arrays: Array) -> Array:
        return _attend(
            settings, *jax.tree.unflatten(structure, arrays[: structure.num_leaves]), *arrays[structure.num_leaves :]
        )

    axes = [{4: 2, 3: 1, 2: None}[x.ndim] for x in arrays]
    shared = len(tables) if tables and tables[0].shape[0] == 1 else 0
    return per_device(run, (*axes, *[2] * len(tables)), 2, *arrays, *tables, shared=shared)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(
    settings: KernelSettings,
    queries: Queries,
    keys: Keys,
    words: UInt32[Array, "B N 2"],
    *tables: Float[Array, "G R N H"],
) -> Float[Array, "B S N H"]:
    """Runs the forward kernel.

    Args:
        settings: what to compile.
        queries, keys: arrays, lengths multiples of `BLOCK`.
        words: random bits of every sequence and head, for the dropout.
        tables: of `triton_positions`, one per term.
    """
    return _forward(settings, queries, keys, words, *tables)[0]


def _forward(
    settings: KernelSettings, queries: Queries, keys: Keys, words: Array, *tables: Array
) -> tuple[Array, tuple[Any, ...]]:
    q, bounds = queries.vectors, block_bounds(visible_blocks(settings, queries, keys))
    logs = jax.ShapeDtypeStruct((q.shape[0], q.shape[2], q.shape[1]), jnp.float32)
    inputs = queries, keys, words, tables
    out, log_sums = _call(_forward_kernel, settings, inputs, bounds, "query", (q, logs))
    return out, (*inputs, out, log_sums)


def _backward(settings: KernelSettings, saved: tuple[Any, ...], grad: Array) -> tuple[Any, ...]:
    queries, keys, words, tables, out, log_sums = saved
    q, k, v = queries.vectors, keys.vectors, keys.values
    dots = (out.astype(jnp.float32) * grad.astype(jnp.float32)).sum(-1).transpose(0, 2, 1)
    visible = visible_blocks(settings, queries, keys)
    bounds, by_key = block_bounds(visible), block_bounds(visible.swapaxes(1, 2))
    inputs = queries._replace(grad=grad.astype(q.dtype), log_sums=log_sums, dots=dots), keys, words, tables
    like = Queries(q, None, type_scores=queries.type_scores, distance_vectors=queries.distance_vectors)
    grad_queries = _call(_query_gradient_kernel, settings, inputs, bounds, "query", like)
    grad_k, grad_v = _call(_key_gradient_kernel, settings, inputs, by_key, "key", (k, v))
    grad_tables: tuple[Array, ...] = ()
    if tables:
        blocks = q.shape[1] // BLOCK + k.shape[1] // BLOCK - 1
        part = jax.ShapeDtypeStruct((q.shape[0], blocks, q.shape[2], SPAN, q.shape[3]), jnp.float32)
        parts = _call(_table_gradient_kernel, settings, inputs, None, "diagonal", (part,) * len(tables))
        grad_tables = tuple(
            sum_diagonals(each, len(table)).astype(table.dtype) for each, table in zip(parts, tables, strict=True)
        )
    return grad_queries, Keys(grad_k, grad_v, None), None, *grad_tables


_attend.defvjp(_forward, _backward)


def _call(
    kernel: Callable,
    settings: KernelSettings,
    inputs: tuple[Queries, Keys, Array, tuple[Array, ...]],
    bounds: Array | None,
    grid: str,
    like: Any,
) -> Any:
    """Runs a kernel for every block, head and sequence.

    Args:
        kernel: takes the settings, the terms of positions, references to bounds, queries, keys and words, and
            references to its blocks of the results, in the structure of `like`.
        settings: what to compile.
        inputs: queries, keys, words and tables.
        bounds: first and last block of the other side for every block of the grid [B, I, 2]; None = the kernel reads
            none.
        grid: blocks of which the kernel runs for one: query, key, or diagonal, which reads whole sequences of both.
        like: arrays with the shapes and dtypes of the results: as of the inputs, or [B, I, N, C, H] for I blocks.
    """
    queries, keys, words, tables = inputs
    batch, _, heads, width = queries.vectors.shape
    lengths = {"query": queries.vectors.shape[1], "key": keys.vectors.shape[1]}
    blocks = lengths[grid] // BLOCK if grid in lengths else sum(lengths.values()) // BLOCK - 1

    def spec(x: Any, whole: bool = False) -> pl.BlockSpec:
        """Returns the part of an array for the block, head and sequence of a program."""
        if x.ndim == 5:
            return pl.BlockSpec(
                (None, None, None, *x.shape[3:]), lambda block, head, sequence: (sequence, block, head, 0, 0)
            )
        axis = 2 if x.ndim == 3 else 1
        size = x.shape[axis] if whole else BLOCK

        def index(block: Any, head: Any, sequence: Any) -> tuple[Any, ...]:
            start = 0 if whole else block
            return {2: (sequence, start), 3: (sequence, head, start), 4: (sequence, start, head, 0)}[x.ndim]

        return pl.BlockSpec({2: (None, size), 3: (None, None, size), 4: (None, size, None, width)}[x.ndim], index)

    def table_spec(x: Array) -> pl.BlockSpec:
        one = x.shape[0] == 1
        shape = None, x.shape[1], None, width
        return pl.BlockSpec(shape, lambda block, head, sequence: (0 if one else sequence, 0, head, 0))

    bounds_spec = pl.BlockSpec((None, None, 2), lambda block, head, sequence: (sequence, block, 0))
    arrays = queries, keys, words, tables, bounds
    specs = (
        jax.tree.map(functools.partial(spec, whole=grid != "query"), queries),
        jax.tree.map(functools.partial(spec, whole=grid != "key"), keys),
        spec(words, whole=True),
        tuple(map(table_spec, tables)),
        None if bounds is None else bounds_spec,
    )
    memory = [jax.ShapeDtypeStruct((batch, blocks, heads, BLOCK, SPAN), keys.vectors.dtype)] * bool(tables)
    results = like, memory
    options = {} if settings.interpret else {"compiler_params": _compiler_params(width, bool(tables))}
    structure = jax.tree.structure((arrays, results))

    def run(*refs: Any) -> None:
        (queries, keys, words, tables, bounds), (outputs, scratch) = jax.tree.unflatten(structure, refs)
        positions = Positions(
            settings.terms, tables, scratch[0] if scratch else None, lengths["key"] // BLOCK, settings.interpret
        )
        kernel(settings, positions, bounds, queries, keys, words, outputs)

    out = pl.pallas_call(
        run,
        grid=(blocks, heads, batch),
        in_specs=jax.tree.leaves(specs),
        out_specs=[spec(x) for x in jax.tree.leaves(results)],
        out_shape=[jax.ShapeDtypeStruct(x.shape, x.dtype) for x in jax.tree.leaves(results)],
        interpret=settings.interpret,
        name=f"{_name(settings.terms)}attention{kernel.__name__.removesuffix('_kernel')}",
        **options,
    )(*jax.tree.leaves(arrays))
    return jax.tree.unflatten(jax.tree.structure(results), out)[0]


def _name(terms: tuple[str, ...]) -> str:
    return {(): "", ("c2p",): "relative_"}.get(terms, "disentangled_")


def _compiler_params(width: int, has_memory: bool) -> Any:
    from jax.experimental.pallas import triton

    # No loads of a later block ahead of time where these read what the kernel writes.
    return triton.CompilerParams(num_warps=4 if width <= 64 else 8, num_stages=1 if has_memory else 2)


def _forward_kernel(
    settings: KernelSettings,
    positions: Positions,
    bounds_ref: Any,
    query_refs: Queries,
    key_refs: Keys,
    words_ref: Any,
    outputs: tuple[Any, Any],
) -> None:
    """Computes the output of a block of queries, and the logarithm of each query's sum of exponentials."""
    block, queries = pl.program_id(0), load(query_refs)
    out_ref, log_sums_ref = outputs

    def add_keys(index: Any, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        (out, largest, total), keys = carry, load(key_refs, index)
        visible = visible_pairs(settings, queries, keys, block, index)
        scores = jnp.where(
            visible, _scores(settings, positions, queries, keys, positions.first_row(block, index)), _MASKED
        )
        next_largest = jnp.maximum(largest, scores.max(axis=1))
        weights = jnp.where(visible, jnp.exp(scores - next_largest[:, None]), 0.0)
        shrink = jnp.exp(largest - next_largest)
        total = total * shrink + weights.sum(axis=1)
        weights = drop_pairs(settings, weights, words_ref, block, index)
        out = out * shrink[:, None] + product(weights.astype(keys.values.dtype), keys.values, 1, 0)
        return out, next_largest, total

    zeros = jnp.zeros(queries.vectors.shape, jnp.float32)
    initial = zeros, jnp.full(BLOCK, _MASKED, jnp.float32), jnp.zeros(BLOCK, jnp.float32)
    out, largest, total = jax.lax.fori_loop(bounds_ref[0], bounds_ref[1], add_keys, initial)
    total = jnp.where(total > 0, total, 1.0)
    out_ref[...] = (out / total[:, None]).astype(out_ref.dtype)
    log_sums_ref[...] = largest + jnp.log(total)


def _query_gradient_kernel(
    settings: KernelSettings,
    positions: Positions,
    bounds_ref: Any,
    query_refs: Queries,
    key_refs: Keys,
    words_ref: Any,
    outputs: Queries,
) -> None:
    """Computes the gradients of a block of queries: of their vectors, and of the scores of types."""
    block, queries = pl.program_id(0), load(query_refs)

    def add_keys(index: Any, totals: Queries) -> Queries:
        keys, row = load(key_refs, index), positions.first_row(block, index)
        _, grad_scores = _pair_gradients(settings, positions, queries, keys, words_ref, (block, index), row)
        narrow = grad_scores.astype(queries.vectors.dtype)
        by_distance, vectors = (
            positions.query_gradient(narrow, row),
            totals.vectors + product(narrow, keys.vectors, 1, 0),
        )
        if totals.distance_vectors is None:
            totals = totals._replace(vectors=vectors + by_distance)
        else:
            totals = totals._replace(vectors=vectors, distance_vectors=totals.distance_vectors + by_distance)
        if totals.type_scores is None:
            return totals
        differs = queries.types[:, None] != keys.types[None, :]
        return totals._replace(type_scores=totals.type_scores + jnp.where(differs, grad_scores, 0.0).sum(axis=1))

    initial = jax.tree.map(lambda ref: jnp.zeros(ref.shape, jnp.float32), outputs)
    totals = jax.lax.fori_loop(bounds_ref[0], bounds_ref[1], add_keys, initial)
    for ref, total in zip(jax.tree.leaves(outputs), jax.tree.leaves(totals), strict=True):
        ref[...] = (total / settings.divisor).astype(ref.dtype)


def _key_gradient_kernel(
    settings: KernelSettings,
    positions: Positions,
    bounds_ref: Any,
    query_refs: Queries,
    key_refs: Keys,
    words_ref: Any,
    outputs: tuple[Any, Any],
) -> None:
    """Computes the gradients of a block of keys and values."""
    block, keys = pl.program_id(0), load(key_refs)
    grad_k_ref, grad_v_ref = outputs

    def add_queries(index: Any, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        (grad_k, grad_v), queries, row = carry, load(query_refs, index), positions.first_row(index, block)
        dropped, grad_scores = _pair_gradients(settings, positions, queries, keys, words_ref, (index, block), row)
        narrow = grad_scores.astype(queries.vectors.dtype)
        grad_v = grad_v + product(dropped.astype(keys.values.dtype), queries.grad, 0, 0)
        return grad_k + product(narrow, queries.vectors, 0, 0) + positions.key_gradient(narrow, row), grad_v

    zeros = jnp.zeros(keys.vectors.shape, jnp.float32)
    grad_k, grad_v = jax.lax.fori_loop(bounds_ref[0], bounds_ref[1], add_queries, (zeros, zeros))
    grad_k_ref[...] = (grad_k / settings.divisor).astype(grad_k_ref.dtype)
    grad_v_ref[...] = grad_v.astype(grad_v_ref.dtype)


def _table_gradient_kernel(
    settings: KernelSettings,
    positions: Positions,
    bounds_ref: None,
    query_refs: Queries,
    key_refs: Keys,
    words_ref: Any,
    outputs: tuple[Any, ...],
) -> None:
    """Computes the gradients of the rows of the tables that the blocks of one diagonal read."""
    query_blocks = query_refs.ids.shape[0] // BLOCK
    shift, row = pl.program_id(0) - (positions.key_blocks - 1), pl.program_id(0) * BLOCK

    def add(block: Any, totals: tuple[Array, ...]) -> tuple[Array, ...]:
        queries, keys, pair = load(query_refs, block), load(key_refs, block - shift), (block, block - shift)
        _, grad_scores = _pair_gradients(settings, positions, queries, keys, words_ref, pair, row)
        narrow = grad_scores.astype(queries.vectors.dtype)
        parts = positions.table_gradients(narrow, queries.by_distance, keys.vectors)
        return tuple(total + part for total, part in zip(totals, parts, strict=True))

    zeros = tuple(jnp.zeros(ref.shape, jnp.float32) for ref in outputs)
    bounds = jnp.maximum(shift, 0), jnp.minimum(query_blocks, positions.key_blocks + shift)
    for ref, total in zip(outputs, jax.lax.fori_loop(*bounds, add, zeros), strict=True):
        ref[...] = total / settings.divisor


def _scores(settings: KernelSettings, positions: Positions, queries: Queries, keys: Keys, row: Any) -> Array:
    scores = product(queries.vectors, keys.vectors, 1, 1)
    scores = scores + positions.scores(queries.by_distance, keys.vectors, row) if positions.terms else scores
    if queries.type_scores is not None:
        differs = queries.types[:, None] != keys.types[None, :]
        scores = scores + jnp.where(differs, queries.type_scores[:, None], 0.0)
    return scores / settings.divisor


def _pair_gradients(
    settings: KernelSettings,
    positions: Positions,
    queries: Queries,
    keys: Keys,
    words_ref: Any,
    blocks: tuple[Any, Any],
    row: Any,
) -> tuple[Float[Array, "Q K"], Float[Array, "Q K"]]:
    """Returns the weights of the values after dropout, and the gradient of the scores times `divisor`, float32.

    Args:
        settings: what to compile.
        positions: terms of positions.
        queries, keys: blocks.
        words_ref: random words of the sequence and head.
        blocks: numbers of the block of queries and of that of keys.
        row: of `Positions.first_row`.
    """
    visible = visible_pairs(settings, queries, keys, *blocks)
    scores = jnp.where(visible, _scores(settings, positions, queries, keys, row), _MASKED)
    weights = jnp.where(visible, jnp.exp(scores - queries.log_sums[:, None]), 0.0)
    dropped = drop_pairs(settings, weights, words_ref, *blocks)
    grad_weights = drop_pairs(settings, product(queries.grad, keys.values, 1, 1), words_ref, *blocks)
    return dropped, weights * (grad_weights - queries.dots[:, None])
