"""Kinds of tasks: how their examples are read, become features, and are scored."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from bertjax.config.sources import parse_task_source, source_files
from bertjax.config.task import PLAIN_TAGS, ClassificationConfig, QaConfig, RegressionConfig, TaskConfig, TokensConfig
from bertjax.data.tokenizer import Tokenizer
from bertjax.errors import UserError
from bertjax.finetuning.features import TextData, text_data
from bertjax.finetuning.metrics.classification import ClassScore, classification_scores
from bertjax.finetuning.metrics.entities import entity_scores
from bertjax.finetuning.metrics.regression import regression_scores
from bertjax.finetuning.metrics.squad import squad_scores
from bertjax.finetuning.qa_answers import select_answers
from bertjax.finetuning.qa_features import QaData, qa_data
from bertjax.finetuning.readers.examples import Examples, QaExamples, ReadRequest, WordExamples
from bertjax.finetuning.readers.squad import read_questions
from bertjax.finetuning.readers.text_classification import read_texts
from bertjax.finetuning.readers.token_classification import read_words
from bertjax.finetuning.tag_schemes import recognize_scheme
from bertjax.finetuning.token_features import TokenData, token_data

TaskData = TextData | TokenData | QaData
"""Features of a split, what maps predictions back to labels, words or answers, and remarks to print."""


class EvalResult(NamedTuple):
    """Metrics without prefix; for reports the scores per class and, for labels, the confusion matrix (rows gold)."""

    metrics: dict[str, float]
    per_class: Mapping[str, ClassScore] = {}
    labels: tuple[str, ...] = ()
    confusion: np.ndarray | None = None


@dataclasses.dataclass(frozen=True)
class TaskFunctions:
    """Functions of one kind of task.

    Attributes:
        read: request -> examples; see `read_examples`.
        make_features: (config, examples, tokenizer, labels, training) -> data; see `make_features`.
        compute_metrics: (config, examples, data, scores, labels) -> result; see `compute_metrics`.
    """

    read: Callable[..., Any]
    make_features: Callable[..., Any]
    compute_metrics: Callable[..., EvalResult]


def read_examples(
    config: TaskConfig,
    split: str = "train",
    *,
    labelled: bool = True,
    errors: str = "strict",
    sources: Sequence[str] | None = None,
) -> Examples:
    """Reads the examples of a split, in the order of the files.

    Args:
        config: settings of the task.
        split: "train" or "eval".
        labelled: whether to read labels.
        errors: `data.encoding_errors`: "strict", or "replace" for invalid UTF-8.
        sources: other sources than those of the split.

    Raises:
        UserError: something cannot be read, or the files hold nothing; names file and line.
    """
    if sources is None:
        parsed = config.sources(split)
    else:
        parsed = tuple(parse_task_source(text, "the source") for text in sources)
    examples: Examples = TASKS[config.kind].read(ReadRequest(config, parsed, labelled, errors))
    if not len(examples):
        raise UserError(f"task.{split}: {', '.join(source.text for source in parsed)} holds no example")
    return examples


def require_files(config: TaskConfig) -> None:
    """Raises `UserError` if a file of `task.train` or `task.eval` is missing; reads none."""
    for split in ("train", "eval"):
        for source in config.sources(split):
            source_files(source)


def make_features(
    config: TaskConfig, examples: Examples, tokenizer: Tokenizer, labels: Sequence[str] = (), training: bool = False
) -> TaskData:
    """Returns the features of examples.

    Args:
        config: settings of the task.
        examples: result of `read_examples`.
        tokenizer: the tokenizer of the model.
        labels: names of the labels, those that `collect_labels` returns for the training data.
        training: whether the features are trained on: pairs may be swapped, unusable questions are left out.

    Raises:
        UserError: a label is unknown, or an example cannot be made to fit.
    """
    data: TaskData = TASKS[config.kind].make_features(config, examples, tokenizer, labels, training)
    return data


def compute_metrics(
    config: TaskConfig, examples: Examples, data: TaskData, scores: np.ndarray, labels: tuple[str, ...]
) -> EvalResult:
    """Scores the predictions for labelled examples as the benchmarks of their kind do.

    Args:
        config: settings of the task.
        examples: the examples with their labels.
        data: their features.
        scores: outputs of the head: [n, K] per window, or [total, K] per token of the features.
        labels: names of the K labels.
    """
    return TASKS[config.kind].compute_metrics(config, examples, data, scores, labels)


def softmax(scores: np.ndarray) -> np.ndarray:
    """Returns the softmax over the last axis, in float64."""
    powers = np.exp(scores.astype(np.float64) - scores.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def _score_numbers(
    config: TaskConfig, examples: Examples, data: TextData, scores: np.ndarray, labels: tuple[str, ...]
) -> EvalResult:
    return EvalResult(regression_scores(data.features.labels["score_labels"], scores[:, 0]).metrics())


def _score_classes(
    config: TaskConfig, examples: Examples, data: TextData, scores: np.ndarray, labels: tuple[str, ...]
) -> EvalResult:
    gold = data.features.labels["class_labels"]
    result = classification_scores(gold, scores.argmax(axis=1), labels, softmax(scores))
    return EvalResult(result.metrics(), result.per_class, labels, result.confusion)


def _score_words(
    config: TaskConfig, examples: WordExamples, data: TokenData, scores: np.ndarray, labels: tuple[str, ...]
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


def _score_answers(
    config: TaskConfig, examples: QaExamples, data: QaData, scores: np.ndarray, labels: tuple[str, ...]
) -> EvalResult:
    assert data.examples.answers is not None
    predictions = select_answers(config, data, scores[:, 0], scores[:, 1])
    gold = {name: list(answer.texts) for name, answer in zip(data.examples.ids, data.examples.answers, strict=True)}
    result = {each.id: each.text for each in predictions}
    if not config.qa.allow_no_answer:
        return EvalResult(squad_scores(gold, result).metrics())
    differences = {each.id: each.null_score_diff or 0.0 for each in predictions}
    return EvalResult(squad_scores(gold, result, differences, version="2.0").metrics())


TASKS: dict[str, TaskFunctions] = {
    ClassificationConfig.name: TaskFunctions(read_texts, text_data, _score_classes),
    RegressionConfig.name: TaskFunctions(read_texts, text_data, _score_numbers),
    TokensConfig.name: TaskFunctions(read_words, token_data, _score_words),
    QaConfig.name: TaskFunctions(read_questions, qa_data, _score_answers),
}
