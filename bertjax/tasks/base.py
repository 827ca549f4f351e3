"""The protocol of a kind of task, `TaskKind`: its settings, what others need to know of it, and its work on texts."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float

from bertjax.config.fields import Settings
from bertjax.config.task import TaskConfig
from bertjax.data.tokenizer import Tokenizer
from bertjax.tasks.evaluate import EvalResult, Evaluator, HeadEvaluator
from bertjax.tasks.features import text_data
from bertjax.tasks.objective import TaskObjective
from bertjax.tasks.readers.examples import Examples, ReadRequest, TextExamples
from bertjax.tasks.readers.labels import collect_labels
from bertjax.tasks.readers.text_classification import class_label, read_texts
from bertjax.types import Batch, Sum

Kind = TypeVar("Kind", bound="TaskKind")
RECORDS = ("jsonl", "parquet", "arrow", "hub")
"""Kinds of sources whose fields have names and types."""


@dataclasses.dataclass(frozen=True)
class TaskKind(Settings):
    """A kind of task: reads, trains on and scores labeled examples.

    A subclass declares its keys with `setting` in a group `task.<name>`, and defines `loss` and `compute_metrics`; the
    other methods are those of labeled texts. B sequences, E slots for examples in each, S tokens, K outputs of the
    head, n examples.

    Attributes:
        name: Name of the kind, with which the names of its metrics begin.
        title: The kind in words.
        head: Head of the model: sequence_classification, token_classification, question_answering or seq2seq, an
            encoder-decoder.
        objective: Class of the objective.
        evaluator: Class that scores held-out examples.
        main_metric: Metric of most tasks of the kind that selects the best checkpoint; see `metric`.
        metrics: Held-out metrics by name: (unit, meaning).
        label_array: Array of `Features.labels` that the loss reads.
        columns: Names of the columns of text and label by default.
        has_targets: Whether labels are texts, which a decoder predicts; no `loss` is needed then.
        has_classes: Whether labels are named classes (`task.labels`, `task.class_weights`).
        many_labels: Whether an example has any number of labels instead of one.
        output_labels: Names of the outputs of a head without classes; None: those of the model stay.
        per_token: Whether the head scores tokens instead of examples.
        examples: Class of the examples as they are read: texts, one or two each, words, choices or questions.
        takes_pairs: Whether `task.pair_column` may name a second text.
        is_pair: Whether a window holds two texts without `task.pair_column`.
        source_kinds: Kinds of sources that can hold such examples.
        example_source: A source as it is written in `task.train`.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    head: ClassVar[str]
    objective: ClassVar[type[TaskObjective]] = TaskObjective
    evaluator: ClassVar[type[Evaluator]] = HeadEvaluator
    main_metric: ClassVar[str]
    metrics: ClassVar[dict[str, tuple[str, str]]] = {}
    label_array: ClassVar[str]
    columns: ClassVar[tuple[str, str]] = ("text", "label")
    has_targets: ClassVar[bool] = False
    has_classes: ClassVar[bool] = False
    many_labels: ClassVar[bool] = False
    output_labels: ClassVar[tuple[str, ...] | None] = None
    per_token: ClassVar[bool] = False
    examples: ClassVar[type[Examples]] = TextExamples
    takes_pairs: ClassVar[bool] = True
    is_pair: ClassVar[bool] = False
    source_kinds: ClassVar[tuple[str, ...]] = ("tsv", "csv", *RECORDS)
    example_source: ClassVar[str] = "tsv:train.tsv"

    @property
    def metric(self) -> str:
        """The metric that selects the best checkpoint unless `checkpoint.best_metric` is set."""
        return self.main_metric

    @property
    def config_keys(self) -> Mapping[str, Any]:
        """Further keys of config.json of an export: what libraries make of the head's outputs."""
        return {}

    @property
    def tuning_fraction(self) -> float:
        """Share of the training examples that `tune` gets instead of training; 0: nothing is tuned."""
        return 0.0

    @property
    def temperature(self) -> float:
        """Number that scores of classes are divided by before the softmax; exports hold it in their last layer."""
        return 1.0

    @property
    def label_columns(self) -> tuple[str, ...]:
        """Columns with a label each, in place of `task.label_column`."""
        return ()

    @property
    def max_target_length(self) -> int:
        """Tokens of a target at most, where there are targets."""
        return 0

    @property
    def generation(self) -> dict[str, Any]:
        """Settings of the generation of texts, for generation_config.json; {} where no text is generated."""
        return {}

    def check_task(self, config: TaskConfig) -> None:
        """Raises `UserError` for settings of the task that do not go with this kind."""

    def with_labels(self: Kind, labels: Sequence[str]) -> Kind:
        """Returns the settings with those that follow from the labels of the training data, which a run stores."""
        return self

    def read_examples(self, request: ReadRequest) -> Examples:
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
            examples: Result of `read_examples`.
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
        """Returns the kind with the settings that follow from examples that were not trained on.

        Called before every evaluation where `tuning_fraction` is not 0.

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
            examples: Result of `read_examples`.
            data: Result of `make_features`.
            scores: Outputs of the head: [n, K] by window, or [total, K] by token of the features; or texts.
            labels: Names of the K labels.
        """
        raise NotImplementedError

    def records(
        self, config: TaskConfig, examples: Any, data: Any, scores: Any, labels: tuple[str, ...], top_k: int | None
    ) -> Iterator[dict[str, Any]]:
        """Yields the prediction for every example as a JSON object; of a text its label, and the probabilities of all.

        Args:
            config: Settings of the task.
            examples: The examples, without labels.
            data: Result of `make_features`.
            scores: Outputs of the head, as of `compute_metrics`.
            labels: Names of the K labels.
            top_k: Probabilities, or answers, per record; None: all probabilities, a few answers.
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
