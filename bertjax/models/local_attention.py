"""Block-local attention: each block of queries is multiplied with the keys within its window only.

Scores of whole sequences cost S * S, scores in blocks S * 3 * block: 1/43 at 8192 tokens and a window of 128. The
result is exact: no key that is left out is visible under `attention_mask`.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from bertjax.models.attention_context import AttentionContext, visibility_mask

_MIN_BLOCK = 64  # tokens: smaller blocks leave a matrix unit idle


class Blocks(NamedTuple):
    """C = B * (blocks per sequence); Q = tokens per block; K = 3 * Q: the block, the one before and the one after."""

    q: Float[Array, "C Q N H"]
    k: Float[Array, "C K N H"]
    v: Float[Array, "C K N H"]
    mask: Bool[Array, "C 1 Q K"]


def block_size(window: int, minimum: int = _MIN_BLOCK) -> int:
    """Returns the tokens per block: at least window // 2, and a multiple of 8."""
    return -(-max(window // 2, minimum) // 8) * 8


def should_block(length: int, window: int) -> bool:
    """Returns whether blocks are less work than whole sequences, with a margin for the copies that they need."""
    return window > 0 and length > 3 * block_size(window)


def split_blocks(q: Array, k: Array, v: Array, context: AttentionContext, block: int) -> Blocks:
    """Splits queries into blocks, each with the keys and values in its window.

    Args:
        q, k, v: [B, S, N, H] each.
        context: as in `dot_product_attention`.
        block: tokens per block.
    """
    batch, length = q.shape[:2]
    count = -(-length // block)

    def split(x: Array) -> Array:
        padding = [(0, 0), (0, count * block - length)] + [(0, 0)] * (x.ndim - 2)
        return jnp.pad(x, padding).reshape(batch, count, block, *x.shape[2:])

    def with_neighbors(x: Array) -> Array:
        edge = jnp.zeros_like(x[:, :1])
        before, after = jnp.concatenate([edge, x[:, :-1]], axis=1), jnp.concatenate([x[:, 1:], edge], axis=1)
        return jnp.concatenate([before, x, after], axis=2)

    def flatten(x: Array) -> Array:
        return x.reshape(batch * count, *x.shape[2:])

    ids = split(context.segment_ids)
    position = jnp.arange(3 * block)  # the same in every block: only distances matter
    query_position, key_position = position[None, None, block:-block], position[None, None]
    mask = visibility_mask(ids, with_neighbors(ids), query_position, key_position, context.window, context.causal)
    keys, values = (flatten(with_neighbors(split(x))) for x in (k, v))
    return Blocks(flatten(split(q)), keys, values, flatten(mask)[:, None])


def merge_blocks(x: Float[Array, "C Q N H"], batch: int, length: int) -> Float[Array, "B S N H"]:
    """Joins blocks of queries into sequences.

    Args:
        x: [C, Q, N, H].
        batch: B.
        length: S; padding of the last block is cut off.
    """
    return x.reshape(batch, -1, *x.shape[2:])[:, :length]
