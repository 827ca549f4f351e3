"""Any number of labels per text: a sigmoid per label, and thresholds."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array
from scipy.special import expit

from bertjax.config.task import TaskConfig
from bertjax.config.task_kinds import TaskKind
from bertjax.data.tokenizer import Tokenizer
from bertjax.errors import UserError, named
from bertjax.finetuning.features import TextData
from bertjax.finetuning.methods import EvalResult, TaskMethods, rounded
from bertjax.finetuning.metrics.multilabel import expand_thresholds, multilabel_scores, tune_thresholds
from bertjax.finetuning.readers.examples import Examples, TextExamples
from bertjax.finetuning.readers.labels import encode_labels, sorted_names
from bertjax.finetuning.readers.text_classification import class_label
from bertjax.types import Batch, Sum

_FLAGS = {"0": False, "0.0": False, "false": False, "1": True, "1.0": True, "true": True}


class MultilabelTask(TaskMethods):
    """Labels such as `joy,relief`, lists of names or ids, or a 0 or 1 for every label; an example may have none."""

    def label(self, config: TaskConfig, value: Any, where: str) -> tuple[str, ...]:
        """Returns the names of the labels. Args: as in the base class."""
        if isinstance(value, Mapping):
            return _flagged(config, value, where)
        if value is None:
            key = named("task.label_column")
            raise UserError(f'{where}: no labels in the column of {key}; write [] or "" for an example without any')
        if isinstance(value, str):
            value = [part for part in value.split(config.multilabel.separator) if part.strip()]
        values = value if isinstance(value, list | tuple) else [value]
        return tuple(dict.fromkeys(class_label(config, each, where) for each in values))

    def collect_labels(self, config: TaskConfig, examples: Examples) -> tuple[str, ...]:
        assert isinstance(examples, TextExamples)
        used = set(itertools.chain.from_iterable(examples.labels or ()))
        names = config.labels or config.multilabel.label_columns or sorted_names(used)
        if not names:
            raise UserError(f"{named('task.label_column')}: no example has a label")
        expand_thresholds(config.multilabel.thresholds, names)
        return tuple(names)

    def make_features(
        self, config: TaskConfig, examples: Any, tokenizer: Tokenizer, labels: Sequence[str], training: bool
    ) -> TextData:
        unlabeled = dataclasses.replace(examples, labels=None)
        data: TextData = super().make_features(config, unlabeled, tokenizer, labels, training)
        if examples.labels is None:
            return data
        rows = np.repeat(np.arange(len(examples)), [len(each) for each in examples.labels])
        names = list(itertools.chain.from_iterable(examples.labels))
        matrix = np.zeros((len(examples), len(labels)), np.float32)
        matrix[rows, encode_labels(labels, names, examples.locations, rows.tolist())] = 1.0
        features = dataclasses.replace(data.features, labels={"multi_labels": matrix[data.features.example]})
        notes = list(data.notes)
        if empty := sum(not each for each in examples.labels):
            notes.append(f"{empty:,} of {len(examples):,} examples have no label")
        return dataclasses.replace(data, features=features, notes=tuple(notes))

    def class_counts(self, labels: np.ndarray, num_labels: int) -> np.ndarray:
        return labels.sum(axis=0)

    def class_weights(self, rule: str, counts: np.ndarray, total: int) -> np.ndarray:
        """Returns the examples without a label per example with it, or the root of that. Args: as in the base class."""
        ratios = (total - counts) / counts
        return ratios if rule == "balanced" else np.sqrt(ratios)

    def loss(self, scores: Array, batch: Batch, class_weights: np.ndarray) -> dict[str, Sum]:
        """Sums the mean over labels of the loss of `torch.nn.BCEWithLogitsLoss(pos_weight=class_weights)`."""
        labels, weights = batch["multi_labels"], batch["example_weights"]
        factors = 1.0 + labels * (jnp.asarray(class_weights)[None, None] - 1.0)
        losses = (optax.sigmoid_binary_cross_entropy(scores, labels) * factors).mean(axis=-1)
        return {"loss": Sum((losses * weights).sum(), weights.sum())}

    def teacher_loss(self, scores: Array, teacher: Array, temperature: float) -> Array:
        """Returns the mean over labels of the divergence from their probabilities. Args: as in the base class."""
        ours, of_teacher = scores / temperature, teacher / temperature
        targets = jax.nn.sigmoid(of_teacher)
        losses = [optax.sigmoid_binary_cross_entropy(each, targets) for each in (ours, of_teacher)]
        return temperature**2 * (losses[0] - losses[1]).mean(axis=-1)

    def tune(self, config: TaskConfig, data: TextData, scores: np.ndarray, labels: tuple[str, ...]) -> TaskKind:
        settings, gold = config.multilabel, data.features.labels["multi_labels"] > 0
        default, per_label = expand_thresholds((0.5,), labels), settings.tune_thresholds == "per_label"
        tuned = tune_thresholds(gold, _probabilities(scores), default, per_label)
        stored = tuple(round(each, 6) for each in (tuned if per_label else tuned[:1]).tolist())
        return settings.replace(thresholds=stored)

    def compute_metrics(
        self, config: TaskConfig, examples: Any, data: TextData, scores: np.ndarray, labels: tuple[str, ...]
    ) -> EvalResult:
        gold = data.features.labels["multi_labels"] > 0
        thresholds = expand_thresholds(config.multilabel.thresholds, labels)
        result = multilabel_scores(gold, _probabilities(scores), thresholds, labels)
        return EvalResult(result.metrics, result.per_label, labels)

    def records(
        self, config: TaskConfig, scores: np.ndarray, labels: tuple[str, ...], top_k: int | None
    ) -> Iterator[dict[str, Any]]:
        """Yields the labels of every text, and the probabilities. Args: as in the base class."""
        thresholds = expand_thresholds(config.multilabel.thresholds, labels)
        for row in _probabilities(scores):
            shown = range(len(row)) if top_k is None else np.argsort(-row, kind="stable")[:top_k]
            yield {
                "labels": [labels[index] for index in np.flatnonzero(row >= thresholds)],
                "probabilities": {labels[index]: rounded(row[index]) for index in shown},
            }


def _flagged(config: TaskConfig, value: Mapping[str, Any], where: str) -> tuple[str, ...]:
    """Returns the labels whose value is 1; those of `label_columns` have the names of `task.labels`, if there are."""
    names = dict(zip(config.multilabel.label_columns, config.labels, strict=False))
    chosen = []
    for column, each in value.items():
        flag = _FLAGS.get(str(each).strip().lower())
        if flag is None:
            raise UserError(f"{where}: {column!r} holds {each!r}, where 0 or 1 says whether the example has this label")
        if flag:
            chosen.append(names.get(column, column))
    return tuple(chosen)


def _probabilities(scores: np.ndarray) -> np.ndarray:
    return expit(scores.astype(np.float64))
