"""The protocol of a kind of task, `TaskMethods`, with what tasks on texts share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float

from bertjax.config.task import TaskConfig, TaskKind
from bertjax.data.tokenizer import Tokenizer
from bertjax.finetuning.features import TextData, text_data
from bertjax.finetuning.metrics.classification import ClassScore
from bertjax.finetuning.metrics.multilabel import LabelScore
from bertjax.finetuning.qa_features import QaData
from bertjax.finetuning.readers.examples import Examples, ReadRequest
from bertjax.finetuning.readers.labels import collect_labels
from bertjax.finetuning.readers.text_classification import class_label, read_texts
from bertjax.finetuning.token_features import TokenData
from bertjax.types import Batch, Sum

TaskData = TextData | TokenData | QaData
"""Features of a split, what maps predictions back to labels, words or answers, and remarks to print."""


class EvalResult(NamedTuple):
    """Metrics without prefix; for reports the scores per class and, for labels, the confusion matrix (rows gold).

    Of generated texts there are `samples` {source, target, output}, and `signatures`, how metrics were computed; of
    classes `reliability`, (mean confidence, accuracy, examples) by bins of confidence.
    """

    metrics: dict[str, float]
    per_class: Mapping[str, ClassScore | LabelScore] = {}
    labels: tuple[str, ...] = ()
    confusion: np.ndarray | None = None
    samples: tuple[dict[str, str], ...] = ()
    signatures: Mapping[str, str] = {}
    reliability: tuple[tuple[float, float, int], ...] = ()


class TaskMethods:
    """Reads, trains on and scores one kind of task.

    A subclass defines `loss` and `compute_metrics`; the other methods are those of labeled texts. B sequences, E slots
    for examples in each, S tokens, K outputs of the head, n examples.
    """

    def read(self, request: ReadRequest) -> Examples:
        """Returns the examples of a request, in the order of its sources; errors name file and line."""
        return read_texts(request, self.label)

    def label(self, config: TaskConfig, value: Any, where: str) -> Any:
        """Returns the label of a text, by default the name of its class.

        Args:
            config: Settings of the task.
            value: What `task.label_column` holds, or a result of this method.
            where: Location of the example.

        Raises:
            UserError: It is not a label.
        """
        return class_label(config, value, where)

    def collect_labels(self, config: TaskConfig, examples: Examples) -> tuple[str, ...]:
        """Returns the names of the labels in the order of their ids, () without classes; reads the training data."""
        return collect_labels(config, examples)

    def make_features(
        self, config: TaskConfig, examples: Any, tokenizer: Tokenizer, labels: Sequence[str], training: bool
    ) -> Any:
        """Returns windows of tokens with their labels as arrays, by window or (`token_labels`) by token.

        Args:
            config: Settings of the task.
            examples: Result of `read`.
            tokenizer: The tokenizer of the model.
            labels: Result of `collect_labels` for the training data.
            training: Whether the features are trained on.
        """
        return text_data(config, examples, tokenizer, labels, training)

    def tokenizer(self, tokenizer: Tokenizer) -> Tokenizer:
        """Returns the tokenizer that an export needs to read a text as `make_features` does; as a rule the model's."""
        return tokenizer

    def class_counts(self, labels: np.ndarray, num_labels: int) -> np.ndarray:
        """Returns the number of examples of every class [K], for `task.class_weights`; -1 stands for none."""
        return np.bincount(labels[labels >= 0], minlength=num_labels)

    def class_weights(self, rule: str, counts: np.ndarray, total: int) -> np.ndarray:
        """Returns the numbers of `task.class_weights` [K] for `balanced` or `sqrt`; by default their mean is 1.

        Args:
            rule: `balanced`, inverse to the frequency, or `sqrt`, the root of that.
            counts: Result of `class_counts`, without zeros.
            total: Number of training examples.
        """
        weights = 1.0 / counts if rule == "balanced" else counts**-0.5
        return weights * (counts.sum() / (weights * counts).sum())

    def tune(self, config: TaskConfig, data: Any, scores: np.ndarray, labels: tuple[str, ...]) -> TaskKind:
        """Returns the settings of the kind with those that follow from examples that were not trained on.

        Called before every evaluation where `TaskKind.tuning_fraction` is not 0.

        Args:
            config: Settings of the task.
            data: Result of `make_features`.
            scores: Outputs of the head [n, K].
            labels: Names of the K labels.
        """
        raise NotImplementedError

    def count(self, batch: Batch, class_weights: np.ndarray) -> Array:
        """Returns the denominator of the loss of a batch [], without a forward pass: the number of examples."""
        return batch["example_weights"].sum()

    def loss(self, scores: Array, batch: Batch, class_weights: np.ndarray) -> dict[str, Sum]:
        """Returns sums over a batch, or microbatch: `loss`, whose count is that of `count`, and further metrics.

        Args:
            scores: Outputs of the head: [B, E, K] for texts, [B, S, K] where it scores tokens.
            batch: Arrays of `bertjax.types.Batch`, and the labels; `example_weights` [B, E] is 0 in empty slots.
            class_weights: Numbers of `task.class_weights` [K], 1 by default.
        """
        raise NotImplementedError

    def teacher_loss(
        self, scores: Float[Array, "B E K"], teacher: Float[Array, "B E K"], temperature: float
    ) -> Float[Array, "B E"]:
        """Returns the divergence of classes from those of a teacher, times the square of the temperature.

        Args:
            scores: Outputs of the head.
            teacher: Those of the teacher.
            temperature: Both are divided by it.
        """
        of_teacher, ours = (jax.nn.log_softmax(each / temperature, axis=-1) for each in (teacher, scores))
        return temperature**2 * (jnp.exp(of_teacher) * (of_teacher - ours)).sum(axis=-1)

    def compute_metrics(
        self, config: TaskConfig, examples: Any, data: Any, scores: Any, labels: tuple[str, ...]
    ) -> EvalResult:
        """Scores the predictions for labeled examples; knows neither model nor jax.

        Args:
            config: Settings of the task.
            examples: Result of `read`.
            data: Result of `make_features`.
            scores: Outputs of the head: [n, K] by window, or [total, K] by token of the features; or texts.
            labels: Names of the K labels.
        """
        raise NotImplementedError

    def records(
        self, config: TaskConfig, scores: np.ndarray, labels: tuple[str, ...], top_k: int | None
    ) -> Iterator[dict[str, Any]]:
        """Yields the prediction for every text as a JSON object: its label, and the probabilities of all.

        Args:
            config: Settings of the task.
            scores: Outputs of the head [n, K].
            labels: Names of the K labels.
            top_k: Probabilities per record; None: all.
        """
        for row in softmax(scores):
            order = np.argsort(-row, kind="stable")
            shown = range(len(row)) if top_k is None else order[:top_k]
            yield {
                "label": labels[order[0]],
                "score": rounded(row[order[0]]),
                "probabilities": {labels[index]: rounded(row[index]) for index in shown},
            }


