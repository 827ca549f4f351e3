"""An exponential average of the weights, kept beside the optimizer's moments."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array

from bertjax.training.sharding import put_tree
from bertjax.types import Params


class EmaState(NamedTuple):
    updates: Array
    average: Params


def track_ema(decay: float) -> optax.GradientTransformation:
    """Leaves updates as they are and averages the weights that they lead to; the last link of a chain.

    average <- d average + (1 - d) weights with d = min(decay, (1 + t) / (10 + t)): the first weights are random, and
    must not stay in it for 1 / (1 - decay) updates (the rule of TensorFlow's ExponentialMovingAverage).
    As a part of the optimizer's state it is sharded, saved and donated as the moments are, and a run without it has
    the state that it always had.
    """

    def init(params: Params) -> EmaState:
        return EmaState(jnp.zeros((), jnp.int32), jax.tree.map(lambda leaf: jnp.array(leaf, jnp.float32), params))

    def update(updates: Params, state: EmaState, params: Params):
        done = optax.safe_increment(state.updates)
        kept = jnp.minimum(decay, (1.0 + done) / (10.0 + done))
        weights = optax.apply_updates(params, updates)
        average = jax.tree.map(lambda old, new: old + (1.0 - kept) * (new - old), state.average, weights)
        return updates, EmaState(done, average)

    return optax.GradientTransformation(init, update)


def ema_params(opt_state: Any) -> Params | None:
    """The averaged weights that an optimizer's state keeps, None if it keeps none."""
    last = opt_state[-1] if isinstance(opt_state, tuple) and opt_state else None
    return last.average if isinstance(last, EmaState) else None


def reset_ema(opt_state: Any, params: Params) -> Any:
    """The state of an optimizer that has made no update; its average, if it keeps one, begins with `params`.

    The buffers are new, and lie as those that they replace: the step takes over those of weights and average alike.
    """
    old = ema_params(opt_state)
    if old is None:
        return opt_state
    if jax.process_count() > 1:  # nobody sends what everybody has
        begun = put_tree(params, jax.tree.map(lambda leaf: leaf.sharding, old))
    else:
        begun = jax.tree.map(lambda leaf, new: jax.device_put(new, leaf.sharding, may_alias=False), old, params)
    return (*opt_state[:-1], opt_state[-1]._replace(average=begun))
