"""Rows cut into blocks for attention with a window: every block of queries meets only the keys that it can see.

Scores over the whole row cost S * S, those in blocks S * 3 * block: at 8192 tokens and a window of 128 one 43rd.
Exact: what is left out is invisible under `attention_mask`.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from bertjax.models.attention_context import AttentionContext, visibility_mask

_SMALLEST = 64  # tokens: smaller blocks leave a matrix unit idle


class Blocks(NamedTuple):
    """C = B * (blocks of a row), Q = tokens of a block, K = 3 * Q: the block, the one before and the one after."""

    q: Float[Array, "C Q N H"]
    k: Float[Array, "C K N H"]
    v: Float[Array, "C K N H"]
    mask: Bool[Array, "C 1 Q K"]


def block_size(window: int, smallest: int = _SMALLEST) -> int:
    """Tokens of a block: at least the reach of the window, a multiple of 8."""
    return -(-max(window // 2, smallest) // 8) * 8


def should_block(length: int, window: int) -> bool:
    """Whether blocks are less work than whole rows, with a margin for the copies that they need."""
    return window > 0 and length > 3 * block_size(window)


def split_blocks(q: Array, k: Array, v: Array, context: AttentionContext, block: int) -> Blocks:
    """Queries, and for each block of them the keys and values in reach."""
    rows, length = q.shape[:2]
    count = -(-length // block)

    def cut(x: Array) -> Array:
        padding = [(0, 0), (0, count * block - length)] + [(0, 0)] * (x.ndim - 2)
        return jnp.pad(x, padding).reshape(rows, count, block, *x.shape[2:])

    def with_neighbours(x: Array) -> Array:
        edge = jnp.zeros_like(x[:, :1])
        return jnp.concatenate(
            [jnp.concatenate([edge, x[:, :-1]], axis=1), x, jnp.concatenate([x[:, 1:], edge], axis=1)], axis=2
        )

    def merge(x: Array) -> Array:
        return x.reshape(rows * count, *x.shape[2:])

    ids = cut(context.segment_ids)
    place = jnp.arange(3 * block)  # the same in every block: only distances are asked for
    mask = visibility_mask(
        ids, with_neighbours(ids), place[None, None, block:-block], place[None, None], context.window, False
    )
    return Blocks(merge(cut(q)), merge(with_neighbours(cut(k))), merge(with_neighbours(cut(v))), merge(mask)[:, None])


def merge_blocks(x: Float[Array, "C Q N H"], rows: int, length: int) -> Float[Array, "B S N H"]:
    """The rows of which these are the blocks of queries."""
    return x.reshape(rows, -1, *x.shape[2:])[:, :length]
