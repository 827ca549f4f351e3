"""Scores of queries and projected distances: only i - j matters, so no score is looked up.

A token is multiplied with the distances in order, and the scores of a row of tokens are a sheared view of the product:
a reshape, whose gradient is a reshape. Queries at any places take one slice each. A look-up's gradient would add in no
fixed order on a GPU, and one by one on a TPU. Forward and backward of this product alone, in ms on two busy CPU cores,
and MB of scratch, 2 rows, 12 heads of 64, float32:

    512 tokens, 512 keys    whole rows 387, 147 MB    blocks of 64: 273, 97 MB    of 128: 363, 100 MB
    512 tokens, 896 keys    whole rows 539, 201 MB    blocks of 64: 458, 160 MB   of 128: 521, 159 MB
    85 places, 896 keys     slices 48, 33 MB          scattered over 512 tokens: 607, 201 MB
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from bertjax.config.model import EncoderConfig

_BLOCK = 64  # tokens that are multiplied together: (K + 64) / K of the products that are needed


def distance_scores(
    q: Float[Array, "B S N H"], rows: Float[Array, "G W N H"], num_keys: int, config: EncoderConfig
) -> Float[Array, "B N S K"]:
    """q_i rows[i - j] for queries that are the last S of the K tokens; `rows` by falling distance from K - 1 to 1 - S.

    There is one set of rows, or one for each row of the batch. The product is kept in the type of the activations: half
    of float32's memory where that is bfloat16.
    """
    batch, length, heads, size = q.shape
    if rows.shape[0] > 1:
        scores = einsum("bqnh,bwnh->bnqw", q, rows, config).astype(config.result_dtype)
        return relative_shift(scores, num_keys).astype(jnp.float32)
    block = block_size(length)
    starts = range(length - block, -1, -block)
    of_blocks = jnp.stack([rows[0, start : start + num_keys + block - 1] for start in starts])
    in_blocks = q.reshape(batch, len(starts), block, heads, size)
    scores = einsum("bcqnh,cwnh->bncqw", in_blocks, of_blocks, config).astype(config.result_dtype)
    return relative_shift(scores, num_keys).reshape(batch, heads, length, num_keys).astype(jnp.float32)


def distance_scores_at(
    q: Float[Array, "B T N H"],
    rows: Float[Array, "G W N H"],
    places: Int[Array, "B T"],
    num_keys: int,
    config: EncoderConfig,
) -> Float[Array, "B N T K"]:
    """The same for queries that stand at `places` of the row, in [0, S)."""
    spec = "btnh,bwnh->btnw"
    if rows.shape[0] == 1:
        spec, rows = "btnh,wnh->btnw", rows[0]
    scores = einsum(spec, q, rows, config)
    starts = scores.shape[-1] - num_keys - places

    def own(scores: Array, start: Array) -> Array:
        return jax.lax.dynamic_slice_in_dim(scores, start, num_keys, axis=-1)

    return jax.vmap(jax.vmap(own))(scores, starts).swapaxes(1, 2)


def relative_shift(x: Float[Array, "*b Q W"], length: int) -> Float[Array, "*b Q K"]:
    """out[i, j] = x[i, Q - 1 - i + j], j < `length` = W - Q + 1: read on, rows of W - 1 lie as they are wanted.

    Turns scores by distance into scores by key.
    """
    *lead, count, width = x.shape
    if count == 1:
        return x[..., :length]
    flat = x.reshape(*lead, count * width)[..., count - 1 : count * width - 1]
    return flat.reshape(*lead, count, width - 1)[..., :length]


def block_size(length: int) -> int:
    """The most tokens up to `_BLOCK`, and half of that at least, that divide the row; else the row."""
    return next((size for size in range(_BLOCK, _BLOCK // 2 - 1, -1) if length % size == 0), length)


def einsum(spec: str, a: Array, b: Array, config: EncoderConfig) -> Array:
    """Operands in the type of products, sums in float32."""
    narrow = jnp.dtype(config.compute_dtype)
    return jnp.einsum(spec, a.astype(narrow), b.astype(narrow), preferred_element_type=jnp.float32)
