"""A few steps on a small tree of plain, stacked and grouped tensors, and that tree split into layers."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
import optax

from bertjax.training.optimizer import Optimizer
from bertjax.training.schedule import Schedule
from bertjax.types import Params

jit = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})  # compilation dominates
STEPS = 5
SCHEDULE = Schedule("bert", learning_rate=0.1, warmup_steps=2, num_steps=10)
SHAPES = {
    "dense/kernel": (3, 4),
    "dense/bias": (4,),
    "layers/kernel": (2, 3, 5),
    "layers/scale": (2, 3),
    "groups/layers/kernel": (2, 2, 3, 3),
}
NUM_STACKED = {"dense": 0, "layers": 1, "groups": 2}
Flat = dict[str, np.ndarray]


def start() -> Flat:
    """Returns layers of very different norms, one of them zero."""
    rng = np.random.default_rng(0)
    flat = {path: rng.normal(size=shape) for path, shape in SHAPES.items()}
    flat["layers/kernel"][1] *= 100.0
    flat["groups/layers/kernel"][0, 1] = 0.0
    return flat


def gradients() -> Iterator[Flat]:
    """The second is very large in one layer of each stack, so that clipping and per-layer measures have an effect."""
    rng = np.random.default_rng(1)
    for step in range(STEPS):
        grads = {path: 0.2 * rng.normal(size=shape) for path, shape in SHAPES.items()}
        if step == 1:
            grads["layers/kernel"][0] *= 50.0
            grads["groups/layers/kernel"][1, 0] *= 50.0
        yield grads


def apart(flat: Flat) -> Flat:
    """Returns every layer's tensor under a separate path: `layers/kernel/1`, `groups/layers/kernel/0/1`."""
    result = {}
    for path, value in flat.items():
        stacked = NUM_STACKED[path.split("/")[0]]
        for index in np.ndindex(value.shape[:stacked]):
            result["/".join([path, *map(str, index)])] = np.asarray(value[index], np.float64)
    return result


def nested(flat: Flat) -> Params:
    tree: Params = {}
    for path, value in flat.items():
        *parents, name = path.split("/")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[name] = np.float32(value)
    return tree


def flattened(tree: Params) -> Flat:
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): np.asarray(leaf)
        for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]
    }


def train(optimizer: optax.GradientTransformation) -> Flat:
    """Returns the parameters after all gradients, split into layers."""
    params = nested(start())
    state = jit(optimizer.init)(params)

    @jit
    def step(grads: Params, state: Any, params: Params) -> tuple[Params, Any]:
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    for grads in gradients():
        params, state = step(nested(grads), state, params)
    return apart(flattened(params))


def trained(config: Optimizer) -> Flat:
    return train(config.make(SCHEDULE.rate, nested(start())))


def written_down(clip_norm: float, move: Callable[[str, np.ndarray, np.ndarray, float, int], np.ndarray]) -> Flat:
    """Applies `move(path, parameter, gradient, rate, step)` to the split tree, in float64; steps count from 1."""
    params, schedule = apart(start()), SCHEDULE.rate
    for step, flat in enumerate(gradients()):
        grads = apart(flat)
        norm = np.sqrt(sum((grad**2).sum() for grad in grads.values()))
        factor = min(1.0, clip_norm / norm) if clip_norm else 1.0
        for path, grad in grads.items():
            params[path] = move(path, params[path], factor * grad, float(schedule(step)), step + 1)
    return params


def assert_same(result: Flat, expected: Flat) -> None:
    assert result.keys() == expected.keys()
    for path, value in expected.items():
        np.testing.assert_allclose(result[path], value, rtol=1e-4, atol=2e-6, err_msg=path)
