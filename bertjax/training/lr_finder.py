"""Learning rate range test: the smoothed losses of steps with a rising learning rate, and the rates they suggest."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bertjax.errors import UserError, named

SMOOTHING = 0.98
DIVERGED = 4.0
"""Multiple of the best loss at which the test stops, as in fastai."""
_FEWEST = 20


class LrSuggestions(NamedTuple):
    """Learning rates by several rules; None where the losses never fell, or rose from the start.

    valley    the middle of the longest fall: the one to begin with
    steepest  where the loss falls fastest on the scale of the test
    tenth     a tenth of the rate with the lowest loss
    """

    valley: float | None
    steepest: float | None
    tenth: float | None


_RULES = {
    "valley": "middle of the longest fall",
    "steepest": "steepest point",
    "tenth": "a tenth of the rate of the lowest loss",
}
_PRINTED = 20


class LrCurve(NamedTuple):
    """Losses [n] of n learning rates, fewer than were asked for if the loss diverged; `str` is a table."""

    learning_rates: np.ndarray
    losses: np.ndarray
    suggestions: LrSuggestions
    chart: Path | None = None

    def __str__(self) -> str:
        indices = np.unique(np.linspace(0, len(self.losses) - 1, _PRINTED).astype(int))
        lines = [f"learning rate {self.learning_rates[i]:.2e}  loss {self.losses[i]:.4f}" for i in indices]
        for name, rule in _RULES.items():
            rate = getattr(self.suggestions, name)
            lines.append(f"{name:<9} {'none: the loss did not fall' if rate is None else f'{rate:.2e}'}  ({rule})")
        return "\n".join([*lines, *([] if self.chart is None else [f"chart: {self.chart}"])])


def candidate_lrs(low: float, high: float, steps: int, linear: bool) -> np.ndarray:
    """Returns the learning rates of the steps, float64 [steps].

    Args:
        low: First learning rate.
        high: Last learning rate.
        steps: Number of steps.
        linear: Evenly spaced (Smith, arXiv:1506.01186) instead of by equal factors.

    Raises:
        UserError: The rates do not rise, or there are too few steps.
    """
    if not 0.0 < low < high:
        raise UserError(
            f"the rates of the test must rise: {named('min_lr')} {low} must be above 0 and below {named('max_lr')} "
            f"{high}"
        )
    if steps < _FEWEST:
        raise UserError(f"{named('steps')} must be at least {_FEWEST} for a result, not {steps}")
    return np.linspace(low, high, steps) if linear else np.geomspace(low, high, steps)


def smooth_losses(losses: Sequence[float], keep: float = SMOOTHING) -> np.ndarray:
    """Returns exponential means of the losses up to each, unbiased at the start: float64 [n]."""
    smooth, mean = np.empty(len(losses)), 0.0
    for index, loss in enumerate(losses):
        mean = keep * mean + (1.0 - keep) * loss
        smooth[index] = mean / (1.0 - keep ** (index + 1))
    return smooth


def has_diverged(losses: Sequence[float]) -> bool:
    """Returns whether the newest loss is not finite, or the smoothed loss far above the best one."""
    if not math.isfinite(losses[-1]):
        return True
    smooth = smooth_losses(losses)
    return bool(len(losses) > _FEWEST // 2 and smooth[-1] > DIVERGED * smooth.min())


def suggest_lrs(tried: np.ndarray, losses: Sequence[float]) -> LrSuggestions:
    """Suggests learning rates from those tried [n] and their losses, without the first tenth and the last five.

    The longest fall is the longest falling subsequence of the smoothed losses, as in fastai's "valley".
    """
    finite = len(losses) - (0 if math.isfinite(losses[-1]) else 1)
    used = slice(finite // 10, max(finite - 5, finite // 10))
    smooth, tried = smooth_losses(losses[:finite])[used], np.asarray(tried, np.float64)[:finite][used]
    if len(smooth) < 3:
        return LrSuggestions(None, None, None)
    lowest = int(smooth.argmin())
    gradient = np.gradient(smooth, np.log(tried))
    begin, end = _longest_fall(smooth)
    return LrSuggestions(
        valley=float(tried[(begin + end) // 2]) if end - begin >= 2 else None,
        steepest=float(tried[gradient.argmin()]) if gradient.min() < 0 else None,
        tenth=float(tried[lowest]) / 10.0 if lowest else None,
    )


def _longest_fall(values: np.ndarray) -> tuple[int, int]:
    """Returns the first and last index of the longest strictly falling subsequence; of several the first to end."""
    length, first = np.ones(len(values), np.int64), np.arange(len(values))
    for index in range(1, len(values)):
        before = np.flatnonzero(values[:index] > values[index])
        if len(before):
            best = before[length[before].argmax()]
            length[index], first[index] = length[best] + 1, first[best]
    end = int(length.argmax())
    return int(first[end]), end
