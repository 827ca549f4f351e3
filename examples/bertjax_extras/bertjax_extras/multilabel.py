"""Multi-label classification: a sigmoid per label."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import optax
from sklearn.metrics import precision_recall_fscore_support

from bertjax.extensions import EvalResult, Sum, TaskConfig, TaskMethods, UserError
from bertjax_extras.multilabel_config import SCORES


class MultiLabel(TaskMethods):
    """Labels such as `joy,relief`, or lists of names; an example may have none. The loss sums over the labels."""

    def label(self, config: TaskConfig, value: Any, where: str) -> tuple[str, ...]:
        names = value if isinstance(value, list | tuple) else str(value or "").split(config.settings.separator)
        return tuple(str(name).strip() for name in names if str(name).strip())

    def collect_labels(self, config: TaskConfig, examples: Any) -> tuple[str, ...]:
        return config.labels or tuple(sorted({name for names in examples.labels for name in names}))

    def make_features(
        self, config: TaskConfig, examples: Any, tokenizer: Any, labels: Sequence[str], training: bool
    ) -> Any:
        data = super().make_features(config, dataclasses.replace(examples, labels=None), tokenizer, labels, training)
        if examples.labels is None:
            return data
        ids = {name: index for index, name in enumerate(labels)}
        matrix = np.zeros((len(examples), len(labels)), np.float32)
        for row, names in enumerate(examples.labels):
            for name in names:
                if name not in ids:
                    raise UserError(f"{examples.locations[row]}: unknown label {name!r}; known are {', '.join(labels)}")
                matrix[row, ids[name]] = 1.0
        features = dataclasses.replace(data.features, labels={"multi_labels": matrix[data.features.example]})
        return dataclasses.replace(data, features=features)

    def class_counts(self, labels: np.ndarray, num_labels: int) -> np.ndarray:
        return labels.sum(axis=0)

    def loss(self, scores: Any, batch: Any, class_weights: np.ndarray) -> dict[str, Sum]:
        labels, weights = batch["multi_labels"], batch["example_weights"]
        losses = (optax.sigmoid_binary_cross_entropy(scores, labels) * class_weights[None, None]).sum(axis=-1)
        return {"loss": Sum((losses * weights).sum(), weights.sum())}

    def compute_metrics(
        self, config: TaskConfig, examples: Any, data: Any, scores: np.ndarray, labels: tuple[str, ...]
    ) -> EvalResult:
        gold, predicted = data.features.labels["multi_labels"] > 0, _probabilities(scores) >= config.settings.threshold
        metrics = {"exact_match": float((gold == predicted).all(axis=1).mean())}
        for average in ("micro", "macro"):
            scored = precision_recall_fscore_support(gold, predicted, average=average, zero_division=0)
            metrics |= {f"{average}_{name}": float(scored[i]) for i, name in enumerate(SCORES)}
        return EvalResult(metrics)

    def records(
        self, config: TaskConfig, scores: np.ndarray, labels: tuple[str, ...], top_k: int | None
    ) -> Iterator[dict[str, Any]]:
        for row in _probabilities(scores):
            shown = range(len(row)) if top_k is None else np.argsort(-row, kind="stable")[:top_k]
            yield {
                "labels": [name for name, each in zip(labels, row, strict=True) if each >= config.settings.threshold],
                "probabilities": {labels[index]: round(float(row[index]), 6) for index in shown},
            }


def _probabilities(scores: np.ndarray) -> np.ndarray:
    return 1.0 / (1.0 + np.exp(-scores.astype(np.float64)))
