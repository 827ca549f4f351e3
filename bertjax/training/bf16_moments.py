"""Means of an optimizer kept in bfloat16: half the memory, rounded up or down by chance so that they still move."""

from __future__ import annotations

import zlib
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.tree_util import keystr, tree_map_with_path
from jaxtyping import Array, Float, UInt32

from bertjax.models.dropout import random_bits
from bertjax.training.state import purpose_key
from bertjax.types import Params

MOMENTS = "mu", "nu"
"""Fields of the states of optax and of ours that hold a mean a parameter; a word of bits has 16 for each."""


class Bf16State(NamedTuple):
    """`inner` is the state of the wrapped optimizer, its moments in bfloat16; `updates` counts those made."""

    updates: Array
    inner: Any


def with_bf16_moments(optimizer: optax.GradientTransformation, seed: int) -> optax.GradientTransformation:
    """The same optimizer, computed in float32 as ever, whose moments are bfloat16 from one update to the next.

    A mean of decay b moves by a share 1 - b of what is new, and half of the distance between two bfloat16 is 2^-9 to
    2^-8 of them: rounded to the nearest, a mean with b = 0.999 stands still, and never falls again. So it is rounded up
    with a chance in proportion to how near it is to the upper one: its expectation is the float32 one. What chance adds
    is, for b = 0.999, 5 % of the second moment (one standard deviation), 2.5 % of its root.
    The bits come from the seed, the number of the update and the parameter's name: the same on every mesh and after
    every resume.
    """

    def init(params: Params) -> Bf16State:
        inner = optimizer.init(params)
        zeros = {name: jax.tree.map(_bfloat16, getattr(inner, name)) for name in _moments(inner)}
        return Bf16State(jnp.zeros((), jnp.int32), inner._replace(**zeros))

    def update(grads: Params, state: Bf16State, params: Params | None = None) -> tuple[Params, Bf16State]:
        wide = {name: jax.tree.map(_float32, getattr(state.inner, name)) for name in _moments(state.inner)}
        updates, inner = optimizer.update(grads, state.inner._replace(**wide), params)
        words = _words(jax.random.fold_in(purpose_key(seed, "moments"), state.updates), inner.mu)
        kept = {
            name: jax.tree.map(
                lambda leaf, word, part=part: stochastic_round(leaf, word >> (16 * part)), getattr(inner, name), words
            )
            for part, name in enumerate(MOMENTS)
            if name in _moments(inner)
        }
        return updates, Bf16State(optax.safe_increment(state.updates), inner._replace(**kept))

    return optax.GradientTransformation(init, update)


def stochastic_round(value: Float[Array, "..."], bits: UInt32[Array, "..."]) -> Array:
    """A bfloat16 next to each float32, the nearer the likelier, by the lower 16 bits of a random word.

    A bfloat16 is the upper half of a float32: what is added to the lower half carries over in proportion to it.
    """
    whole = jax.lax.bitcast_convert_type(value, jnp.uint32) + (bits & 0xFFFF)
    upper = jax.lax.bitcast_convert_type((whole >> 16).astype(jnp.uint16), jnp.bfloat16)
    return jnp.where(jnp.isfinite(value), upper, value.astype(jnp.bfloat16))  # a NaN may carry over into a number


def _words(key: Array, moments: Params) -> Params:
    """A random word for every number of a tree."""

    def of_leaf(path: Any, leaf: Array) -> Array:
        return random_bits(jax.random.fold_in(key, zlib.crc32(keystr(path).encode())), leaf.shape)

    return tree_map_with_path(of_leaf, moments)


def _moments(state: Any) -> list[str]:
    return [name for name in MOMENTS if name in state._fields]


def _bfloat16(leaf: Array) -> Array:
    return leaf.astype(jnp.bfloat16)


def _float32(leaf: Array) -> Array:
    return leaf.astype(jnp.float32)
