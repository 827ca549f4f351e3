"""Attention a few heads at a time, whose scores stay in the cache of a processor; the scores are not kept.

A processor reads and writes main memory at a tenth of the speed at which it adds: scores of whole batches, which
softmax and dropout pass over a dozen times, cost more than their products. The backward pass makes them anew, as
FlashAttention does (arXiv:2205.14135), and all of its products read the narrow type, too.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from bertjax.config.model import EncoderConfig
from bertjax.models.dropout import keep_mask
from bertjax.models.linear import Key
from bertjax.models.mesh import per_device

MAX_TILE_SCORES = 3 << 18
"""Of a tile, at most: 3 MiB in float32."""


def tiled_attention(
    q: Float[Array, "C Q N H"],
    k: Float[Array, "C K N H"],
    v: Float[Array, "C K N H"],
    mask: Bool[Array, "C 1 Q K"],
    config: EncoderConfig,
    key: Key | None,
) -> Float[Array, "C Q N H"]:
    """softmax(q k / sqrt(H)) v over the keys that `mask` shows, float32; drops what the plain form would drop."""
    narrow, rate = config.compute_dtype, config.attention_dropout
    if key is None or rate == 0.0:
        run: Callable = functools.partial(_attention, narrow, 1.0)
        return per_device(lambda q, k, v, mask: run(q, k, v, mask, None), (2, 2, 2, None), 2, q, k, v, mask)
    keep, scale = keep_mask(key, rate, (q.shape[0], q.shape[2], q.shape[1], k.shape[1]))
    run = functools.partial(_attention, narrow, scale)
    return per_device(run, (2, 2, 2, None, 1), 2, q, k, v, mask, keep)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _attention(narrow: str, scale: float, q: Array, k: Array, v: Array, mask: Array, keep: Array | None) -> Array:
    return _forward(narrow, scale, q, k, v, mask, keep)[0]


def _forward(
    narrow: str, scale: float, q: Array, k: Array, v: Array, mask: Array, keep: Array | None
) -> tuple[Array, Any]:
    tiles = Tiles(q.shape, k.shape[1])
    # The empty arrays carry the types in which the gradients must come back.
    likes = tuple(jnp.zeros((), x.dtype) for x in (q, k, v))
    saved = (*(tiles.cut(x.astype(narrow)) for x in (q, k, v)), tiles.cut_scores(keep))
    out, logsumexp = tiles.each(functools.partial(_average, scale), mask, *saved)
    return tiles.join(out), (saved, mask, out, logsumexp, likes)


def _backward(narrow: str, scale: float, kept_back: tuple, grad: Array) -> tuple:
    saved, mask, out, logsumexp, likes = kept_back
    rows, heads, length, width = saved[0].shape[1:]
    tiles = Tiles((*grad.shape[:3], width), saved[1].shape[3])
    assert (rows, heads, length) == (tiles.rows, tiles.heads, grad.shape[1])
    slope = tiles.cut(grad)
    # The mean slope of a query's shares, by what they have made: sum over keys of share * (grad . v) = grad . out.
    means = (slope.astype(jnp.float32) * out).sum(axis=-1)
    slopes = tiles.each(functools.partial(_slopes, scale), mask, *saved, logsumexp, means, slope.astype(narrow))
    joined = (tiles.join(x).astype(like.dtype) for x, like in zip(slopes, likes, strict=True))
    return (*joined, None, None)


_attention.defvjp(_forward, _backward)


def _average(scale: float, mask: Array, q: Array, k: Array, v: Array, keep: Array | None) -> tuple[Array, Array]:
    """A tile: the mixed values [r, n, Q, H] and the logarithms of the sums [r, n, Q], float32."""
    scores = _scores(q, k, mask)
    with jax.named_scope("softmax"):
        highest = scores.max(axis=-1, keepdims=True)
        shares = jnp.exp(scores - highest)
        total = shares.sum(axis=-1, keepdims=True)
        shares = shares / total
    return _product("rnqk,rnkh->rnqh", _drop(shares, keep, scale).astype(v.dtype), v), (highest + jnp.log(total))[
        ..., 0
    ]


def _slopes(
    scale: float,
    mask: Array,
    q: Array,
    k: Array,
    v: Array,
    keep: Array | None,
    logsumexp: Array,
    means: Array,
    grad: Array,
) -> tuple[Array, Array, Array]:
    """A tile: slopes of q, k, v from that of the mixed values."""
    with jax.named_scope("softmax"):
        shares = jnp.exp(_scores(q, k, mask) - logsumexp[..., None])
    of_v = _product("rnqk,rnqh->rnkh", _drop(shares, keep, scale).astype(v.dtype), grad)
    of_shares = _drop(_product("rnqh,rnkh->rnqk", grad, v), keep, scale)
    with jax.named_scope("softmax"):
        of_scores = (shares * (of_shares - means[..., None]) / math.sqrt(q.shape[-1])).astype(q.dtype)
    return _product("rnqk,rnkh->rnqh", of_scores, k), _product("rnqk,rnqh->rnkh", of_scores, q), of_v


def _scores(q: Array, k: Array, mask: Array) -> Array:
    scores = _product("rnqh,rnkh->rnqk", q, k) / math.sqrt(q.shape[-1])
    return jnp.where(mask, scores, jnp.finfo(jnp.float32).min)


@jax.named_scope("dropout")
def _drop(x: Array, keep: Array | None, scale: float) -> Array:
    return x if keep is None else jnp.where(keep, x * scale, 0.0)


def _product(equation: str, a: Array, b: Array) -> Array:
    return jnp.einsum(equation, a, b, preferred_element_type=jnp.float32)


class Tiles:
    """How [C, Q, N, H] is cut: `rows` whole rows, or of one row `heads` heads, at a time."""

    def __init__(self, shape: tuple[int, ...], keys: int):
        self.whole, self.length, self.all_heads, self.width = shape
        of_head = self.length * keys
        self.heads = _most(self.all_heads, MAX_TILE_SCORES // of_head)
        self.rows = (
            1 if self.heads < self.all_heads else _most(self.whole, MAX_TILE_SCORES // (of_head * self.all_heads))
        )
        self.groups = self.all_heads // self.heads  # tiles of a row

    def cut(self, x: Array) -> Array:
        """[C, S, N, H] -> [T, r, n, S, H]."""
        parts = x.reshape(-1, self.rows, x.shape[1], self.groups, self.heads, x.shape[3])
        return parts.transpose(0, 3, 1, 4, 2, 5).reshape(-1, self.rows, self.heads, x.shape[1], x.shape[3])

    def join(self, x: Array) -> Array:
        """The way back."""
        parts = x.reshape(-1, self.groups, self.rows, self.heads, *x.shape[3:])
        return parts.transpose(0, 2, 4, 1, 3, 5).reshape(self.whole, x.shape[3], self.all_heads, x.shape[4])

    def cut_scores(self, x: Array | None) -> Array | None:
        """[C, N, Q, K] -> [T, r, n, Q, K]; nothing moves, for tiles hold whole rows or heads of one."""
        return None if x is None else x.reshape(-1, self.rows, self.heads, *x.shape[2:])

    def each(self, function: Callable, mask: Array, *parts: Any) -> Any:
        """`function(mask of the tile, *parts of the tile)` of every tile."""
        masks = mask.reshape(-1, self.rows, *mask.shape[1:])
        count = self.whole // self.rows * self.groups
        if count == 1:
            made = function(masks[0], *jax.tree.map(lambda part: part[0], parts))
            return jax.tree.map(lambda part: part[None], made)

        def body(_: None, own: tuple) -> tuple[None, Any]:
            number, parts = own
            return None, function(jax.lax.dynamic_index_in_dim(masks, number // self.groups, keepdims=False), *parts)

        return jax.lax.scan(body, None, (jnp.arange(count), parts))[1]


def _most(number: int, limit: int) -> int:
    """The largest divisor of `number` that is not above `limit`, or 1."""
    return int(max((each for each in np.arange(1, number + 1) if number % each == 0 and each <= limit), default=1))
