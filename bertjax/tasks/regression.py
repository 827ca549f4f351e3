"""Regression: a number per text or pair of texts."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from bertjax.config.task import TaskConfig
from bertjax.tasks.base import TaskKind
from bertjax.tasks.evaluate import EvalResult
from bertjax.tasks.features import TextData
from bertjax.tasks.metrics.regression import regression_scores
from bertjax.types import Batch, Sum


@dataclasses.dataclass(frozen=True)
class Regression(TaskKind, group="task.regression"):
    """A number per text or pair of texts; has no settings of its own."""

    name, title, head = "regression", "regression", "sequence_classification"
    main_metric, label_array = "pearson", "score_labels"
    metrics: ClassVar[dict[str, tuple[str, str]]] = {
        "pearson": ("-1 to 1", "Pearson's correlation; nan where it is undefined."),
        "spearman": ("-1 to 1", "Spearman's rank correlation; nan where it is undefined."),
        "mse": ("squared label", "Mean squared error."),
    }
    output_labels = ("LABEL_0",)

    @property
    def config_keys(self) -> Mapping[str, Any]:
        # Without them a pipeline and a CrossEncoder take the sigmoid of a single output.
        activation = {"activation_fn": "torch.nn.modules.linear.Identity"}
        return {"problem_type": "regression", "sentence_transformers": activation}

    def teacher_loss(self, scores: Array, teacher: Array, temperature: float) -> Array:
        """Returns the squared difference from the number of the teacher. Args: as in the base class."""
        return jnp.square(scores - teacher).sum(axis=-1)

    def loss(self, scores: Array, batch: Batch, class_weights: np.ndarray) -> dict[str, Sum]:
        weights = batch["example_weights"]
        errors = jnp.square(scores[..., 0] - batch["score_labels"]) * weights
        return {"loss": Sum(errors.sum(), weights.sum())}

    def compute_metrics(
        self, config: TaskConfig, examples: Any, data: TextData, scores: np.ndarray, labels: tuple[str, ...]
    ) -> EvalResult:
        return EvalResult(regression_scores(data.features.labels["score_labels"], scores[:, 0])._asdict())

    def records(
        self, config: TaskConfig, examples: Any, data: Any, scores: Any, labels: tuple[str, ...], top_k: int | None
    ) -> Iterator[dict[str, Any]]:
        yield from ({"score": float(str(np.float32(value)))} for value in scores[:, 0])
