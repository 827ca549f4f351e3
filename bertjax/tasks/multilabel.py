"""Any number of labels per text: a sigmoid per label, and thresholds."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array
from scipy.special import expit

from bertjax.config.fields import setting
from bertjax.config.task import TaskConfig
from bertjax.data.tokenizer import Tokenizer
from bertjax.errors import UserError, named
from bertjax.tasks.base import rounded
from bertjax.tasks.calibration import CalibratedKind, Decisions
from bertjax.tasks.evaluate import EvalResult
from bertjax.tasks.features import TextData
from bertjax.tasks.metrics.multilabel import expand_thresholds, multilabel_scores, tune_thresholds
from bertjax.tasks.readers.examples import Examples, TextExamples
from bertjax.tasks.readers.labels import encode_labels, sorted_names
from bertjax.tasks.readers.text_classification import class_label
from bertjax.types import Batch, Sum

_FLAGS = {"0": False, "0.0": False, "false": False, "1": True, "1.0": True, "true": True}


@dataclasses.dataclass(frozen=True)
class Multilabel(CalibratedKind, group="task.multilabel"):
    """Any number of labels per text or pair of texts (GoEmotions, arXiv:2005.00547)."""

    name, title, head = "multilabel", "multi-label classification", "sequence_classification"
    main_metric, label_array = "micro_f1", "multi_labels"
    metrics: ClassVar[dict[str, tuple[str, str]]] = {
        "micro_f1": ("share", "F1 of all decisions together."),
        "macro_f1": ("share", "Mean F1 of the labels (of classification: of those that occur)."),
        "samples_f1": ("share", "Mean F1 of the examples."),
        "map": ("share", "Mean average precision of the labels: needs no threshold."),
        "exact_match": ("share", "Examples whose labels are all right."),
        **CalibratedKind.calibration_metric,
    }
    has_classes = many_labels = True

    separator: str = setting(
        ",", help="Separates the labels of an example where `label_column` holds text; lists need none."
    )
    label_columns: tuple[str, ...] = setting(
        (),
        help="Columns with a label each, 0 or 1 per example, in the order of their ids; they name the labels unless "
        "`task.labels` does. (): `label_column` holds the labels.",
    )
    thresholds: tuple[float, ...] = setting(
        (0.5,),
        above=0.0,
        below=1.0,
        resume=True,
        help="Probability from which a label is predicted: one for all, or one per label. Tuned ones replace it.",
    )
    tune_thresholds: str = setting(
        "none",
        choices=("none", "one", "per_label"),
        help="one: the threshold with the best micro F1; per_label: of every label that with its best F1. Examples of "
        "`tune_fraction` decide; the run and its export store the thresholds of the exported weights.",
    )

    def check(self) -> None:
        if not self.separator:
            raise UserError("task.multilabel.separator is empty: name the text between two labels, such as ,")
        if not self.thresholds:
            raise UserError("task.multilabel.thresholds is empty: give one number, or one per label")
        if len(set(self.label_columns)) < len(self.label_columns):
            raise UserError("task.multilabel.label_columns names a column twice")

    def check_task(self, config: TaskConfig) -> None:
        if self.label_columns and config.label_column is not None:
            key = named("task.label_column")
            raise UserError(f"task.multilabel.label_columns names the labels: set {key} to None")
        if self.label_columns and config.labels and len(self.label_columns) != len(config.labels):
            raise UserError(
                f"task.labels names {len(config.labels)} labels, task.multilabel.label_columns "
                f"{len(self.label_columns)} columns: give one name per column, in their order"
            )

    @property
    def config_keys(self) -> Mapping[str, Any]:
        tuned = {} if self.thresholds == (0.5,) else {"thresholds": list(self.thresholds)}
        return {"problem_type": "multi_label_classification", **tuned}

    @property
    def tuning_fraction(self) -> float:
        return self.tune_fraction if self.calibrate or self.tune_thresholds != "none" else 0.0

    def label(self, config: TaskConfig, value: Any, where: str) -> tuple[str, ...]:
        """Returns the names of the labels. Args: as in the base class."""
        if isinstance(value, Mapping):
            return self._flagged(config, value, where)
        if value is None:
            key = named("task.label_column")
            raise UserError(f'{where}: no labels in the column of {key}; write [] or "" for an example without any')
        if isinstance(value, str):
            value = [part for part in value.split(self.separator) if part.strip()]
        values = value if isinstance(value, list | tuple) else [value]
        return tuple(dict.fromkeys(class_label(config, each, where) for each in values))

    def collect_labels(self, config: TaskConfig, examples: Examples) -> tuple[str, ...]:
        assert isinstance(examples, TextExamples)
        used = set(itertools.chain.from_iterable(examples.labels or ()))
        names = config.labels or self.label_columns or sorted_names(used)
        if not names:
            raise UserError(f"{named('task.label_column')}: no example has a label")
        expand_thresholds(self.thresholds, names)
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

    def tune(self, config: TaskConfig, data: TextData, scores: np.ndarray, labels: tuple[str, ...]) -> Multilabel:
        """Returns the kind with a fitted temperature and thresholds of the probabilities that it makes.

        Args: as in the base class.
        """
        kind = super().tune(config, data, scores, labels)
        if self.tune_thresholds == "none":
            return kind
        gold = data.features.labels["multi_labels"] > 0
        default, per_label = expand_thresholds((0.5,), labels), self.tune_thresholds == "per_label"
        tuned = tune_thresholds(gold, kind._probabilities(scores), default, per_label)
        return kind.replace(thresholds=tuple(round(each, 6) for each in (tuned if per_label else tuned[:1]).tolist()))

    def decisions(self, data: TextData, scores: np.ndarray) -> Decisions:
        """Returns a decision per example and label; its sigmoid is the softmax with 0. Args: as in the base class."""
        rows = scores.reshape(-1, 1)
        right = data.features.labels["multi_labels"].reshape(-1).astype(np.int64)
        return Decisions(np.concatenate([np.zeros_like(rows), rows], axis=1), right)

    def confidences(self, data: TextData, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the probability of every label of every example, and whether it has this label, whatever thresholds.

        Args: as in the base class.
        """
        return self._probabilities(scores).reshape(-1), data.features.labels["multi_labels"].reshape(-1) > 0

    def compute_metrics(
        self, config: TaskConfig, examples: Any, data: TextData, scores: np.ndarray, labels: tuple[str, ...]
    ) -> EvalResult:
        gold = data.features.labels["multi_labels"] > 0
        thresholds = expand_thresholds(self.thresholds, labels)
        result = multilabel_scores(gold, self._probabilities(scores), thresholds, labels)
        reliable = self.reliability(data, scores)
        metrics = result.metrics | {"calibration_error": reliable.error}
        return EvalResult(metrics, result.per_label, labels, reliability=reliable.bins)

    def records(
        self, config: TaskConfig, examples: Any, data: Any, scores: Any, labels: tuple[str, ...], top_k: int | None
    ) -> Iterator[dict[str, Any]]:
        """Yields the labels of every text, and the probabilities. Args: as in the base class."""
        thresholds = expand_thresholds(self.thresholds, labels)
        for row in self._probabilities(scores):
            shown = range(len(row)) if top_k is None else np.argsort(-row, kind="stable")[:top_k]
            yield {
                "labels": [labels[index] for index in np.flatnonzero(row >= thresholds)],
                "probabilities": {labels[index]: rounded(row[index]) for index in shown},
            }

    def _flagged(self, config: TaskConfig, value: Mapping[str, Any], where: str) -> tuple[str, ...]:
        """Returns the labels whose value is 1; those of `label_columns` have the names of `task.labels`, if any."""
        names = dict(zip(self.label_columns, config.labels, strict=False))
        chosen = []
        for column, each in value.items():
            flag = _FLAGS.get(str(each).strip().lower())
            if flag is None:
                raise UserError(
                    f"{where}: {column!r} holds {each!r}, where 0 or 1 says whether the example has this label"
                )
            if flag:
                chosen.append(names.get(column, column))
        return tuple(chosen)

    def _probabilities(self, scores: np.ndarray) -> np.ndarray:
        return expit(self.calibrated(scores))
