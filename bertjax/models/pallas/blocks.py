"""Inputs of the attention kernels in blocks of queries and keys: visible pairs, those that dropout keeps, distances.

Scores of distances are DeBERTa's two terms, of which XLNet has the first. Queries of a block and keys of a block have
2 * block - 1 distances. A block of tokens is multiplied with the embeddings of these, and the products are shifted by
one column per row, from distances to keys. How depends on the compiler: see `triton` and `mosaic`.

Axes: R = S + K rows of a table, by rising distance; G = 1 or B tables; H width of a head; Q, K queries and keys of a
block, T either; C = 2 * block rows of a block's distances, of which the first is not used.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jaxtyping import Array, Bool, Float, Int

from bertjax.models.dropout import mix_bits

BLOCKS = {"triton": 64, "mosaic": 128}
"""Queries and keys per block, by the compiler of the kernels: Triton's for GPUs, Mosaic for TPUs."""


class KernelSettings(NamedTuple):
    """Constants of a compiled kernel; scores are divided by `divisor`, then capped, `terms` are those of distances."""

    compiler: str
    interpret: bool
    window: int
    causal: bool
    rate: float
    divisor: float
    terms: tuple[str, ...] = ()
    soft_cap: float | None = None

    @property
    def block(self) -> int:
        """Queries and keys per block."""
        return BLOCKS[self.compiler]


class Queries(NamedTuple):
    """Inputs of queries: arrays, references to these, or blocks of them; None = the kernel has no such input.

    vectors          queries [B, S, N, H], as the keys' partners
    ids              segment ids [B, S]; 0 = padding
    ranks            a key is visible if its rank is lower [B, S]
    types            token types [B, S]
    type_scores      added to the scores of keys of another type [B, N, S]
    distance_vectors partners of the embeddings of distances [B, S, N, H]; None = `vectors`
    grad             gradient of the output [B, S, N, H], for the backward pass
    log_sums, dots   logarithm of the sum of exponentials, and gradient times output [B, N, S], likewise
    """

    vectors: Any
    ids: Any
    ranks: Any = None
    types: Any = None
    type_scores: Any = None
    distance_vectors: Any = None
    grad: Any = None
    log_sums: Any = None
    dots: Any = None

    @property
    def by_distance(self) -> Any:
        """The vectors that are multiplied with distance embeddings."""
        return self.vectors if self.distance_vectors is None else self.distance_vectors


class Keys(NamedTuple):
    """Inputs of keys, as of `Queries`: keys and values [B, K, N, H], segment ids, ranks and token types [B, K]."""

    vectors: Any
    values: Any
    ids: Any
    ranks: Any = None
    types: Any = None


class KernelInputs(NamedTuple):
    """Arrays that all kernels read: `words` are random bits [B, N, 2], `tables` those of distances [G, R, N, H]."""

    queries: Queries
    keys: Keys
    words: Any
    tables: tuple[Array, ...]


Side = TypeVar("Side", Queries, Keys)


def load(settings: KernelSettings, references: Side, block: Any = None) -> Side:
    """Reads a block.

    Args:
        settings: compiler.
        references: to what the kernel was given; Mosaic's have an axis of 1 before that of numbers per token.
        block: number of the block in the whole sequence; None = the kernel was given one block.
    """
    start: Any = 0 if block is None else block * settings.block
    if block is not None and settings.compiler == "mosaic":
        start = pl.multiple_of(start, settings.block)
    rows = pl.ds(start, settings.block)

    def read(ref: Any) -> Array:
        if len(ref.shape) == 1:
            return ref[rows]
        return ref[0, rows] if ref.shape[0] == 1 else ref[rows, :]

    return jax.tree.map(read, references)


def store(ref: Any, x: Array) -> None:
    """Writes a whole block, in the dtype of the reference."""
    ref[...] = x.astype(ref.dtype).reshape(ref.shape)


def product(a: Array, b: Array, a_axis: int, b_axis: int) -> Array:
    """Computes the product of two matrices over one axis of each, float32 [m, n].

    Args:
        a, b: matrices.
        a_axis, b_axis: axis of each to sum over.
    """
    return jax.lax.dot_general(a, b, (((a_axis,), (b_axis,)), ((), ())), preferred_element_type=jnp.float32)


