"""Classification of texts or pairs of texts, with calibrated probabilities (arXiv:1706.04599) and their reliability."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple

import numpy as np
from jaxtyping import Array
from scipy.special import logsumexp

from bertjax.config.fields import setting
from bertjax.config.task import TaskConfig
from bertjax.tasks.base import TaskKind, class_sums, label_weights, softmax
from bertjax.tasks.evaluate import EvalResult
from bertjax.tasks.features import TextData
from bertjax.tasks.metrics.classification import classification_scores
from bertjax.types import Batch, Sum

NUM_BINS = 15
"""Bins of confidence, of equal width, as in the paper."""
_LOG_RANGE = 5.0


@dataclasses.dataclass(frozen=True)
class Classification(TaskKind, group="task.classification"):
    """Classes of texts or pairs of texts."""

    name, title, head = "classification", "classification", "sequence_classification"
    main_metric, label_array = "accuracy", "class_labels"
    metrics: ClassVar[dict[str, tuple[str, str]]] = {
        "accuracy": ("share", "Examples with the right class."),
        "f1": ("share", "F1 of the second of two classes (GLUE)."),
        "macro_f1": ("share", "Mean F1 of the classes that occur."),
        "matthews": ("-1 to 1", "Matthews correlation (CoLA)."),
        "calibration_error": ("share", "Mean difference of confidence and accuracy, in 15 bins of confidence (ECE)."),
    }
    has_classes = True

    calibrate: bool = setting(
        False,
        help="Fit the temperature that makes probabilities right, on examples of `tune_fraction`: classes stay the "
        "same. Exports hold it in their last layer, so that every library computes calibrated probabilities.",
    )
    tune_fraction: float = setting(
        0.1, above=0.0, below=1.0, help="Share of the training examples that calibrate and are not trained on."
    )
    temperature: float = setting(
        1.0, above=0.0, resume=True, help="Scores are divided by it before the softmax. A fitted one replaces it."
    )

    @property
    def tuning_fraction(self) -> float:
        return self.tune_fraction if self.calibrate else 0.0

    def count(self, batch: Batch, class_weights: np.ndarray) -> Array:
        return (label_weights(batch["class_labels"], class_weights) * batch["example_weights"]).sum()

    def loss(self, scores: Array, batch: Batch, class_weights: np.ndarray) -> dict[str, Sum]:
        return class_sums(scores, batch["class_labels"], batch["example_weights"], class_weights)

    def compute_metrics(
        self, config: TaskConfig, examples: Any, data: TextData, scores: np.ndarray, labels: tuple[str, ...]
    ) -> EvalResult:
        gold, probabilities = data.features.labels["class_labels"], softmax(self._calibrated(scores))
        predicted = scores.argmax(axis=1)
        result = classification_scores(gold, predicted, labels, probabilities)
        reliable = reliability(probabilities.max(axis=1), predicted == gold)
        metrics = result.metrics() | {"calibration_error": reliable.error}
        return EvalResult(metrics, result.per_class, labels, result.confusion, reliability=reliable.bins)

    def tune(self, config: TaskConfig, data: TextData, scores: np.ndarray, labels: tuple[str, ...]) -> Classification:
        fitted = fit_temperature(scores, data.features.labels["class_labels"])
        return self.replace(temperature=float(f"{fitted:.6g}"))

    def records(
        self, config: TaskConfig, examples: Any, data: Any, scores: Any, labels: tuple[str, ...], top_k: int | None
    ) -> Iterator[dict[str, Any]]:
        yield from super().records(config, examples, data, self._calibrated(scores), labels, top_k)

    def _calibrated(self, scores: np.ndarray) -> np.ndarray:
        return scores / np.float64(self.temperature)


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
