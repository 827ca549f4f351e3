"""Classification of texts or pairs of texts."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Array

from bertjax.config.task import TaskConfig
from bertjax.tasks.base import class_sums, label_weights, softmax
from bertjax.tasks.calibration import CalibratedKind, Decisions
from bertjax.tasks.evaluate import EvalResult
from bertjax.tasks.features import TextData
from bertjax.tasks.metrics.classification import classification_scores
from bertjax.types import Batch, Sum


@dataclasses.dataclass(frozen=True)
class Classification(CalibratedKind, group="task.classification"):
    """Classes of texts or pairs of texts."""

    name, title, head = "classification", "classification", "sequence_classification"
    main_metric, label_array = "accuracy", "class_labels"
    metrics: ClassVar[dict[str, tuple[str, str]]] = {
        "accuracy": ("share", "Examples with the right class."),
        "f1": ("share", "F1 of the second of two classes (GLUE)."),
        "macro_f1": ("share", "Mean F1 of the classes that occur."),
        "matthews": ("-1 to 1", "Matthews correlation (CoLA)."),
        **CalibratedKind.calibration_metric,
    }
    has_classes = True

    def count(self, batch: Batch, class_weights: np.ndarray) -> Array:
        return (label_weights(batch["class_labels"], class_weights) * batch["example_weights"]).sum()

    def loss(self, scores: Array, batch: Batch, class_weights: np.ndarray) -> dict[str, Sum]:
        return class_sums(scores, batch["class_labels"], batch["example_weights"], class_weights)

    def compute_metrics(
        self, config: TaskConfig, examples: Any, data: TextData, scores: np.ndarray, labels: tuple[str, ...]
    ) -> EvalResult:
        gold, probabilities = data.features.labels["class_labels"], softmax(self.calibrated(scores))
        result = classification_scores(gold, scores.argmax(axis=1), labels, probabilities)
        reliable = self.reliability(data, scores)
        metrics = result.metrics() | {"calibration_error": reliable.error}
        return EvalResult(metrics, result.per_class, labels, result.confusion, reliability=reliable.bins)

    def decisions(self, data: TextData, scores: np.ndarray) -> Decisions:
        return Decisions(scores, data.features.labels["class_labels"])

    def records(
        self, config: TaskConfig, examples: Any, data: Any, scores: Any, labels: tuple[str, ...], top_k: int | None
    ) -> Iterator[dict[str, Any]]:
        yield from super().records(config, examples, data, self.calibrated(scores), labels, top_k)