def visible_pairs(settings: KernelSettings, queries: Queries, keys: Keys, query_block: Any, key_block: Any) -> Array:
    """Returns the rule of `AttentionContext.visible` for the queries of a block and the keys of one, bool [Q, K].

    Args:
        settings: window and causality.
        queries, keys: blocks, with segment ids and ranks.
        query_block, key_block: numbers of the blocks in the sequence.
    """
    query, key = queries.ids[:, None], keys.ids[None, :]
    visible = (key > 0) & (query == key)
    if queries.ranks is not None:
        visible = visible & (keys.ranks[None, :] < queries.ranks[:, None])
    if settings.window or settings.causal:
        distance = _positions(settings, query_block, 0) - _positions(settings, key_block, 1)
        visible = visible & (distance >= 0) if settings.causal else visible
        visible = visible & (jnp.abs(distance) <= settings.window // 2) if settings.window else visible
    return visible


def _positions(settings: KernelSettings, block: Any, axis: int) -> Int[Array, "Q K"]:
    """Returns positions in the sequence: those of the block's queries along axis 0, or of its keys along axis 1."""
    shape = (settings.block, 1) if axis == 0 else (1, settings.block)
    return block * settings.block + jax.lax.broadcasted_iota(jnp.int32, shape, axis)


def visible_blocks(settings: KernelSettings, queries: Queries, keys: Keys) -> Bool[Array, "B I J"]:
    """Returns which of the I blocks of queries and J blocks of keys see each other, by segments, ranks and window.

    That skips every block of other segments if ids rise along the sequence, as packing numbers them.

    Args:
        settings: window and causality.
        queries, keys: arrays, with segment ids and ranks.
    """

    def ranges(x: Int[Array, "B S"], counted: Bool[Array, "B S"]) -> tuple[Array, Array]:
        """Returns the lowest and the highest number of each block [B, I]."""
        limits = np.iinfo(np.int32)
        numbers, counts = (each.reshape(x.shape[0], -1, settings.block) for each in (x, counted))
        return jnp.where(counts, numbers, limits.max).min(axis=2), jnp.where(counts, numbers, limits.min).max(axis=2)

    real_queries, real_keys = queries.ids > 0, keys.ids > 0
    (first_query, last_query), (first_key, last_key) = ranges(queries.ids, real_queries), ranges(keys.ids, real_keys)
    visible = (first_query[:, :, None] <= last_key[:, None]) & (first_key[:, None] <= last_query[:, :, None])
    if queries.ranks is not None:
        _, highest = ranges(queries.ranks, real_queries)
        lowest, _ = ranges(keys.ranks, real_keys)
        visible = visible & (lowest[:, None] < highest[:, :, None])
    distance = jnp.arange(visible.shape[1])[:, None] - jnp.arange(visible.shape[2])[None, :]
    visible = visible & (distance >= 0)[None] if settings.causal else visible
    reach = -(-(settings.window // 2) // settings.block)
    return visible & (jnp.abs(distance) <= reach)[None] if settings.window else visible


def block_bounds(visible: Bool[Array, "B I J"]) -> Int[Array, "B I 2"]:
    """Returns for each I the first visible J and the one after the last, both 0 if there is none."""
    numbers = jnp.arange(visible.shape[2], dtype=jnp.int32)[None, None]
    after = jnp.where(visible, numbers + 1, 0).max(axis=2)
    first = jnp.where(visible, numbers, np.int32(visible.shape[2])).min(axis=2)
    return jnp.stack([jnp.minimum(first, after), after], axis=2)


def drop_pairs(settings: KernelSettings, x: Array, words: Any, query_block: Any, key_block: Any) -> Array:
    """Applies dropout to the pairs of a block of queries and one of keys.

    Args:
        settings: rate.
        x: numbers [Q, K].
        words: two random words of the sequence and head, uint32 [2].
        query_block, key_block: numbers of the blocks in the sequence.
    """
    if not settings.rate:
        return x
    queries, keys = _positions(settings, query_block, 0), _positions(settings, key_block, 1)
    return jnp.where(keep_block(words[0], words[1], queries, keys, settings.rate), x / (1 - settings.rate), 0.0)


def keep_block(
    first: Array, second: Array, queries: Int[Array, "Q 1"], keys: Int[Array, "1 K"], rate: float
) -> Bool[Array, "Q K"]:
    """Returns True for the probabilities that dropout keeps: a hash of two words and both positions.

    Args:
        first, second: random words of the sequence and head, uint32 [].
        queries, keys: positions.
        rate: probability of dropping one.
    """
    rows = mix_bits(queries.astype(jnp.uint32) ^ first)
    columns = keys.astype(jnp.uint32) * np.uint32(0x9E3779B9)  # 2**32 / the golden ratio
    return mix_bits((rows + columns) ^ second) >= np.uint32(min(round(rate * 2**32), 2**32 - 1))


def distance_table(
    embeddings: Float[Array, "G D N H"], num_keys: int, queries: int, keys: int
) -> Float[Array, "G R N H"]:
    """Returns the table of a padded sequence: the first row that two blocks need is `Positions.first_row`.

    Args:
        embeddings: distance embeddings by falling distance, from `num_keys` - 1 on.
        num_keys: keys before padding; queries are the last of them.
        queries, keys: lengths of the padded sequence, multiples of the block.
    """
    front = keys - num_keys + 1
    back = queries + keys - front - embeddings.shape[1]
    return jnp.pad(embeddings[:, ::-1], ((0, 0), (front, back), (0, 0), (0, 0)))


def sum_diagonals(grads: Float[Array, "B I N C H"], sets: int) -> Float[Array, "G R N H"]:
    """Returns the gradient of a table from those of the parts that the diagonals of blocks read, which overlap.

    Args:
        grads: gradients of every sequence and diagonal.
        sets: number of tables, G.
    """
    totals = grads.reshape(sets, -1, *grads.shape[1:]).sum(axis=1).transpose(0, 1, 3, 2, 4)
    block = totals.shape[2] // 2
    empty = jnp.zeros((sets, 1, block, *totals.shape[3:]), totals.dtype)
    first = jnp.concatenate([totals[:, :, :block], empty], axis=1)
    second = jnp.concatenate([empty, totals[:, :, block:]], axis=1)
    return (first + second).reshape(sets, -1, *totals.shape[3:])


class Positions:
    """Terms of a kernel. Subclasses know how a compiler shifts the columns of a matrix.

    Args:
        settings: terms; c2p: queries with embeddings; p2c: keys with embeddings.
        tables: references to the table of each term [R, H].
        key_blocks: number of blocks of keys.
    """

    def __init__(self, settings: KernelSettings, tables: tuple[Any, ...], key_blocks: int):
        self.settings, self.tables, self.key_blocks = settings, tables, key_blocks
        self.block, self.span = settings.block, 2 * settings.block

    def first_row(self, query_block: Any, key_block: Any) -> Any:
        """Returns the first of the rows of the tables with the distances of two blocks."""
        return (query_block - key_block - 1 + self.key_blocks) * self.block

    def scores(self, q: Array, k: Array, first_row: Any) -> Float[Array, "Q K"]:
        """Returns the sum of the terms of a block of queries and one of keys, float32.

        Args:
            q, k: partners of the embeddings [T, H].
            first_row: result of `first_row`.
        """
        total = jnp.zeros((self.block, self.block), jnp.float32)
        for term, embeddings in self._embeddings(first_row):
            total = total + self.by_key(term, product(q if term == "c2p" else k, embeddings, 1, 1))
        return total

    def gradient(self, term: str, grad_scores: Float[Array, "Q K"], first_row: Any) -> Float[Array, "T H"]:
        """Returns the part of the gradient of queries (c2p) or keys (p2c) that comes from a term, zero without it.

        Its rows are in the order of `by_distance`.

        Args:
            term: c2p or p2c.
            grad_scores: gradient of the sum of the scores, in the dtype of the operands.
            first_row: as in `scores`.
        """
        for each, embeddings in self._embeddings(first_row):
            if each == term:
                return product(self.by_distance(term, grad_scores), embeddings, 1, 0)
        raise AssertionError(term)

    def table_gradients(self, grad_scores: Float[Array, "Q K"], q: Array, k: Array) -> tuple[Array, ...]:
        """Returns the gradients of the rows of every table that a block of queries and one of keys read [C, H].

        Args:
            grad_scores: gradient of the sum of the scores, in the dtype of the operands.
            q, k: partners of the embeddings [T, H].
        """
        return tuple(
            product(self.by_distance(term, grad_scores), self.in_order(q if term == "c2p" else k), 0, 0)
            for term in self.settings.terms
        )

    def rows(self, term: str, table: Any, first_row: Any) -> Float[Array, "C H"]:
        """Reads the rows of a table from `first_row` on.

        Args:
            term: term of the table.
            table: reference to it.
            first_row: as in `scores`.
        """
        raise NotImplementedError

    def by_key(self, term: str, products: Float[Array, "T C"]) -> Float[Array, "Q K"]:
        """Turns the products of queries (c2p) or keys (p2c) and distances into scores of queries and keys."""
        raise NotImplementedError

    def by_distance(self, term: str, grad_scores: Float[Array, "Q K"]) -> Float[Array, "T C"]:
        """Turns the gradients of scores into those of the products; distances that a token does not have get zero."""
        raise NotImplementedError

    def in_order(self, x: Float[Array, "T H"]) -> Float[Array, "T H"]:
        """Turns rows in the order of tokens into that of `by_distance`, and back."""
        return x

    def _embeddings(self, first_row: Any) -> list[tuple[str, Array]]:
        terms = zip(self.settings.terms, self.tables, strict=True)
        return [(term, self.rows(term, table, first_row)) for term, table in terms]
