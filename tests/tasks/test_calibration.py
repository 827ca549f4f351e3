"""Temperature and reliability, compared with scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import log_softmax, softmax
from sklearn.calibration import CalibratedClassifierCV, calibration_curve
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression

from bertjax.tasks.classification import NUM_BINS, fit_temperature, reliability


def outputs(seed: int, factor: float, classes: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """Returns scores that are `factor` times too large, and classes drawn from what they should say."""
    draw = np.random.default_rng(seed)
    scores = draw.normal(size=(4000, classes)) * 1.5
    right = (softmax(scores, axis=1).cumsum(axis=1) > draw.random((4000, 1))).argmax(axis=1)
    return (scores * factor).astype(np.float32), right


@pytest.mark.parametrize("factor", [0.25, 1.0, 4.0])
def test_the_temperature_is_found(factor: float) -> None:
    scores, right = outputs(0, factor)
    assert fit_temperature(scores, right) == pytest.approx(factor, rel=0.06)


def test_the_temperature_is_that_of_scikit_learn() -> None:
    draw = np.random.default_rng(1)
    inputs = draw.normal(size=(600, 4))
    right = (inputs @ draw.normal(size=(4, 3)) + draw.gumbel(size=(600, 3)) * 2).argmax(axis=1)
    model = LogisticRegression(C=100.0).fit(inputs[:60], right[:60])
    held_out = inputs[60:], right[60:]
    calibrated = CalibratedClassifierCV(FrozenEstimator(model), method="temperature", cv=2).fit(*held_out)
    scores = model.decision_function(inputs[60:])
    ours = softmax(scores / fit_temperature(scores, right[60:]), axis=1)
    np.testing.assert_allclose(ours, calibrated.predict_proba(held_out[0]), atol=2e-4)


def test_no_temperature_is_better() -> None:
    scores, right = outputs(2, 3.0)
    best = fit_temperature(scores, right)

    def loss(temperature: float) -> float:
        return -float(log_softmax(scores / temperature, axis=1)[np.arange(len(right)), right].mean())

    assert all(loss(best) <= loss(best * factor) for factor in (0.9, 0.99, 1.01, 1.1))


def test_scores_that_say_nothing_about_a_temperature() -> None:
    never_wrong = np.eye(3, dtype=np.float32)
    assert fit_temperature(never_wrong, np.arange(3)) == 1.0  # the lower, the better
    assert fit_temperature(never_wrong, (np.arange(3) + 1) % 3) == 1.0  # the higher
    assert fit_temperature(never_wrong * np.nan, np.arange(3)) == 1.0
    assert fit_temperature(np.zeros((0, 3), np.float32), np.zeros(0, np.int64)) == 1.0


@given(st.lists(st.tuples(st.floats(0.01, 0.99), st.booleans()), min_size=1, max_size=50))
def test_bins_are_those_of_scikit_learn(examples: list[tuple[float, bool]]) -> None:
    confidences, correct = np.array([each[0] for each in examples]), np.array([each[1] for each in examples])
    accuracy, confidence = calibration_curve(correct, confidences, n_bins=NUM_BINS)
    result = reliability(confidences, correct)
    np.testing.assert_allclose([each[:2] for each in result.bins], np.stack([confidence, accuracy], 1), atol=1e-12)
    assert sum(each[2] for each in result.bins) == len(examples) and 0.0 <= result.error <= 1.0


def test_the_error_by_hand() -> None:
    confidences, correct = np.array([0.5, 0.5, 0.9, 1.0, 1.0]), np.array([True, False, False, True, True])
    result = reliability(confidences, correct)
    assert result.error == pytest.approx((2 * 0.0 + 0.9 + 2 * 0.0) / 5)
    assert np.isnan(reliability(np.array([np.nan]), np.array([False])).error)
