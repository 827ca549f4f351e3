"""Blocks of queries and keys of `triton_attention`: the visible pairs, and those that dropout keeps."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from bertjax.models.dropout import mix_bits

BLOCK = 64
"""Queries and keys per block."""


class KernelSettings(NamedTuple):
    """Constants of a compiled kernel."""

    window: int
    causal: bool
    rate: float
    interpret: bool
    terms: tuple[str, ...] = ()


def product(a: Array, b: Array, a_axis: int, b_axis: int) -> Array:
    """Sums over one axis of each of two matrices, float32.

    Args:
        a, b: matrices.
        a_axis, b_axis: axis of each to sum over.
    """
    return jax.lax.dot_general(a, b, (((a_axis,), (b_axis,)), ((), ())), preferred_element_type=jnp.float32)


def visible_pairs(
    settings: KernelSettings, query_ids: Array, key_ids: Array, query_block: Any, key_block: Any
) -> Array:
    """Returns the rule of `attention_context.visibility_mask` for real queries of a block and the keys of one.

    Args:
        settings: window and causality.
        query_ids, key_ids: segment ids [BLOCK].
        query_block, key_block: numbers of the blocks in the sequence.
    """
    query, key = query_ids[:, None], key_ids[None, :]
    visible = (key > 0) & (query == key)
    if settings.window or settings.causal:
        distance = _token_positions(query_block)[:, None] - _token_positions(key_block)[None, :]
        visible = visible & (distance >= 0) if settings.causal else visible
        visible = visible & (jnp.abs(distance) <= settings.window // 2) if settings.window else visible
    return visible


def _token_positions(block: Any) -> Array:
    return block * BLOCK + jnp.arange(BLOCK)


def visible_blocks(
    settings: KernelSettings, query_ids: Int[Array, "B S"], key_ids: Int[Array, "B K"]
) -> Bool[Array, "B I J"]:
    """Returns False for a block of queries and one of keys whose ranges of segment ids have nothing in common.

    That skips every block of other segments if ids rise along the sequence, as packing numbers them.

    Args:
        settings: window and causality.
        query_ids, key_ids: segment ids; 0 = padding.
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


def block_bounds(visible: Bool[Array, "B I J"]) -> Int[Array, "B I 2"]:
    """Returns for each I the first visible J and the one after the last, both 0 if there is none."""
    numbers = jnp.arange(visible.shape[2], dtype=jnp.int32)[None, None]
    after = jnp.where(visible, numbers + 1, 0).max(axis=2)
    first = jnp.where(visible, numbers, np.int32(visible.shape[2])).min(axis=2)
    return jnp.stack([jnp.minimum(first, after), after], axis=2)


def drop_pairs(settings: KernelSettings, x: Array, words_ref: Any, query_block: Any, key_block: Any) -> Array:
    """Applies dropout to the pairs of a block of queries and one of keys.

    Args:
        settings: rate.
        x: number per query and key [BLOCK, BLOCK].
        words_ref: random words of the sequence and head.
        query_block, key_block: numbers of the blocks in the sequence.
    """
    if not settings.rate:
        return x
    keep = keep_block(
        words_ref[0], words_ref[1], _token_positions(query_block), _token_positions(key_block), settings.rate
    )
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
