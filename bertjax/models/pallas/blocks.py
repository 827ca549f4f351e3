"""Inputs of the attention kernels in blocks of queries and keys: the visible pairs, and those that dropout keeps."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jaxtyping import Array, Bool, Int

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
