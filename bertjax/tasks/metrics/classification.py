"""Metrics of classification: accuracy, F1, Matthews correlation, per-class scores, confusion (GLUE, 1804.07461)."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from bertjax.errors import UserError
from bertjax.tasks.metrics.sklearn_compat import require_same_length, sklearn_metrics, warnings_ignored

_MIN_PROBABILITY = float(np.finfo(np.float64).eps)  # as in scikit-learn's log_loss: one confident error is not inf
_SUM_TOLERANCE = 1e-2  # the sum of bfloat16 probabilities misses one by up to this


class ClassScore(NamedTuple):
    """Scores of one class; 0 if it was never predicted (precision) or never occurs (recall).

    `support` is the number of gold examples.
    """

    precision: float
    recall: float
    f1: float
    support: int


@dataclasses.dataclass(frozen=True, eq=False)
class ClassificationScores:
    """Scores in [0, 1], except `matthews` (-1 to 1) and `log_loss` (nats).

    Attributes:
        f1: F1 of class 1 if there are two classes (GLUE's F1), else None.
        macro_f1: Mean over the classes that occur in the gold labels or the predictions.
        matthews: Matthews correlation; 0 if all gold labels or all predictions are equal.
        log_loss: Cross-entropy; None without probabilities.
        confusion: Counts, int64 [K, K]; rows are gold classes, columns predicted ones.
    """

    labels: tuple[str, ...]
    accuracy: float
    f1: float | None
    macro_f1: float
    matthews: float
    log_loss: float | None
    per_class: dict[str, ClassScore]
    confusion: np.ndarray

    def metrics(self) -> dict[str, float]:
        """Returns the scalar scores by name, without those that are None."""
        names = ("accuracy", "f1", "macro_f1", "matthews", "log_loss")
        return {name: float(getattr(self, name)) for name in names if getattr(self, name) is not None}


def classification_scores(
    gold: Sequence[int] | Sequence[str] | np.ndarray,
    predicted: Sequence[int] | Sequence[str] | np.ndarray,
    labels: Sequence[str],
    probabilities: np.ndarray | None = None,
) -> ClassificationScores:
    """Scores predicted classes.

    Args:
        gold: gold labels [n], as indices into `labels` or as names.
        predicted: predicted labels [n], likewise.
        labels: names of the K classes.
        probabilities: predicted distributions [n, K].

    Raises:
        UserError: there is nothing to score, the lengths differ, or a label is unknown.
    """
    require_same_length(len(gold), len(predicted), "labels")
    labels = tuple(labels)
    expected, predicted_ids = _indices(gold, labels, "gold label"), _indices(predicted, labels, "prediction")
    metrics, classes = sklearn_metrics(), list(range(len(labels)))
    with warnings_ignored():
        confusion = metrics.confusion_matrix(expected, predicted_ids, labels=classes)
        columns = metrics.precision_recall_fscore_support(expected, predicted_ids, labels=classes, zero_division=0)
        matthews = float(metrics.matthews_corrcoef(expected, predicted_ids))
    per_class = {
        label: ClassScore(float(row[0]), float(row[1]), float(row[2]), int(row[3]))
        for label, row in zip(labels, zip(*columns, strict=True), strict=True)
    }
    occurs = confusion.sum(0) + confusion.sum(1) > 0
    return ClassificationScores(
        labels=labels,
        accuracy=float((expected == predicted_ids).mean()),
        f1=per_class[labels[1]].f1 if len(labels) == 2 else None,
        macro_f1=float(columns[2][occurs].mean()),
        matthews=matthews,
        log_loss=None if probabilities is None else _log_loss(expected, np.asarray(probabilities, np.float64), labels),
        per_class=per_class,
        confusion=confusion.astype(np.int64),
    )


def _indices(values: Sequence[int] | Sequence[str] | np.ndarray, labels: tuple[str, ...], what: str) -> np.ndarray:
    """Returns int64 [n]; raises `UserError` for the first value that is not a label."""
    array = np.asarray(values)
    if array.ndim != 1:
        raise UserError(f"{what}s must be a list of labels, not of shape {list(array.shape)}")
    if array.dtype.kind in "iu":
        outside = np.flatnonzero((array < 0) | (array >= len(labels)))
        if len(outside):
            first = outside[0]
            raise UserError(f"{what} {first + 1} is {array[first]}, but labels are numbered 0 to {len(labels) - 1}")
        return array.astype(np.int64)
    index = {label: number for number, label in enumerate(labels)}
    for number, value in enumerate(array.tolist(), 1):
        if value not in index:
            raise UserError(f"{what} {number} is {value!r}, which is none of the labels {', '.join(labels)}")
    return np.array([index[value] for value in array.tolist()], np.int64)


def _log_loss(gold: np.ndarray, probabilities: np.ndarray, labels: tuple[str, ...]) -> float:
    """Returns the mean negative log-probability of the gold class, each distribution scaled to a sum of one."""
    if probabilities.shape != (len(gold), len(labels)):
        raise UserError(f"probabilities must have shape [{len(gold)}, {len(labels)}], not {list(probabilities.shape)}")
    if not np.isfinite(probabilities).all():
        return float("nan")  # the network has diverged
    sums = probabilities.sum(axis=1)
    if probabilities.min() < 0 or np.abs(sums - 1).max() > _SUM_TOLERANCE:
        worst = int(np.abs(sums - 1).argmax())
        raise UserError(f"probabilities of example {worst + 1} add up to {sums[worst]:.6g}; pass a softmax, not scores")
    of_gold = probabilities[np.arange(len(gold)), gold] / sums
    return float(-np.log(np.clip(of_gold, _MIN_PROBABILITY, 1.0)).mean())
