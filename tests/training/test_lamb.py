"""LAMB against a transcription of the authors', tensor by tensor."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import optax
import pytest
from descent import SCHEDULE, Flat, apart, assert_same, jit, nested, start, train, trained, written_down

from bertjax.training.optimizer import Optimizer
from bertjax.training.transforms import scale_by_trust_ratio


def authors(config: Optimizer, excluded: tuple[str, ...] = ("bias", "scale")) -> Flat:
    """google-research/albert:lamb_optimizer.py, LAMBOptimizer.apply_gradients."""
    mean, square = defaultdict(float), defaultdict(float)

    def move(path: str, w: np.ndarray, grad: np.ndarray, rate: float, step: int) -> np.ndarray:
        mean[path] = config.b1 * mean[path] + (1 - config.b1) * grad
        square[path] = config.b2 * square[path] + (1 - config.b2) * grad**2
        update = mean[path] / (np.sqrt(square[path]) + config.eps)
        if not {"bias", "scale"} & set(path.split("/")):
            update = update + config.weight_decay * w
        ratio = 1.0
        if not set(excluded) & set(path.split("/")):
            ours, theirs = np.linalg.norm(w), np.linalg.norm(update)
            ratio = ours / theirs if ours > 0 and theirs > 0 else 1.0
        return w - rate * ratio * update

    return written_down(config.clip_norm, move)


@pytest.mark.parametrize("clip_norm", [0.0, 1.0])
def test_lamb_is_that_of_the_authors_in_every_layer(clip_norm: float) -> None:
    """No bias correction; a tensor of norm zero, biases and scales keep the ratio 1."""
    config = Optimizer(name="lamb", weight_decay=0.3, clip_norm=clip_norm)
    assert_same(trained(config), authors(config))


def test_what_is_not_rescaled_can_be_chosen() -> None:
    config = Optimizer(name="lamb", weight_decay=0.3, trust_exclude=(r"dense/.*", r"layers/\d/scale"))
    assert_same(trained(config), authors(config, excluded=("dense", "scale")))
    everything = Optimizer(name="lamb", weight_decay=0.3, trust_exclude=())
    assert_same(trained(everything), authors(everything, excluded=()))


def test_layers_of_one_stack_may_differ_in_being_rescaled() -> None:
    tree, ones = (nested({"layers/kernel": np.full((2, 2, 2), value)}) for value in (3.0, 1.0))
    included = nested({"layers/kernel": np.reshape([1.0, 0.0], (2, 1, 1))})
    updates, _ = scale_by_trust_ratio(included).update(ones, optax.EmptyState(), tree)
    np.testing.assert_allclose(updates["layers"]["kernel"][:, 0, 0], [3.0, 1.0])


@pytest.mark.long
def test_with_bias_correction_it_is_optax_lamb_of_layers_apart() -> None:
    """optax has no exclusions and uses one ratio per leaf: it is right for a tree without stacks."""
    config = Optimizer(
        name="lamb", bias_correction=True, weight_decay=0.3, clip_norm=0.0, decay_exclude=(), trust_exclude=()
    )
    reference = optax.lamb(SCHEDULE.rate, eps=config.eps, weight_decay=0.3)
    state = {path: jit(reference.init)(np.float32(value)) for path, value in apart(start()).items()}
    update = jit(reference.update)

    def move(path: str, w: np.ndarray, grad: np.ndarray, rate: float, step: int) -> np.ndarray:
        updates, state[path] = update(np.float32(grad), state[path], np.float32(w))
        return w + np.asarray(updates)

    assert_same(trained(config), written_down(0.0, move))


def test_one_ratio_for_a_whole_stack_would_be_another_optimizer() -> None:
    """The premise: with optax's LAMB on the stacked tree, the layers' norms depend on each other."""
    config = Optimizer(name="lamb", bias_correction=True, clip_norm=0.0, decay_exclude=(), trust_exclude=())
    stacked = train(optax.lamb(SCHEDULE.rate, eps=config.eps, weight_decay=config.weight_decay))
    assert np.abs(stacked["layers/kernel/0"] - trained(config)["layers/kernel/0"]).max() > 1.0
