"""Ordinal classification: neighboring classes are nearly right."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
from scipy.special import softmax
from sklearn.metrics import cohen_kappa_score

from bertjax.extensions import EvalResult, Sum, TaskConfig, TaskMethods


class Ordinal(TaskMethods):
    """Classes in the order of `task.labels`; by default that of numbers, or of the alphabet."""

    def make_features(
        self, config: TaskConfig, examples: Any, tokenizer: Any, labels: Sequence[str], training: bool
    ) -> Any:
        data = super().make_features(config, examples, tokenizer, labels, training)
        if examples.labels is None:
            return data
        classes = data.features.labels["class_labels"]
        distances = np.abs(classes[:, None] - np.arange(len(labels)))
        soft = softmax(-config.settings.sharpness * distances, axis=1).astype(np.float32)
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
