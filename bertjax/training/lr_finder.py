"""What a range test says: the losses of a few updates under a rising rate, smoothed, and rates that they suggest."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from bertjax.errors import UserError

SMOOTHING = 0.98
DIVERGED = 4.0
"""Times the best loss: what fastai's finder stops at."""
_FEWEST = 20


class LrSuggestions(NamedTuple):
    """Rates by several rules; None where the losses never fell, or rose from the start.

    valley    the middle of the longest fall: the rule of thumb to begin with
    steepest  where the loss falls fastest on the scale of the test
    tenth     a tenth of the rate with the lowest loss
    """

    valley: float | None
    steepest: float | None
    tenth: float | None


def candidate_lrs(low: float, high: float, steps: int, linear: bool) -> np.ndarray:
    """float64 [steps]: the rates of the updates; evenly spaced (Smith, arXiv:1506.01186) or by equal factors."""
    if not 0.0 < low < high:
        raise UserError(f"the rates of the test must rise: --min-lr {low} must be above 0 and below --max-lr {high}")
    if steps < _FEWEST:
        raise UserError(f"--steps must be at least {_FEWEST} to see anything, not {steps}")
    return np.linspace(low, high, steps) if linear else np.geomspace(low, high, steps)


def smooth_losses(losses: Sequence[float], keep: float = SMOOTHING) -> np.ndarray:
    """float64 [n]: exponential means of the losses until each, unbiased at the start."""
    found, mean = np.empty(len(losses)), 0.0
    for index, loss in enumerate(losses):
        mean = keep * mean + (1.0 - keep) * loss
        found[index] = mean / (1.0 - keep ** (index + 1))
    return found


def has_diverged(losses: Sequence[float]) -> bool:
    """Whether the newest loss is no number, or the smoothed one left the best one so far behind."""
    if not math.isfinite(losses[-1]):
        return True
    smooth = smooth_losses(losses)
    return bool(len(losses) > _FEWEST // 2 and smooth[-1] > DIVERGED * smooth.min())


def suggest_lrs(tried: np.ndarray, losses: Sequence[float]) -> LrSuggestions:
    """From the rates of the updates that were made and their losses; the first tenth and the last five are not heeded.

    A fall is a run of updates through which the smoothed loss has fallen, with interruptions: the longest falling
    subsequence, as fastai's "valley" takes it.
    """
    finite = len(losses) - (0 if math.isfinite(losses[-1]) else 1)
    heeded = slice(finite // 10, max(finite - 5, finite // 10))
    smooth, tried = smooth_losses(losses[:finite])[heeded], np.asarray(tried, np.float64)[:finite][heeded]
    if len(smooth) < 3:
        return LrSuggestions(None, None, None)
    lowest = int(smooth.argmin())
    slopes = np.gradient(smooth, np.log(tried))
    begin, end = _longest_fall(smooth)
    return LrSuggestions(
        valley=float(tried[(begin + end) // 2]) if end - begin >= 2 else None,
        steepest=float(tried[slopes.argmin()]) if slopes.min() < 0 else None,
        tenth=float(tried[lowest]) / 10.0 if lowest else None,
    )


def _longest_fall(values: np.ndarray) -> tuple[int, int]:
    """Where the longest strictly falling subsequence begins and ends; of several the first to end."""
    length, first = np.ones(len(values), np.int64), np.arange(len(values))
    for index in range(1, len(values)):
        before = np.flatnonzero(values[:index] > values[index])
        if len(before):
            best = before[length[before].argmax()]
            length[index], first[index] = length[best] + 1, first[best]
    end = int(length.argmax())
    return int(first[end]), end
