"""Ordinal classification: neighboring classes are nearly right."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
import optax
from scipy.special import softmax
from sklearn.metrics import cohen_kappa_score

from bertjax.extensions import EvalResult, Sum, TaskConfig, TaskKind, setting


@dataclasses.dataclass(frozen=True)
class Ordinal(TaskKind, group="task.ordinal"):
    """Classes in an order, such as one to five stars, with soft labels (SORD, Diaz and Marathe, CVPR 2019)."""

    name, title, head = "ordinal", "ordinal classification", "sequence_classification"
    main_metric, label_array = "kappa", "class_labels"
    metrics: ClassVar[dict[str, tuple[str, str]]] = {
        "kappa": ("-1 to 1", "Cohen's kappa with quadratic weights."),
        "distance": ("classes", "Mean distance of the predicted class from the right one."),
    }
    has_classes = True

    sharpness: float = setting(2.0, above=0.0, help="Soft labels are the softmax of -sharpness times the distance.")

    def make_features(
        self, config: TaskConfig, examples: Any, tokenizer: Any, labels: Sequence[str], training: bool
    ) -> Any:
        data = super().make_features(config, examples, tokenizer, labels, training)
        if examples.labels is None:
            return data
        classes = data.features.labels["class_labels"]
        distances = np.abs(classes[:, None] - np.arange(len(labels)))
        soft = softmax(-self.sharpness * distances, axis=1).astype(np.float32)
        features = dataclasses.replace(data.features, labels={"class_labels": classes, "soft_labels": soft})
        return dataclasses.replace(data, features=features)

    def loss(self, scores: Any, batch: Any, class_weights: np.ndarray) -> dict[str, Sum]:
        weights = batch["example_weights"]
        losses = optax.softmax_cross_entropy(scores, batch["soft_labels"])
        weighted = losses * weights * jnp.asarray(class_weights)[batch["class_labels"]]
        return {"loss": Sum(weighted.sum(), weights.sum())}

    def compute_metrics(
        self, config: TaskConfig, examples: Any, data: Any, scores: np.ndarray, labels: tuple[str, ...]
    ) -> EvalResult:
        gold, predicted = data.features.labels["class_labels"], scores.argmax(axis=1)
        kappa = cohen_kappa_score(gold, predicted, weights="quadratic")
        return EvalResult({"kappa": float(kappa), "distance": float(np.abs(gold - predicted).mean())})
