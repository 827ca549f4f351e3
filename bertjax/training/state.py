"""The train state and the keys that everything random is drawn from."""

from __future__ import annotations

import zlib
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array

from bertjax.types import Params


class TrainState(NamedTuple):
    """All that a checkpoint must hold. `step` counts updates made; `cursor` is the index of the next global batch.

    `skipped` counts the batches whose update was refused, `consecutive_skipped` those since the last update.
    """

    params: Params
    opt_state: Any
    carry: Any
    step: Array
    cursor: Array
    skipped: Array
    consecutive_skipped: Array


COUNTER_DEFAULTS = {"skipped": 0, "consecutive_skipped": 0}
"""What these fields are in a checkpoint that is older than they are."""


def new_state(params: Params, carry: Any, optimizer: optax.GradientTransformation) -> TrainState:
    # One array each: the step takes their buffers over.
    counters = {name: jnp.zeros((), jnp.int32) for name in ("step", "cursor", *COUNTER_DEFAULTS)}
    return TrainState(params, optimizer.init(params), carry, **counters)


def purpose_key(seed: int | Array, purpose: str, impl: str | None = None) -> Array:
    """The root key of one purpose ("init", "corrupt", "dropout", "eval"): a pure function of the seed.

    `impl` None is threefry, the same bits on every mesh, whatever jax's own default was set to.
    """
    root = jax.random.key(seed, impl=impl or "threefry2x32")
    return jax.random.fold_in(root, zlib.crc32(purpose.encode()))
