"""StableAdamW against a transcription of the authors' code, tensor by tensor."""

from __future__ import annotations

import dataclasses
from collections import defaultdict

import jax
import numpy as np
import pytest
from descent import SCHEDULE, Flat, assert_same, trained, written_down

from bertjax.training.optimizer import Optimizer

CONFIG = Optimizer(
    name="stable_adamw",
    learning_rate=SCHEDULE.learning_rate,
    b2=0.98,
    bias_correction=True,
    weight_decay=0.05,
    clip_norm=0.0,
)


def authors(config: Optimizer, slowed: dict[tuple[str, int], float] | None = None) -> Flat:
    """AnswerDotAI/ModernBERT:src/optimizer.py (optimi's), decoupled decay with a peak rate.

    `slowed` receives every rms.
    """
    mean, square = defaultdict(float), defaultdict(float)

    def move(path: str, w: np.ndarray, grad: np.ndarray, rate: float, step: int) -> np.ndarray:
        corrections = [1 - beta for beta in (config.b1, config.b2)]
        if config.bias_correction:
            corrections = [1 - (beta**step - beta) / (beta**step - 1) for beta in (config.b1, config.b2)]
        mean[path] = mean[path] + corrections[0] * (grad - mean[path])
        square[path] = (1 - corrections[1]) * square[path] + corrections[1] * grad**2
        rms = np.sqrt((grad**2 / np.maximum(square[path], config.eps**2)).mean())
        if slowed is not None:
            slowed[path, step] = rms
        rate = rate / max(1.0, rms)
        if not {"bias", "scale"} & set(path.split("/")):
            w = w * (1 - rate / config.learning_rate * config.weight_decay)
        return w - rate * mean[path] / (np.sqrt(square[path]) + config.eps)

    return written_down(config.clip_norm, move)


@pytest.mark.parametrize("bias_correction", [True, False])
def test_stable_adamw_is_that_of_the_authors_in_every_layer(bias_correction: bool) -> None:
    config = dataclasses.replace(CONFIG, bias_correction=bias_correction)
    assert_same(trained(config), authors(config))


def test_the_layer_whose_gradient_jumps_is_slowed_down_alone() -> None:
    """The premise of the test above: the measure differs between the layers of one stack."""
    rms: dict[tuple[str, int], float] = {}
    authors(CONFIG, rms)
    assert rms["layers/kernel/0", 2] > 1.2 > rms["layers/kernel/1", 2]
    assert rms["groups/layers/kernel/1/0", 2] > 1.2 > rms["groups/layers/kernel/0/0", 2]


def test_decay_follows_the_share_of_the_peak_and_not_the_rate() -> None:
    """With ten times the peak (and equal decoupled decay), a weight without gradient shrinks as before."""
    params = {"dense": {"kernel": np.ones((2, 2), np.float32)}}
    result = []
    for peak in (0.1, 1.0):
        config = dataclasses.replace(CONFIG, learning_rate=peak)
        optimizer = config.make(lambda step, peak=peak: 0.5 * peak, params)
        updates, _ = optimizer.update(jax.tree.map(np.zeros_like, params), optimizer.init(params), params)
        result.append(np.asarray(updates["dense"]["kernel"]))
    np.testing.assert_allclose(result[0], -0.5 * 0.05, rtol=1e-6)
    np.testing.assert_allclose(result[1], result[0], rtol=1e-6)
