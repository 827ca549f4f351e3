"""Optimizer moments in bfloat16: half the memory, with stochastic rounding so that small changes are not lost."""

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
"""Fields of optimizer states that hold one mean per parameter; a random word has 16 bits for each of the two."""


class Bf16State(NamedTuple):
    """Number of steps so far, and the state of the wrapped optimizer with its moments in bfloat16."""

    step: Array
    inner: Any


def with_bf16_moments(optimizer: optax.GradientTransformation, seed: int) -> optax.GradientTransformationExtraArgs:
    """Wraps an optimizer, still computed in float32, so that its moments are stored in bfloat16 between steps.

    A mean of decay b moves by a share 1 - b of the difference, and half of the distance between two bfloat16 is 2^-9 to
    2^-8 of their value: rounded to the nearest, a mean with b = 0.999 never changes. So it is rounded up with a
    probability in proportion to how near it is to the upper value: the expectation is the float32 one. For b = 0.999
    this adds 5 % to the second moment (one standard deviation), 2.5 % to its root.
    The random bits are a function of the seed, the number of the step and the parameter's name: the same on every mesh
    and after every resume.

    Args:
        optimizer: Transform whose state has fields of `MOMENTS`.
        seed: Seed of the run.
    """
    optimizer = optax.with_extra_args_support(optimizer)

    def init(params: Params) -> Bf16State:
        inner = optimizer.init(params)
        zeros = {name: optax.tree.cast(getattr(inner, name), jnp.bfloat16) for name in _moments(inner)}
        return Bf16State(jnp.zeros((), jnp.int32), inner._replace(**zeros))

    def update(grads: Params, state: Bf16State, params: Params | None = None, **extra: Any) -> tuple[Params, Bf16State]:
        wide = {name: optax.tree.cast(getattr(state.inner, name), jnp.float32) for name in _moments(state.inner)}
        updates, inner = optimizer.update(grads, state.inner._replace(**wide), params, **extra)
        words = _random_words(jax.random.fold_in(purpose_key(seed, "moments"), state.step), inner.mu)
        moments = {
            name: jax.tree.map(
                lambda leaf, word, part=part: stochastic_round(leaf, word >> (16 * part)), getattr(inner, name), words
            )
            for part, name in enumerate(MOMENTS)
            if name in _moments(inner)
        }
        return updates, Bf16State(optax.safe_increment(state.step), inner._replace(**moments))

    return optax.GradientTransformationExtraArgs(init, update)


def stochastic_round(value: Float[Array, "..."], bits: UInt32[Array, "..."]) -> Array:
    """Rounds float32 [...] to a neighboring bfloat16, the nearer one more likely, by the lower 16 of `bits`.

    A bfloat16 is the upper half of a float32: what is added to the lower half carries over in proportion to it.
    """
    whole = jax.lax.bitcast_convert_type(value, jnp.uint32) + (bits & 0xFFFF)
    upper = jax.lax.bitcast_convert_type((whole >> 16).astype(jnp.uint16), jnp.bfloat16)
    return jnp.where(jnp.isfinite(value), upper, value.astype(jnp.bfloat16))  # a NaN may carry over into a number


def _random_words(key: Array, moments: Params) -> Params:
    """Returns a random uint32 for every number of a tree."""

    def draw(path: Any, leaf: Array) -> Array:
        return random_bits(jax.random.fold_in(key, zlib.crc32(keystr(path).encode())), leaf.shape)

    return tree_map_with_path(draw, moments)


def _moments(state: Any) -> list[str]:
    return [name for name in MOMENTS if name in state._fields]
