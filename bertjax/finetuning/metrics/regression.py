"""Figures of numbers: how they correlate with the gold ones, and how far they are off (GLUE's STS-B)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from bertjax.errors import UserError
from bertjax.finetuning.metrics.sklearn_compat import require_same_length, warnings_ignored


class RegressionScores(NamedTuple):
    """`pearson` and `spearman` are nan where they are undefined: a single example, or all numbers of a side equal.

    All three are nan where a prediction is no finite number: the network has diverged.
    """

    pearson: float
    spearman: float
    mse: float

    def metrics(self) -> dict[str, float]:
        return self._asdict()


def regression_scores(gold: Sequence[float] | np.ndarray, predicted: Sequence[float] | np.ndarray) -> RegressionScores:
    """Of n numbers each, in float64; raises `UserError` for nothing, other lengths, and gold values that are none."""
    require_same_length(len(gold), len(predicted), "scores")
    right, found = _column(gold, "gold scores"), _column(predicted, "predictions")
    if not np.isfinite(right).all():
        raise UserError(f"gold score {int(np.flatnonzero(~np.isfinite(right))[0]) + 1} is no finite number")
    if not np.isfinite(found).all():
        return RegressionScores(float("nan"), float("nan"), float("nan"))
    return RegressionScores(*correlations(right, found), float(np.square(right - found).mean()))


def correlations(one: np.ndarray, other: np.ndarray) -> tuple[float, float]:
    """(Pearson's, Spearman's) of two columns of finite numbers; nan where undefined."""
    from scipy import stats

    if len(one) < 2 or np.ptp(one) == 0 or np.ptp(other) == 0:
        return float("nan"), float("nan")
    with warnings_ignored():  # of columns that are all but constant, which rounding makes doubtful
        return float(stats.pearsonr(one, other).statistic), float(stats.spearmanr(one, other).statistic)


def _column(values: Sequence[float] | np.ndarray, what: str) -> np.ndarray:
    array = np.asarray(values, np.float64)
    if array.ndim == 2 and array.shape[1] == 1:  # a head with one label gives [n, 1]
        array = array[:, 0]
    if array.ndim != 1:
        raise UserError(f"{what} must be a list of numbers, not of shape {list(array.shape)}")
    return array
