"""Probabilities of decisions: their reliability, and the temperature that calibrates them (arXiv:1706.04599)."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from scipy.special import logsumexp

from bertjax.config.fields import setting
from bertjax.config.task import TaskConfig
from bertjax.tasks.base import TaskKind, softmax

NUM_BINS = 15
"""Bins of confidence, of equal width, as in the paper."""
_LOG_RANGE = 5.0


class Decisions(NamedTuple):
    """Decisions between outcomes whose scores compete: `scores` [n, C], -inf for none; the `right` ones [n]."""

    scores: np.ndarray
    right: np.ndarray


@dataclasses.dataclass(frozen=True)
class CalibratedKind(TaskKind):
    """A kind of task whose probabilities are scored, and calibrated by a temperature.

    A subclass defines `decisions`, what a temperature is fitted to, and perhaps `confidences`.
    """

    calibration_metric: ClassVar[dict[str, tuple[str, str]]] = {
        "calibration_error": (
            "share",
            "Mean difference of confidence and accuracy, in 15 bins of confidence (ECE); of multilabel, of the "
            "probabilities of all labels.",
        ),
    }

    calibrate: bool = setting(
        False,
        help="Fit the temperature that makes probabilities right, on examples of `tune_fraction`: the order of the "
        "scores stays the same. Exports hold it in their last layer, so that every library computes calibrated "
        "probabilities.",
    )
    tune_fraction: float = setting(
        0.1, above=0.0, below=1.0, help="Share of the training examples that tune settings and are not trained on."
    )
    temperature: float = setting(
        1.0,
        above=0.0,
        resume=True,
        help="Scores are divided by it before they become probabilities. A fitted one replaces it.",
    )

    @property
    def tuning_fraction(self) -> float:
        return self.tune_fraction if self.calibrate else 0.0

    def decisions(self, data: Any, scores: np.ndarray) -> Decisions:
        """Returns the decisions about labeled examples.

        Args:
            data: Result of `make_features`.
            scores: Outputs of the head.
        """
        raise NotImplementedError

    def confidences(self, data: Any, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns probabilities, and whether what they are about is right; by default of the predicted outcomes.

        Args: as of `decisions`.
        """
        decided = self.decisions(data, scores)
        return softmax(self.calibrated(decided.scores)).max(axis=1), decided.scores.argmax(axis=1) == decided.right

    def calibrated(self, scores: np.ndarray) -> np.ndarray:
        """Returns scores divided by the temperature, in float64."""
        return scores / np.float64(self.temperature)

    def reliability(self, data: Any, scores: np.ndarray) -> Reliability:
        """Returns how reliable the probabilities are. Args: as of `decisions`."""
        return reliability(*self.confidences(data, scores))

    def tune(self, config: TaskConfig, data: Any, scores: np.ndarray, labels: tuple[str, ...]) -> Self:
        """Returns the kind with a fitted temperature, if `calibrate` asks for it. Args: as in the base class."""
        if not self.calibrate:
            return self
        return self.replace(temperature=float(f"{fit_temperature(*self.decisions(data, scores)):.6g}"))


class Reliability(NamedTuple):
    """Accuracy of predictions by their confidence.

    Attributes:
        error: Expected calibration error: mean over predictions of |accuracy - confidence| of their bin, in [0, 1].
        bins: (mean confidence, accuracy, number of predictions) of every bin that holds any, from the lowest on.
    """

    error: float
    bins: tuple[tuple[float, float, int], ...]


def reliability(confidences: np.ndarray, correct: np.ndarray) -> Reliability:
    """Compares confidence and accuracy.

    Args:
        confidences: probabilities of predictions [n].
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


def fit_temperature(scores: np.ndarray, right: np.ndarray) -> float:
    """Returns the temperature that scores are divided by for the lowest cross-entropy; 1 if nothing can be learned.

    Args:
        scores: scores of the outcomes of every decision [n, C], -inf for no outcome.
        right: right outcomes [n].
    """
    scores = scores.astype(np.float64)
    of_right = scores[np.arange(len(scores)), right]
    if not len(scores) or not np.isfinite(scores[scores != -np.inf]).all() or not np.isfinite(of_right).all():
        return 1.0
    if (of_right >= scores.max(axis=1)).all():  # the lower, the better
        return 1.0

    def loss(log_temperature: float) -> float:
        factor = np.exp(-log_temperature)
        return float((logsumexp(factor * scores, axis=1) - factor * of_right).mean())

    # the loss is convex in 1 / T, so it has one minimum, which scores that are mostly wrong do not have below the bound
    from scipy.optimize import minimize_scalar  # half a second, for which every command would wait

    best = minimize_scalar(loss, bounds=(-_LOG_RANGE, _LOG_RANGE), method="bounded", options={"xatol": 1e-6}).x
    return float(np.exp(best)) if abs(best) < _LOG_RANGE - 0.01 else 1.0
