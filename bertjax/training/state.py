"""The train state, and the keys from which all random numbers are drawn."""

from __future__ import annotations

import zlib
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array

from bertjax.models.dropout import HASH
from bertjax.types import Params


class TrainState(NamedTuple):
    """Everything that a checkpoint stores.

    `step` counts completed steps, and `cursor` is the index of the next global batch. `skipped` counts the batches that
    were refused, `consecutive_skipped` those since the last step.
    """

    params: Params
    opt_state: Any
    carry: Any
    step: Array
    cursor: Array
    skipped: Array
    consecutive_skipped: Array


COUNTER_DEFAULTS = {"skipped": 0, "consecutive_skipped": 0, r"opt_state/0/frozen_steps/.*": 0}
"""Values of leaves that an older checkpoint does not have, by regexes of their paths."""


def new_state(params: Params, carry: Any, optimizer: optax.GradientTransformation) -> TrainState:
    """Returns the state before the first step.

    Args:
        params: Initial weights.
        carry: Initial memory of every sequence, [B, ...].
        optimizer: Makes its state.
    """
    # One array each: the step donates their buffers.
    counters = {name: jnp.zeros((), jnp.int32) for name in TrainState._fields[3:]}
    return TrainState(params, optimizer.init(params), carry, **counters)


def purpose_key(seed: int | Array, purpose: str, impl: str | None = None) -> Array:
    """Returns the root key [] of one purpose, a pure function of the seed.

    Args:
        seed: Seed of the run.
        purpose: "init", "corrupt", "dropout", "eval" or "moments".
        impl: Random bit generator: hash, or one of jax's; None = threefry, whatever jax's default is.
    """
    root = jax.random.key(seed, impl=HASH if impl == "hash" else impl or "threefry2x32")
    return jax.random.fold_in(root, zlib.crc32(purpose.encode()))
