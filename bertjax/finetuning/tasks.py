"""Kinds of tasks: how their examples are read, become features, are trained on and scored."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from bertjax.config.extensions import TASK_KINDS
from bertjax.config.registry import import_subclass
from bertjax.config.source_files import source_files
from bertjax.config.sources import parse_task_source
from bertjax.config.task import PLAIN_TAGS, TaskConfig, TaskKind
from bertjax.data.tokenizer import Tokenizer
from bertjax.errors import UserError
from bertjax.finetuning.calibration import fit_temperature, reliability
from bertjax.finetuning.features import TextData
from bertjax.finetuning.methods import EvalResult as EvalResult
from bertjax.finetuning.methods import TaskData as TaskData
from bertjax.finetuning.methods import TaskMethods, class_sums, label_weights, softmax
from bertjax.finetuning.metrics.classification import classification_scores
from bertjax.finetuning.metrics.entities import entity_scores
from bertjax.finetuning.metrics.regression import regression_scores
from bertjax.finetuning.metrics.squad import squad_scores
from bertjax.finetuning.qa_answers import select_answers
from bertjax.finetuning.qa_features import QaData, qa_data
from bertjax.finetuning.readers.examples import Examples, QaExamples, ReadRequest, WordExamples
from bertjax.finetuning.readers.squad import read_questions
from bertjax.finetuning.readers.token_classification import read_words
from bertjax.finetuning.tag_schemes import recognize_scheme
from bertjax.finetuning.token_features import TokenData, token_data, tokenizer_of_words
from bertjax.types import Batch, Sum

_LOWEST = float(np.finfo(np.float32).min)


@functools.cache
def task_methods(kind: str) -> TaskMethods:
    """Returns the methods of a kind of task; raises `UserError` if they cannot be imported or lack something."""
    spec = TASK_KINDS.load(kind)
    needed = ("compute_metrics",) if spec.has_targets else ("loss", "compute_metrics")
    methods: TaskMethods = import_subclass(spec.task_class, TaskMethods, f"task.kind={kind}", needed)()
    return methods


def read_examples(
    config: TaskConfig,
    split: str = "train",
    *,
    labeled: bool = True,
    errors: str = "strict",
    sources: Sequence[str] | None = None,
) -> Examples:
    """Reads the examples of a split, in the order of the files.

    Args:
        config: settings of the task.
        split: "train", "eval" or "test".
        labeled: whether to read labels.
        errors: `data.encoding_errors`: "strict", or "replace" for invalid UTF-8.
        sources: other sources than those of the split.

    Raises:
        UserError: something cannot be read, or the files hold nothing; names file and line.
    """
    if sources is None:
        parsed = config.sources(split)
    else:
        parsed = tuple(parse_task_source(text, "the source") for text in sources)
    examples = task_methods(config.kind).read(ReadRequest(config, parsed, labeled, errors))
    if not len(examples):
        raise UserError(f"task.{split}: {', '.join(source.text for source in parsed)} holds no example")
    return examples


def require_files(config: TaskConfig) -> None:
    """Raises `UserError` if a file of `task.train`, `task.eval` or `task.test` is missing; reads none."""
    for split in ("train", "eval", "test"):
        for source in config.sources(split):
            source_files(source)


def make_features(
    config: TaskConfig, examples: Examples, tokenizer: Tokenizer, labels: Sequence[str] = (), training: bool = False
) -> TaskData:
    """Returns the features of examples.

    Args: as of `TaskMethods.make_features`.

    Raises:
        UserError: a label is unknown, or an example cannot be made to fit.
    """
    data: TaskData = task_methods(config.kind).make_features(config, examples, tokenizer, labels, training)
    return data


class Classification(TaskMethods):
    """Classes of texts or pairs of texts."""

    def count(self, batch: Batch, class_weights: np.ndarray) -> Array:
        return (label_weights(batch["class_labels"], class_weights) * batch["example_weights"]).sum()

    def loss(self, scores: Array, batch: Batch, class_weights: np.ndarray) -> dict[str, Sum]:
        return class_sums(scores, batch["class_labels"], batch["example_weights"], class_weights)

    def compute_metrics(
        self, config: TaskConfig, examples: Any, data: TextData, scores: np.ndarray, labels: tuple[str, ...]
    ) -> EvalResult:
        gold, probabilities = data.features.labels["class_labels"], softmax(_calibrated(config, scores))
        predicted = scores.argmax(axis=1)
        result = classification_scores(gold, predicted, labels, probabilities)
        reliable = reliability(probabilities.max(axis=1), predicted == gold)
        metrics = result.metrics() | {"calibration_error": reliable.error}
        return EvalResult(metrics, result.per_class, labels, result.confusion, reliability=reliable.bins)

    def tune(self, config: TaskConfig, data: TextData, scores: np.ndarray, labels: tuple[str, ...]) -> TaskKind:
        fitted = fit_temperature(scores, data.features.labels["class_labels"])
        return config.classification.replace(temperature=float(f"{fitted:.6g}"))

    def records(
        self, config: TaskConfig, scores: np.ndarray, labels: tuple[str, ...], top_k: int | None
    ) -> Iterator[dict[str, Any]]:
        yield from super().records(config, _calibrated(config, scores), labels, top_k)


def _calibrated(config: TaskConfig, scores: np.ndarray) -> np.ndarray:
    return scores / np.float64(config.classification.temperature)


class Regression(TaskMethods):
    """A number per text or pair of texts."""

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
        self, config: TaskConfig, scores: np.ndarray, labels: tuple[str, ...], top_k: int | None
    ) -> Iterator[dict[str, Any]]:
        yield from ({"score": float(str(np.float32(value)))} for value in scores[:, 0])


class TokenClassification(TaskMethods):
    """A label per word."""

    def read(self, request: ReadRequest) -> WordExamples:
        return read_words(request)

    def tokenizer(self, tokenizer: Tokenizer) -> Tokenizer:
        return tokenizer_of_words(tokenizer)

    def make_features(
        self, config: TaskConfig, examples: Any, tokenizer: Tokenizer, labels: Sequence[str], training: bool
    ) -> TokenData:
        return token_data(config, examples, tokenizer, labels, training)

    def count(self, batch: Batch, class_weights: np.ndarray) -> Array:
        return label_weights(batch["token_labels"], class_weights).sum()

    def loss(self, scores: Array, batch: Batch, class_weights: np.ndarray) -> dict[str, Sum]:
        labels = batch["token_labels"]
        return class_sums(scores, labels, (labels >= 0).astype(jnp.float32), class_weights)

    def compute_metrics(
        self, config: TaskConfig, examples: WordExamples, data: TokenData, scores: np.ndarray, labels: tuple[str, ...]
    ) -> EvalResult:
        assert examples.tags is not None
        predicted = data.predicted_tags(scores.argmax(axis=1))
        if recognize_scheme(data.labels, config.tokens.tag_scheme) != PLAIN_TAGS:
            entities = entity_scores(examples.tags, predicted)
            return EvalResult(entities.metrics(), entities.per_type)
        gold, result = ([tag for sentence in tags for tag in sentence] for tags in (examples.tags, predicted))
        plain = classification_scores(gold, result, data.labels)
        metrics = {"accuracy": plain.accuracy, "macro_f1": plain.macro_f1}
        return EvalResult(metrics, plain.per_class, data.labels, plain.confusion)


class QuestionAnswering(TaskMethods):
    """Questions that a span of a context answers."""

    def read(self, request: ReadRequest) -> QaExamples:
        return read_questions(request)

    def make_features(
        self, config: TaskConfig, examples: Any, tokenizer: Tokenizer, labels: Sequence[str], training: bool
    ) -> QaData:
        return qa_data(config, examples, tokenizer, labels, training)

    def loss(self, scores: Array, batch: Batch, class_weights: np.ndarray) -> dict[str, Sum]:
        """Sums the mean cross-entropy of start and end among the tokens of each window; `scores` [B, S, 2]."""
        weights = batch["example_weights"]
        examples = jnp.arange(1, weights.shape[1] + 1, dtype=jnp.int32)
        in_window = batch["segment_ids"][:, None, :] == examples[None, :, None]  # [B, E, S]
        losses, correct = [], []
        for side, name in enumerate(("start_labels", "end_labels")):
            of_window = jnp.where(in_window, scores[:, None, :, side], _LOWEST)
            of_label = jnp.take_along_axis(scores[..., side], batch[name], axis=1)
            losses.append(jax.nn.logsumexp(of_window, axis=-1) - of_label)
            correct.append(jnp.argmax(of_window, axis=-1) == batch[name])
        loss = jnp.where(weights > 0, (losses[0] + losses[1]) / 2.0, 0.0)  # an empty slot has no tokens
        count = weights.sum()
        return {
            "loss": Sum((loss * weights).sum(), count),
            "accuracy": Sum(((correct[0] & correct[1]) * weights).sum(), count),
        }

    def compute_metrics(
        self, config: TaskConfig, examples: QaExamples, data: QaData, scores: np.ndarray, labels: tuple[str, ...]
    ) -> EvalResult:
        assert data.examples.answers is not None
        predictions = select_answers(config, data, scores[:, 0], scores[:, 1])
        gold = {name: list(answer.texts) for name, answer in zip(data.examples.ids, data.examples.answers, strict=True)}
        result = {each.id: each.text for each in predictions}
        if not config.qa.allow_no_answer:
            return EvalResult(squad_scores(gold, result))
        differences = {each.id: each.null_score_diff or 0.0 for each in predictions}
        return EvalResult(squad_scores(gold, result, differences, version="2.0"))
