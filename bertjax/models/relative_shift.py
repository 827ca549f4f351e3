"""Scores of queries against embeddings of relative distances, without a gather (Transformer-XL's relative shift).

A score depends on the distance i - j only. Tokens are multiplied with the embeddings of all distances in order, and
the scores by key are a sheared view of the product: a reshape, whose gradient is a reshape. Queries at arbitrary
positions take one slice each; on TPUs, where that is a loop over queries, they are shifted together. The gradient of a
gather would be summed in no fixed order on GPUs and one element at a time on TPUs. Forward and backward of these
scores, in ms on two CPU cores, and MB of scratch; 2 sequences, 12 heads of 64, float32:

    512 queries, 512 keys   whole sequences 387, 147 MB   blocks of 64: 273, 97 MB    of 128: 363, 100 MB
    512 queries, 896 keys   whole sequences 539, 201 MB   blocks of 64: 458, 160 MB   of 128: 521, 159 MB
    85 queries, 896 keys    slices 48, 33 MB              scattered over 512 queries: 607, 201 MB

Axes: K keys, T queries at given positions, R = K + S - 1 distances, G = 1 or B sets of embeddings.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from bertjax.config.model import EncoderConfig
from bertjax.models.linear import einsum
from bertjax.models.mesh import target_platform

_BLOCK = 64  # queries multiplied together: the overhead is a factor of (K + 64) / K


def distance_scores(
    q: Float[Array, "B S N H"], embeddings: Float[Array, "G R N H"], num_keys: int, config: EncoderConfig
) -> Float[Array, "B N S K"]:
    """Computes q_i embeddings[i - j] for queries that are the last S of K tokens.

    The product is held in the dtype of the activations, which halves the memory where that is bfloat16.

    Args:
        q: queries [B, S, N, H].
        embeddings: distance embeddings from K - 1 to 1 - S [G, R, N, H]; one set, or one per sequence.
        num_keys: K.
        config: dtypes.

    Returns:
        Scores [B, N, S, K], float32.
    """
    batch, length, heads, size = q.shape
    if embeddings.shape[0] > 1:
        scores = einsum("bqnh,brnh->bnqr", q, embeddings, config).astype(config.result_dtype)
        return relative_shift(scores, num_keys).astype(jnp.float32)
    block = block_size(length)
    starts = range(length - block, -1, -block)
    by_block = jnp.stack([embeddings[0, start : start + num_keys + block - 1] for start in starts])
    blocks = q.reshape(batch, len(starts), block, heads, size)
    scores = einsum("bcqnh,crnh->bncqr", blocks, by_block, config).astype(config.result_dtype)
    return relative_shift(scores, num_keys).reshape(batch, heads, length, num_keys).astype(jnp.float32)


def distance_scores_at(
    q: Float[Array, "B T N H"],
    embeddings: Float[Array, "G R N H"],
    positions: Int[Array, "B T"],
    num_keys: int,
    config: EncoderConfig,
) -> Float[Array, "B N T K"]:
    """Computes the same for queries at `positions` in [0, S). Args: as in `distance_scores`."""
    equation = "btnh,brnh->btnr"
    if embeddings.shape[0] == 1:
        equation, embeddings = "btnh,rnh->btnr", embeddings[0]
    scores = einsum(equation, q, embeddings, config)
    starts = scores.shape[-1] - num_keys - positions

    slices = _slices_by_bits if target_platform() == "tpu" else _slices
    return slices(scores, starts, num_keys).swapaxes(1, 2)


def _slices(x: Float[Array, "B T N R"], starts: Int[Array, "B T"], size: int) -> Float[Array, "B T N size"]:
    """Returns x[b, t, :, start : start + size] of every query."""

    def take(x: Array, start: Array) -> Array:
        return jax.lax.dynamic_slice_in_dim(x, start, size, axis=-1)

    return jax.vmap(jax.vmap(take))(x, starts)


def _slices_by_bits(x: Float[Array, "B T N R"], starts: Int[Array, "B T"], size: int) -> Float[Array, "B T N size"]:
    """Returns the same by one shift of all queries per bit of `starts`; a TPU would take the slices one by one."""
    bits = (x.shape[-1] - size).bit_length()
    x = jnp.pad(x, ((0, 0), (0, 0), (0, 0), (0, size + 2**bits - 1 - x.shape[-1])))
    for bit in reversed(range(bits)):
        width = size + 2**bit - 1
        moves = (starts >> bit & 1).astype(bool)[:, :, None, None]
        x = jnp.where(moves, x[..., 2**bit : 2**bit + width], x[..., :width])
    return x


def relative_shift(x: Float[Array, "*b Q R"], num_keys: int) -> Float[Array, "*b Q K"]:
    """Turns scores by distance into scores by key: out[i, j] = x[i, Q - 1 - i + j] for j < num_keys = R - Q + 1.

    Read in rows of R - 1 numbers, the flat array has them in place (arXiv:1901.02860, appendix B).
    """
    *lead, count, width = x.shape
    if count == 1:
        return x[..., :num_keys]
    flat = x.reshape(*lead, count * width)[..., count - 1 : count * width - 1]
    return flat.reshape(*lead, count, width - 1)[..., :num_keys]


def block_size(length: int) -> int:
    """Returns the largest divisor of `length` from `_BLOCK` / 2 to `_BLOCK`; `length` if there is none."""
    return next((size for size in range(_BLOCK, _BLOCK // 2 - 1, -1) if length % size == 0), length)
