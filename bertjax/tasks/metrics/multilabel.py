"""Metrics of several labels per example, as scikit-learn computes them, and thresholds tuned for F1."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from bertjax.errors import UserError
from bertjax.tasks.metrics.sklearn_compat import require_same_length, sklearn_metrics, warnings_ignored

_MARGIN = 1e-6  # thresholds lie between 0 and 1, and are stored with six digits


class LabelScore(NamedTuple):
    """Scores of one label; 0 where scikit-learn has no value, `support` is the number of examples that have it."""

    precision: float
    recall: float
    f1: float
    support: int
    average_precision: float
    threshold: float


class MultilabelScores(NamedTuple):
    """Scores in [0, 1]: the metrics by name, and those of every label."""

    metrics: dict[str, float]
    per_label: dict[str, LabelScore]


def multilabel_scores(
    gold: np.ndarray, probabilities: np.ndarray, thresholds: np.ndarray, labels: Sequence[str]
) -> MultilabelScores:
    """Scores the decisions `probability >= threshold`.

    Args:
        gold: true where an example has a label, bool [n, K].
        probabilities: float [n, K].
        thresholds: float [K].
        labels: names of the K labels.

    Raises:
        UserError: there is nothing to score, or the lengths differ.
    """
    require_same_length(len(gold), len(probabilities), "examples")
    metrics, columns = sklearn_metrics(), range(len(labels))
    predicted = probabilities >= thresholds
    # A single column would be a task of two classes for scikit-learn: an empty one that is not scored prevents that.
    both = [np.pad(each.astype(np.int8), ((0, 0), (0, 1))) for each in (gold, predicted)]
    with warnings_ignored():
        f1 = {
            f"{average}_f1": float(metrics.f1_score(*both, average=average, labels=list(columns), zero_division=0))
            for average in ("micro", "macro", "samples")
        }
        scored = metrics.precision_recall_fscore_support(*both, labels=list(columns), zero_division=0)
        precisions = [_average_precision(gold[:, index], probabilities[:, index]) for index in columns]
    rows = zip(labels, *scored, precisions, np.broadcast_to(thresholds, len(labels)), strict=True)
    per_label = {
        name: LabelScore(float(precision), float(recall), float(f1_score), int(support), average, float(threshold))
        for name, precision, recall, f1_score, support, average, threshold in rows
    }
    exact = float((gold == predicted).all(axis=1).mean())
    return MultilabelScores({**f1, "map": float(np.mean(precisions)), "exact_match": exact}, per_label)


def _average_precision(gold: np.ndarray, probabilities: np.ndarray) -> float:
    """Returns scikit-learn's average precision: 0 for a label that no example has; nan if the network has diverged."""
    if not np.isfinite(probabilities).all():
        return float("nan")
    return float(sklearn_metrics().average_precision_score(gold, probabilities))


def tune_threshold(gold: np.ndarray, probabilities: np.ndarray, default: float) -> float:
    """Returns the threshold with the highest F1 of decisions; of equal ones that nearest to `default`.

    Thresholds lie halfway between two probabilities. `default` is returned where no decision should be positive.

    Args:
        gold: true decisions, bool [n].
        probabilities: float [n].
        default: threshold between 0 and 1.
    """
    if not gold.any() or not np.isfinite(probabilities).all():
        return default
    order = np.argsort(-probabilities, kind="stable")
    ranked, hits = probabilities[order], np.cumsum(gold[order])
    is_last = np.append(ranked[1:] < ranked[:-1], True)  # of equal probabilities all are positive, or none
    count = np.arange(1, len(gold) + 1)
    f1 = np.where(is_last, 2 * hits / (count + gold.sum()), -1.0)
    below = np.append(ranked[1:], 0.0)
    candidates = np.flatnonzero(f1 == f1.max())
    middle = np.clip((ranked[candidates] + below[candidates]) / 2, _MARGIN, 1.0 - _MARGIN)
    return float(middle[np.abs(middle - default).argmin()])


def tune_thresholds(gold: np.ndarray, probabilities: np.ndarray, default: np.ndarray, per_label: bool) -> np.ndarray:
    """Returns thresholds [K] by `tune_threshold`: one for all labels, or one per label.

    Args:
        gold: true where an example has a label, bool [n, K].
        probabilities: float [n, K].
        default: thresholds [K], kept by labels that no example has.
        per_label: whether every label has a threshold of its own.
    """
    if not per_label:
        return np.full(gold.shape[1], tune_threshold(gold.reshape(-1), probabilities.reshape(-1), float(default[0])))
    columns = zip(gold.T, probabilities.T, default.tolist(), strict=True)
    return np.array([tune_threshold(*each) for each in columns])


def expand_thresholds(thresholds: Sequence[float], labels: Sequence[str]) -> np.ndarray:
    """Returns a threshold per label [K]; raises `UserError` if there is neither one nor one per label."""
    if len(thresholds) not in (1, len(labels)):
        raise UserError(
            f"task.multilabel.thresholds has {len(thresholds)} numbers for {len(labels)} labels: give one number, or "
            "one per label"
        )
    return np.broadcast_to(np.asarray(thresholds, np.float64), len(labels))
