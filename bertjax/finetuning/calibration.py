"""Calibrated probabilities: one temperature for all scores of a classifier (arXiv:1706.04599), and its reliability."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.special import logsumexp

NUM_BINS = 15
"""Bins of confidence, of equal width, as in the paper."""
_LOG_RANGE = 5.0


class Reliability(NamedTuple):
    """Accuracy of predictions by their confidence.

    Attributes:
        error: Expected calibration error: mean over examples of |accuracy - confidence| of their bin, in [0, 1].
        bins: (mean confidence, accuracy, number of examples) of every bin that holds any, from the lowest on.
    """

    error: float
    bins: tuple[tuple[float, float, int], ...]


def reliability(confidences: np.ndarray, correct: np.ndarray) -> Reliability:
    """Compares confidence and accuracy.

    Args:
        confidences: probabilities of the predicted classes [n].
        correct: whether the predictions are right [n].

    Returns:
        The reliability; its error is nan if a confidence is not finite.
    """
    if not np.isfinite(confidences).all():
        return Reliability(float("nan"), ())
    numbers = np.searchsorted(np.linspace(0.0, 1.0, NUM_BINS + 1)[1:-1], confidences)
    counts = np.bincount(numbers, minlength=NUM_BINS)
    used = counts > 0
    sums = (np.bincount(numbers, each, NUM_BINS) for each in (confidences, correct))
    means = [(total[used] / counts[used]).tolist() for total in sums]
    bins = tuple(zip(*means, counts[used].tolist(), strict=True))
    error = sum(count * abs(accuracy - confidence) for confidence, accuracy, count in bins) / len(confidences)
    return Reliability(float(error), bins)


def fit_temperature(scores: np.ndarray, classes: np.ndarray) -> float:
    """Returns the temperature that scores are divided by for the lowest cross-entropy; 1 if nothing can be learned.

    Args:
        scores: outputs of the head [n, K].
        classes: right classes [n].
    """
    scores = scores.astype(np.float64)
    if not len(scores) or not np.isfinite(scores).all():
        return 1.0
    of_class = scores[np.arange(len(scores)), classes]
    if (of_class >= scores.max(axis=1)).all():  # the lower, the better
        return 1.0

    def loss(log_temperature: float) -> float:
        factor = np.exp(-log_temperature)
        return float((logsumexp(factor * scores, axis=1) - factor * of_class).mean())

    # the loss is convex in 1 / T, so it has one minimum, which scores that are mostly wrong do not have below the bound
    from scipy.optimize import minimize_scalar  # half a second, for which every command would wait

    best = minimize_scalar(loss, bounds=(-_LOG_RANGE, _LOG_RANGE), method="bounded", options={"xatol": 1e-6}).x
    return float(np.exp(best)) if abs(best) < _LOG_RANGE - 0.01 else 1.0
