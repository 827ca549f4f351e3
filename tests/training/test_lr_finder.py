"""The learning-rate finder: its rates, the losses that it uses, and its suggestions for curves with known answers."""

from __future__ import annotations

import numpy as np
import pytest

from bertjax.errors import UserError
from bertjax.training.lr_finder import candidate_lrs, has_diverged, smooth_losses, suggest_lrs
from bertjax.training.schedule import Schedule


@pytest.mark.parametrize(("linear", "name"), [(True, "rising_linear"), (False, "rising_exponential")])
def test_the_schedule_has_the_rates_of_the_test(linear: bool, name: str) -> None:
    expected = candidate_lrs(1e-6, 1e-1, 50, linear)
    schedule = Schedule(name, learning_rate=1e-1, warmup_steps=0, num_steps=50, end_lr_ratio=1e-5).rate
    np.testing.assert_allclose([float(schedule(step)) for step in range(50)], expected, rtol=1e-4)
    steps = np.diff(expected if linear else np.log(expected))
    np.testing.assert_allclose(steps, steps[0])


def test_means_are_unbiased() -> None:
    np.testing.assert_allclose(smooth_losses([3.0] * 7), 3.0)
    np.testing.assert_allclose(smooth_losses([1.0, 2.0], keep=0.5), [1.0, (0.25 + 1.0) / 0.75])


def curve(tried: np.ndarray, best: float, explodes: float) -> np.ndarray:
    """Flat, then falling around `best`, then rising without end from `explodes` on."""
    x = np.log10(tried)
    fall = 2.0 / (1.0 + np.exp(4.0 * (x - np.log10(best))))
    return 1.0 + fall + np.where(tried > explodes, (tried / explodes) ** 2 - 1.0, 0.0)


def test_suggestions_of_a_curve_that_falls_and_explodes() -> None:
    tried = candidate_lrs(1e-7, 1.0, 200, linear=False)
    result = suggest_lrs(tried, curve(tried, best=1e-3, explodes=3e-2).tolist())
    assert result.valley is not None and result.steepest is not None and result.tenth is not None
    assert 3e-5 < result.valley < 1e-2
    assert 5e-4 < result.steepest < 1e-2  # smoothing lags
    assert 1e-3 < result.tenth < 1e-2


def test_losses_that_only_rise_suggest_nothing() -> None:
    tried = candidate_lrs(1e-7, 1.0, 60, linear=False)
    assert suggest_lrs(tried, np.linspace(1, 5, 60).tolist()) == (None, None, None)
    assert suggest_lrs(tried[:3], [1.0, 2.0, float("nan")]) == (None, None, None)


def test_a_loss_that_is_no_number_is_left_out() -> None:
    tried = candidate_lrs(1e-7, 1.0, 200, linear=False)
    losses = curve(tried, best=1e-3, explodes=3e-2)[:150].tolist()
    assert suggest_lrs(tried[:151], [*losses, float("nan")]) == suggest_lrs(tried[:150], losses)


def test_diverged() -> None:
    assert has_diverged([1.0, float("inf")]) and has_diverged([2.0] * 20 + [1e4])
    assert not has_diverged([2.0, 100.0])  # too early to decide
    assert not has_diverged([2.0] * 20 + [7.0])


@pytest.mark.parametrize(
    ("low", "high", "steps", "message"),
    [(1e-3, 1e-4, 100, "must rise"), (0.0, 1.0, 100, "must rise"), (1e-5, 1.0, 5, "steps must be at least 20")],
)
def test_refused(low: float, high: float, steps: int, message: str) -> None:
    with pytest.raises(UserError, match=message):
        candidate_lrs(low, high, steps, linear=False)


def test_a_rise_begins_above_zero() -> None:
    with pytest.raises(UserError, match=r"rises from schedule\.end_lr_ratio, which must be above 0"):
        Schedule("rising_linear", learning_rate=1.0, warmup_steps=0, num_steps=10)