def softmax(scores: np.ndarray) -> np.ndarray:
    """Returns the softmax of scores [..., K] over the last axis, in float64."""
    powers = np.exp(scores.astype(np.float64) - scores.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def rounded(probability: float) -> float:
    """Returns a probability as predictions write it, with six digits."""
    return round(float(probability), 6)


def label_weights(labels: Array, class_weights: np.ndarray) -> Array:
    """Returns the class weight of each label [...], 0 for -1 (no label); `class_weights` [K] holds those of classes."""
    weights = jnp.asarray(class_weights)[jnp.maximum(labels, 0)]
    return jnp.where(labels >= 0, weights, 0.0)


def class_sums(
    scores: Float[Array, "B X K"], labels: Array, mask: Float[Array, "B X"], class_weights: np.ndarray
) -> dict[str, Sum]:
    """Returns the weighted cross-entropy of classes, as torch.nn.CrossEntropyLoss, and the number of correct ones.

    Args:
        scores: Scores of the classes.
        labels: Their ids [B, X], -1: none.
        mask: 1 where there is an example.
        class_weights: Weights of the classes [K].
    """
    weights = label_weights(labels, class_weights) * mask
    losses = optax.softmax_cross_entropy_with_integer_labels(scores, jnp.maximum(labels, 0))
    correct = (jnp.argmax(scores, axis=-1) == labels) * mask
    return {"loss": Sum((losses * weights).sum(), weights.sum()), "accuracy": Sum(correct.sum(), mask.sum())}
