"""Attention over tiles of a few heads, whose scores fit a processor's cache; the backward pass recomputes them.

Softmax and dropout pass over the scores a dozen times, and a processor reads memory at a tenth of the speed of its
arithmetic: scores of whole batches cost more than their matmuls. The backward pass is FlashAttention's
(arXiv:2205.14135); all of its matmuls read operands in `compute_dtype`.

Axes: C sequences or blocks of sequences, Q queries, K keys, T tiles of r sequences and n heads.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from bertjax.config.model import EncoderConfig
from bertjax.models.dropout import keep_mask
from bertjax.models.linear import Key, float32_einsum, soft_cap
from bertjax.models.mesh import per_device

MAX_TILE_SCORES = 3 << 18
"""Scores per tile: 3 MiB in float32."""


def tiled_attention(
    q: Float[Array, "C Q N H"],
    k: Float[Array, "C K N H"],
    v: Float[Array, "C K N H"],
    mask: Bool[Array, "C 1 Q K"],
    config: EncoderConfig,
    key: Key | None,
) -> Float[Array, "C Q N H"]:
    """Computes softmax(q k / sqrt(H)) v, float32; caps scores and drops probabilities as the plain form does.

    Args: as in `dot_product_attention`; `mask` is True where a query sees a key.
    """
    compute, rate, cap = config.compute_dtype, config.attention_dropout, config.attention_soft_cap
    if key is None or rate == 0.0:
        run: Callable = functools.partial(_attention, compute, 1.0, cap)
        return per_device(lambda q, k, v, mask: run(q, k, v, mask, None), (2, 2, 2, None), 2, q, k, v, mask)
    keep, scale = keep_mask(key, rate, (q.shape[0], q.shape[2], q.shape[1], k.shape[1]))
    run = functools.partial(_attention, compute, scale, cap)
    return per_device(run, (2, 2, 2, None, 1), 2, q, k, v, mask, keep)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def _attention(
    compute: str, scale: float, cap: float | None, q: Array, k: Array, v: Array, mask: Array, keep: Array | None
) -> Array:
    return _forward(compute, scale, cap, q, k, v, mask, keep)[0]


def _forward(
    compute: str, scale: float, cap: float | None, q: Array, k: Array, v: Array, mask: Array, keep: Array | None
) -> tuple[Array, Any]:
    tiles = Tiles(q.shape, k.shape[1])
    # The empty arrays carry the dtypes that the gradients must have.
    likes = tuple(jnp.zeros((), x.dtype) for x in (q, k, v))
    inputs = (*(tiles.split(x.astype(compute)) for x in (q, k, v)), tiles.split_scores(keep))
    out, logsumexp = tiles.map(functools.partial(_tile_forward, scale, cap), mask, *inputs)
    return tiles.join(out), (inputs, mask, out, logsumexp, likes)


def _backward(compute: str, scale: float, cap: float | None, saved: tuple, grad: Array) -> tuple:
    inputs, mask, out, logsumexp, likes = saved
    tiles = Tiles((*grad.shape[:3], inputs[0].shape[4]), inputs[1].shape[3])
    assert inputs[0].shape[1:4] == (tiles.sequences, tiles.heads, grad.shape[1])
    grad_out = tiles.split(grad)
    # Mean gradient of a query's probabilities, from the output: sum over keys of p * (grad . v) = grad . out.
    means = (grad_out.astype(jnp.float32) * out).sum(axis=-1)
    run = functools.partial(_tile_backward, scale, cap)
    grads = tiles.map(run, mask, *inputs, logsumexp, means, grad_out.astype(compute))
    joined = (tiles.join(x).astype(like.dtype) for x, like in zip(grads, likes, strict=True))
    return (*joined, None, None)


_attention.defvjp(_forward, _backward)


def _tile_forward(
    scale: float, cap: float | None, mask: Array, q: Array, k: Array, v: Array, keep: Array | None
) -> tuple[Array, Array]:
    """Returns the averaged values [r, n, Q, H] and the logsumexp of the scores [r, n, Q] of one tile, float32."""
    scores = _masked(_scores(q, k, cap), mask)
    with jax.named_scope("softmax"):
        highest = scores.max(axis=-1, keepdims=True)
        probabilities = jnp.exp(scores - highest)
        total = probabilities.sum(axis=-1, keepdims=True)
        probabilities = probabilities / total
    values = float32_einsum("rnqk,rnkh->rnqh", _drop(probabilities, keep, scale).astype(v.dtype), v)
    return values, (highest + jnp.log(total))[..., 0]


def _tile_backward(
    scale: float,
    cap: float | None,
    mask: Array,
    q: Array,
    k: Array,
    v: Array,
    keep: Array | None,
    logsumexp: Array,
    means: Array,
    grad_out: Array,
) -> tuple[Array, Array, Array]:
    """Returns the gradients of q, k and v of one tile (the FlashAttention backward pass)."""
    scores = _scores(q, k, cap)
    with jax.named_scope("softmax"):
        probabilities = jnp.exp(_masked(scores, mask) - logsumexp[..., None])
    grad_v = float32_einsum("rnqk,rnqh->rnkh", _drop(probabilities, keep, scale).astype(v.dtype), grad_out)
    grad_probabilities = _drop(float32_einsum("rnqh,rnkh->rnqk", grad_out, v), keep, scale)
    with jax.named_scope("softmax"):
        grad_scores = probabilities * (grad_probabilities - means[..., None]) / math.sqrt(q.shape[-1])
        if cap is not None:
            grad_scores = grad_scores * (1.0 - jnp.square(scores / cap))
        grad_scores = grad_scores.astype(q.dtype)
    return float32_einsum("rnqk,rnkh->rnqh", grad_scores, k), float32_einsum("rnqk,rnqh->rnkh", grad_scores, q), grad_v


def _scores(q: Array, k: Array, cap: float | None) -> Array:
    return soft_cap(float32_einsum("rnqh,rnkh->rnqk", q, k) / math.sqrt(q.shape[-1]), cap)


def _masked(scores: Array, mask: Array) -> Array:
    return jnp.where(mask, scores, jnp.finfo(jnp.float32).min)


@jax.named_scope("dropout")
def _drop(x: Array, keep: Array | None, scale: float) -> Array:
    return x if keep is None else jnp.where(keep, x * scale, 0.0)


class Tiles:
    """The split of [C, Q, N, H] into tiles: `sequences` whole sequences each, or `heads` heads of one sequence.

    Args:
        shape: (C, Q, N, H).
        num_keys: K.
    """

    def __init__(self, shape: tuple[int, ...], num_keys: int):
        self.batch, length, self.all_heads, _ = shape
        scores = length * num_keys  # per head
        self.heads = _largest_divisor(self.all_heads, MAX_TILE_SCORES // scores)
        whole = self.heads == self.all_heads
        self.sequences = _largest_divisor(self.batch, MAX_TILE_SCORES // (scores * self.all_heads)) if whole else 1
        self.groups = self.all_heads // self.heads  # tiles per sequence

    def split(self, x: Array) -> Array:
        """[C, S, N, H] -> [T, r, n, S, H]."""
        groups = x.reshape(-1, self.sequences, x.shape[1], self.groups, self.heads, x.shape[3])
        return groups.transpose(0, 3, 1, 4, 2, 5).reshape(-1, self.sequences, self.heads, x.shape[1], x.shape[3])

    def join(self, x: Array) -> Array:
        """[T, r, n, S, H] -> [C, S, N, H]."""
        groups = x.reshape(-1, self.groups, self.sequences, self.heads, *x.shape[3:])
        return groups.transpose(0, 2, 4, 1, 3, 5).reshape(self.batch, x.shape[3], self.all_heads, x.shape[4])

    def split_scores(self, x: Array | None) -> Array | None:
        """[C, N, Q, K] -> [T, r, n, Q, K], without a copy: tiles are whole sequences or heads of one."""
        return None if x is None else x.reshape(-1, self.sequences, self.heads, *x.shape[2:])

    def map(self, function: Callable, mask: Array, *inputs: Any) -> Any:
        """Returns `function(mask of the tile, *inputs of the tile)` of every tile, stacked [T, ...].

        Args:
            function: returns a tree of arrays.
            mask: [C, 1, Q, K].
            *inputs: trees of arrays [T, ...].
        """
        masks = mask.reshape(-1, self.sequences, *mask.shape[1:])
        count = self.batch // self.sequences * self.groups
        if count == 1:
            made = function(masks[0], *jax.tree.map(lambda leaf: leaf[0], inputs))
            return jax.tree.map(lambda leaf: leaf[None], made)

        def body(_: None, tile: tuple) -> tuple[None, Any]:
            index, inputs = tile
            return None, function(jax.lax.dynamic_index_in_dim(masks, index // self.groups, keepdims=False), *inputs)

        return jax.lax.scan(body, None, (jnp.arange(count), inputs))[1]


def _largest_divisor(number: int, limit: int) -> int:
    """Returns the largest divisor of `number` that is at most `limit`, or 1."""
    return max((size for size in range(1, number + 1) if number % size == 0 and size <= limit), default=1)
