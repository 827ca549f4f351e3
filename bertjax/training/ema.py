"""Exponential moving average of the weights, stored next to the optimizer's moments."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array

from bertjax.training.sharding import put_tree
from bertjax.types import Params


class EmaState(NamedTuple):
    """Number of steps so far, and the average."""

    step: Array
    average: Params


def track_ema(decay: float) -> optax.GradientTransformation:
    """Averages the weights after each step, and leaves the step as it is; the last transform of a chain.

    average <- d average + (1 - d) weights with d = min(decay, (1 + t) / (10 + t)): the first weights are random, and
    must not stay in it for 1 / (1 - decay) steps (the rule of TensorFlow's ExponentialMovingAverage).
    As a part of the optimizer's state the average is sharded, saved and donated as the moments are.
    """

    def init(params: Params) -> EmaState:
        return EmaState(jnp.zeros((), jnp.int32), jax.tree.map(lambda leaf: jnp.array(leaf, jnp.float32), params))

    def update(updates: Params, state: EmaState, params: Params) -> tuple[Params, EmaState]:
        step = optax.safe_increment(state.step)
        d = jnp.minimum(decay, (1.0 + step) / (10.0 + step))
        weights = optax.apply_updates(params, updates)
        average = jax.tree.map(lambda old, new: old + (1.0 - d) * (new - old), state.average, weights)
        return updates, EmaState(step, average)

    return optax.GradientTransformation(init, update)


def ema_params(opt_state: Any) -> Params | None:
    """Returns the averaged weights in the state of an optimizer, None without `track_ema`."""
    last = opt_state[-1] if isinstance(opt_state, tuple) and opt_state else None
    return last.average if isinstance(last, EmaState) else None


def reset_ema(opt_state: Any, params: Params) -> Any:
    """Returns the state of a new optimizer with an average that begins with `params`, if it has one.

    The buffers are new, with the shardings of the old ones: the step donates weights and average alike.
    """
    old = ema_params(opt_state)
    if old is None:
        return opt_state
    if jax.process_count() > 1:  # every process has the values
        average = put_tree(params, jax.tree.map(lambda leaf: leaf.sharding, old))
    else:
        average = jax.tree.map(lambda leaf, new: jax.device_put(new, leaf.sharding, may_alias=False), old, params)
    return (*opt_state[:-1], opt_state[-1]._replace(average=average))
