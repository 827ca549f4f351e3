"""Metrics of regression: correlation and squared error (GLUE's STS-B)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from bertjax.errors import UserError
from bertjax.tasks.metrics.sklearn_compat import require_same_length, warnings_ignored


class RegressionScores(NamedTuple):
    """Scores of predicted numbers.

    `pearson` and `spearman` are nan where they are undefined: for a single example, and if all gold numbers or all
    predictions are equal. All three are nan if a prediction is not finite, because the network has diverged.
    """

    pearson: float
    spearman: float
    mse: float


def regression_scores(gold: Sequence[float] | np.ndarray, predicted: Sequence[float] | np.ndarray) -> RegressionScores:
    """Scores predicted numbers in float64.

    Args:
        gold: gold numbers [n].
        predicted: predictions [n] or [n, 1].

    Raises:
        UserError: there is nothing to score, the lengths differ, or a gold number is not finite.
    """
    require_same_length(len(gold), len(predicted), "scores")
    expected, predictions = _column(gold, "gold scores"), _column(predicted, "predictions")
    if not np.isfinite(expected).all():
        raise UserError(f"gold score {int(np.flatnonzero(~np.isfinite(expected))[0]) + 1} is not a finite number")
    if not np.isfinite(predictions).all():
        return RegressionScores(float("nan"), float("nan"), float("nan"))
    return RegressionScores(*correlations(expected, predictions), float(np.square(expected - predictions).mean()))


def correlations(first: np.ndarray, second: np.ndarray) -> tuple[float, float]:
    """Returns Pearson's and Spearman's correlation of finite numbers [n]; nan where undefined."""
    from scipy import stats

    if len(first) < 2 or np.ptp(first) == 0 or np.ptp(second) == 0:
        return float("nan"), float("nan")
    with warnings_ignored():  # rounding makes the correlation of almost constant columns doubtful
        return float(stats.pearsonr(first, second).statistic), float(stats.spearmanr(first, second).statistic)


def _column(values: Sequence[float] | np.ndarray, what: str) -> np.ndarray:
    array = np.asarray(values, np.float64)
    if array.ndim == 2 and array.shape[1] == 1:  # a head with one label returns [n, 1]
        array = array[:, 0]
    if array.ndim != 1:
        raise UserError(f"{what} must be a list of numbers, not of shape {list(array.shape)}")
    return array
