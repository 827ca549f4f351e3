"""Figures of labels: accuracy, F1, Matthews, per-class scores and who was taken for whom (GLUE, arXiv:1804.07461)."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from bertjax.errors import UserError
from bertjax.finetuning.metrics.sklearn_compat import require_same_length, sklearn_metrics, warnings_ignored

_LEAST = float(np.finfo(np.float64).eps)  # of a probability, as in scikit-learn's log_loss: one sure error is not inf
_ROUNDING = 1e-2  # by how much probabilities may miss their sum of one: those of bfloat16 do


class ClassScore(NamedTuple):
    """Of one class; 0 where nothing was predicted (precision) or is there (recall). `support` = gold examples."""

    precision: float
    recall: float
    f1: float
    support: int


@dataclasses.dataclass(frozen=True, eq=False)
class ClassificationScores:
    """All in [0, 1] but `matthews` (-1 to 1) and `log_loss` (nats).

    f1         of class 1, where there are two classes (GLUE's F1); else None
    macro_f1   mean over the classes that occur, in the gold labels or in the predictions
    micro_f1   over all decisions: equal to the accuracy, as every example has one label
    matthews   0 where all gold labels or all predictions are equal
    log_loss   None where no probabilities were given
    confusion  int64 [K, K]: rows are gold classes, columns predicted ones
    """

    labels: tuple[str, ...]
    accuracy: float
    f1: float | None
    macro_f1: float
    micro_f1: float
    matthews: float
    log_loss: float | None
    per_class: dict[str, ClassScore]
    confusion: np.ndarray

    def metrics(self) -> dict[str, float]:
        """The single numbers by name, those that there are."""
        names = ("accuracy", "f1", "macro_f1", "micro_f1", "matthews", "log_loss")
        return {name: float(getattr(self, name)) for name in names if getattr(self, name) is not None}


def classification_scores(
    gold: Sequence[int] | Sequence[str] | np.ndarray,
    predicted: Sequence[int] | Sequence[str] | np.ndarray,
    labels: Sequence[str],
    probabilities: np.ndarray | None = None,
) -> ClassificationScores:
    """Scores of n predictions; labels are numbers of `labels`, or their names. `probabilities` [n, K].

    Raises `UserError` for nothing, for other lengths, and for a label that is none of `labels`.
    """
    require_same_length(len(gold), len(predicted), "labels")
    labels = tuple(labels)
    right, found = _numbers(gold, labels, "gold label"), _numbers(predicted, labels, "prediction")
    metrics, classes = sklearn_metrics(), list(range(len(labels)))
    with warnings_ignored():
        confusion = metrics.confusion_matrix(right, found, labels=classes)
        columns = metrics.precision_recall_fscore_support(right, found, labels=classes, zero_division=0)
        matthews = float(metrics.matthews_corrcoef(right, found))
    per_class = {
        label: ClassScore(float(row[0]), float(row[1]), float(row[2]), int(row[3]))
        for label, row in zip(labels, zip(*columns, strict=True), strict=True)
    }
    occurs = confusion.sum(0) + confusion.sum(1) > 0
    accuracy = float((right == found).mean())
    return ClassificationScores(
        labels=labels,
        accuracy=accuracy,
        f1=per_class[labels[1]].f1 if len(labels) == 2 else None,
        macro_f1=float(columns[2][occurs].mean()),
        micro_f1=accuracy,
        matthews=matthews,
        log_loss=None
        if probabilities is None
        else _log_loss(right, np.asarray(probabilities, np.float64), len(labels)),
        per_class=per_class,
        confusion=confusion.astype(np.int64),
    )


def _numbers(values: Sequence[int] | Sequence[str] | np.ndarray, labels: tuple[str, ...], what: str) -> np.ndarray:
    """int64 [n]; raises `UserError` for the first value that is no label."""
    array = np.asarray(values)
    if array.ndim != 1:
        raise UserError(f"{what}s must be a list of labels, not of shape {list(array.shape)}")
    if array.dtype.kind in "iu":
        bad = np.flatnonzero((array < 0) | (array >= len(labels)))
        if len(bad):
            raise UserError(f"{what} {bad[0] + 1} is {array[bad[0]]}, but labels are numbered 0 to {len(labels) - 1}")
        return array.astype(np.int64)
    places = {label: number for number, label in enumerate(labels)}
    for number, value in enumerate(array.tolist(), 1):
        if value not in places:
            raise UserError(f"{what} {number} is {value!r}, which is none of the labels {', '.join(labels)}")
    return np.array([places[value] for value in array.tolist()], np.int64)


def _log_loss(gold: np.ndarray, probabilities: np.ndarray, classes: int) -> float:
    """Mean of -log of what the gold class was given; rows are scaled to a sum of exactly one."""
    if probabilities.shape != (len(gold), classes):
        raise UserError(f"probabilities must have shape [{len(gold)}, {classes}], not {list(probabilities.shape)}")
    if not np.isfinite(probabilities).all():
        return float("nan")  # of a network that has diverged
    sums = probabilities.sum(axis=1)
    if probabilities.min() < 0 or np.abs(sums - 1).max() > _ROUNDING:
        row = int(np.abs(sums - 1).argmax())
        raise UserError(f"probabilities of example {row + 1} add up to {sums[row]:.6g}; give a softmax, not scores")
    given = probabilities[np.arange(len(gold)), gold] / sums
    return float(-np.log(np.clip(given, _LEAST, 1.0)).mean())
