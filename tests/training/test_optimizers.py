"""The optimizer against numpy transcriptions of the authors' and optax's code."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import jax
import numpy as np
import optax
import pytest

from bertjax.training.optimizer import Optimizer
from bertjax.training.schedule import Schedule
from bertjax.types import Params

STEPS = 5
SCHEDULE = Schedule("bert", learning_rate=0.1, warmup_steps=2, num_steps=10)
DECAYED = ("dense/kernel", "layers/kernel")


def start() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    shapes = {"dense/kernel": (3, 4), "dense/bias": (4,), "layers/kernel": (2, 3, 3), "layers/scale": (2, 3)}
    return {path: rng.normal(size=shape) for path, shape in shapes.items()}


def gradients() -> Iterator[dict[str, np.ndarray]]:
    """The second is very large, so that clipping has an effect."""
    rng = np.random.default_rng(1)
    for step in range(STEPS):
        yield {path: rng.normal(size=value.shape) * (50.0 if step == 1 else 0.2) for path, value in start().items()}


def nested(flat: dict[str, np.ndarray]) -> Params:
    tree: Params = {}
    for path, value in flat.items():
        parent, name = path.split("/")
        tree.setdefault(parent, {})[name] = np.float32(value)
    return tree


def train(optimizer: optax.GradientTransformation) -> Params:
    params = nested(start())
    state = optimizer.init(params)
    update = jax.jit(optimizer.update)
    for grads in gradients():
        updates, state = update(nested(grads), state, params)
        params = optax.apply_updates(params, updates)
    return params


def assert_same(result: Params, expected: Params) -> None:
    jax.tree.map(lambda ours, theirs: np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=2e-6), result, expected)


def authors(config: Optimizer, rate_of: Callable[[str], np.ndarray | float]) -> Params:
    """google-research/bert:optimization.py, AdamWeightDecayOptimizer.apply_gradients, in float64."""
    params = start()
    mean, square = ({path: np.zeros_like(value) for path, value in params.items()} for _ in range(2))
    schedule = SCHEDULE.rate
    for step, grads in enumerate(gradients()):
        norm = np.sqrt(sum((grad**2).sum() for grad in grads.values()))
        factor = min(1.0, config.clip_norm / norm) if config.clip_norm else 1.0
        for path, grad in grads.items():
            mean[path] = config.b1 * mean[path] + (1 - config.b1) * factor * grad
            square[path] = config.b2 * square[path] + (1 - config.b2) * (factor * grad) ** 2
            update = mean[path] / (np.sqrt(square[path]) + config.eps)
            if path in DECAYED:
                update = update + config.weight_decay * params[path]
            params[path] = params[path] - float(schedule(step)) * rate_of(path) * update
    return nested(params)


@pytest.mark.parametrize("clip_norm", [0.0, 1.0])
def test_adamw_is_that_of_the_authors(clip_norm: float) -> None:
    """No bias correction, epsilon outside the root, decay inside the product with the rate, none on bias and scale."""
    config = Optimizer(weight_decay=0.3, eps=1e-2, clip_norm=clip_norm)
    result = train(config.make(SCHEDULE.rate, nested(start())))
    assert_same(result, authors(config, lambda path: 1.0))


def test_rates_scale_updates_and_decay_layer_by_layer() -> None:
    config = Optimizer(weight_decay=0.3, lr_mults=(r"layers/1/.*=0.5", r"dense/bias=0"))
    result = train(config.make(SCHEDULE.rate, nested(start())))
    layers = {"layers/kernel": np.reshape([1.0, 0.5], (2, 1, 1)), "layers/scale": np.reshape([1.0, 0.5], (2, 1))}
    assert_same(result, authors(config, lambda path: layers.get(path, 0.0 if path == "dense/bias" else 1.0)))
    np.testing.assert_array_equal(result["dense"]["bias"], nested(start())["dense"]["bias"])


def test_with_bias_correction_it_is_optax_adamw() -> None:
    config = Optimizer(bias_correction=True, weight_decay=0.3, clip_norm=1.0, eps=1e-8)
    schedule = SCHEDULE.rate
    mask = nested({path: np.asarray(path in DECAYED) for path in start()})
    reference = optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.adamw(schedule, eps=1e-8, weight_decay=0.3, mask=jax.tree.map(bool, mask)),
    )
    result = train(config.make(schedule, nested(start())))
    assert_same(result, train(reference))
    uncorrected = authors(Optimizer(weight_decay=0.3, eps=1e-8), lambda path: 1.0)
    assert np.abs(result["dense"]["kernel"] - uncorrected["dense"]["kernel"]).max() > 0.01


def test_what_decays_can_be_chosen() -> None:
    config = Optimizer(weight_decay=0.3, decay_exclude=(r".*/layers/0/.*|layers/0/.*",))
    params = nested(start())
    optimizer = config.make(lambda step: 1.0, params)
    updates, _ = jax.jit(optimizer.update)(jax.tree.map(np.zeros_like, params), optimizer.init(params), params)
    np.testing.assert_allclose(updates["layers"]["kernel"][0], 0.0)
    np.testing.assert_allclose(updates["layers"]["kernel"][1], -0.3 * params["layers"]["kernel"][1], rtol=1e-6)
    np.testing.assert_allclose(updates["dense"]["bias"], -0.3 * params["dense"]["bias"], rtol=1e-6)


def test_abstract_parameters_suffice(tiny_params: Params) -> None:
    optimizer = Optimizer().make(lambda step: 1.0, tiny_params)
    state = jax.eval_shape(optimizer.init, tiny_params)
    moments = sum(leaf.size for leaf in jax.tree.leaves(state) if leaf.ndim)
    assert moments == 2 * sum(leaf.size for leaf in jax.tree.leaves(tiny_params))


@pytest.mark.parametrize("name", ["adamw", "lamb", "stable_adamw", "muon"])
def test_kept_zeros_of_the_layers_stay(name: str) -> None:
    """With decay, moments in bfloat16 and an average; all else moves, also zeros outside of the layers."""
    draw = np.random.default_rng(0)
    thinned = {path: np.where(draw.random(value.shape) < 0.5, value, 0.0) for path, value in start().items()}
    optimizer = Optimizer(name=name, keep_zeros=True, moments_dtype="bfloat16", ema_decay=0.9, learning_rate=0.1)
    now = nested(thinned)
    chain = optimizer.make(optax.constant_schedule(0.1), now)
    state, update = chain.init(now), jax.jit(chain.update)
    for grads in gradients():
        updates, state = update(nested(grads), state, now)
        now = optax.apply_updates(now, updates)
    for path, before in thinned.items():
        parent, leaf = path.split("/")
        zeros = np.asarray(now[parent][leaf]) == 0
        np.testing.assert_array_equal(zeros, before == 0 if path == "layers/kernel" else np.zeros(before.shape, bool))
