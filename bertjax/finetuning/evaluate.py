"""Held-out scores of a task: one pass over all windows, and from what the head says the figures of the field."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from bertjax.config.task import TaskConfig
from bertjax.finetuning.batches import EvalBatches, scatter_token_values, scatter_window_values
from bertjax.finetuning.features import TextData
from bertjax.finetuning.metrics.classification import ClassScore, classification_scores
from bertjax.finetuning.metrics.entities import are_entity_tags, entity_scores
from bertjax.finetuning.metrics.regression import regression_scores
from bertjax.finetuning.metrics.squad import squad_scores
from bertjax.finetuning.objective import TaskObjective
from bertjax.finetuning.qa_answers import PredictedAnswer, select_answers
from bertjax.finetuning.qa_features import QaData
from bertjax.finetuning.readers.examples import Examples, QaExamples, WordExamples
from bertjax.finetuning.tasks import TaskData
from bertjax.finetuning.token_features import TokenData
from bertjax.metrics import add_sums, mean_metrics
from bertjax.training.sharding import put_batch
from bertjax.types import Batch, Params, Sum

_PLACES = ("example_numbers", "segment_ids", "position_ids")


class HeadOutputs(NamedTuple):
    """What a head says of every window, and the sums of its loss where there are labels.

    `scores` float32: of texts [n, K], of words and questions [total, K], one row a token of the features.
    """

    scores: np.ndarray
    sums: dict[str, Sum]


class EvalResult(NamedTuple):
    """Figures without prefix; for a report the per-class table and, of texts, the confusion matrix (rows gold)."""

    metrics: dict[str, float]
    per_class: Mapping[str, ClassScore]
    labels: tuple[str, ...]
    confusion: np.ndarray | None


class ForwardPass:
    """A compiled forward pass over windows; `labelled` batches also give the sums of the loss."""

    def __init__(self, objective: TaskObjective, mesh: Mesh, labelled: bool = True):
        self.objective, self.mesh = objective, mesh

        def step(params: Params, batch: Batch) -> tuple[Any, dict[str, Sum], dict[str, Any]]:
            scores = objective.scores(params, batch)
            return scores, objective.sums(scores, batch) if labelled else {}, {name: batch[name] for name in _PLACES}

        # every process gets all scores, and with them which windows they are of
        self._step = jax.jit(step, out_shardings=NamedSharding(mesh, PartitionSpec()))

    def __call__(self, params: Params, batches: EvalBatches) -> HeadOutputs:
        features, kind = batches.features, self.objective.config.kind
        by_token = kind in ("tokens", "qa")
        width = 2 if kind == "qa" else self.objective.model.num_labels
        scores = np.zeros((len(features.tokens) if by_token else len(features), width), np.float32)
        pending = [self._step(params, put_batch(batch, self.mesh)) for batch in batches]
        sums = []
        for said, own, places in map(jax.device_get, pending):
            if by_token:
                scatter_token_values(features, places, said, scores)
            else:
                scatter_window_values(places, said, scores)
            sums.append(own)
        return HeadOutputs(scores, add_sums(sums))


def make_evaluator(
    config: TaskConfig,
    objective: TaskObjective,
    mesh: Mesh,
    examples: Examples,
    data: TaskData,
    batches: EvalBatches,
    tell: Callable[[EvalResult], None] = lambda scored: None,
) -> Callable[[Params, Any], dict[str, float]]:
    """`eval/...` as a function of the parameters; `tell` gets what a report shows beside the figures."""
    forward = ForwardPass(objective, mesh)
    doubled = (f"{config.kind}_accuracy", "micro_f1", "log_loss")  # the accuracy, twice, and the loss

    def metrics(params: Params, frozen: Any) -> dict[str, float]:
        said = forward(params, batches)
        scored = score(config, examples, data, said.scores, objective.model.labels)
        tell(scored)
        found = mean_metrics(said.sums, objective.loss_weights) | scored.metrics
        return {f"eval/{name}": value for name, value in found.items() if name not in doubled}

    return metrics


def score(
    config: TaskConfig, examples: Examples, data: TaskData, scores: np.ndarray, labels: tuple[str, ...]
) -> EvalResult:
    """The figures of a split with labels, as the benchmark of its kind counts them."""
    if isinstance(data, TokenData):
        return _score_words(_words(examples), data, scores)
    if isinstance(data, QaData):
        return _score_answers(config, data, scores)
    return _score_texts(config, data, scores, labels)


def _words(examples: Examples) -> WordExamples:
    assert isinstance(examples, WordExamples)
    return examples


def _score_texts(config: TaskConfig, data: TextData, scores: np.ndarray, labels: tuple[str, ...]) -> EvalResult:
    if config.kind == "regression":
        found = regression_scores(data.features.labels["score_labels"], scores[:, 0])
        return EvalResult(found.metrics(), {}, (), None)
    gold = data.features.labels["class_labels"]
    of = classification_scores(gold, scores.argmax(axis=1), labels, probabilities(scores))
    return EvalResult(of.metrics(), of.per_class, labels, of.confusion)


def _score_words(examples: WordExamples, data: TokenData, scores: np.ndarray) -> EvalResult:
    assert examples.tags is not None
    predicted = data.predicted_tags(scores.argmax(axis=1))
    if are_entity_tags(data.labels):
        entities = entity_scores(examples.tags, predicted)
        return EvalResult(entities.metrics(), entities.per_type, (), None)
    gold, found = ([tag for sentence in side for tag in sentence] for side in (examples.tags, predicted))
    plain = classification_scores(gold, found, data.labels)
    metrics = {"accuracy": plain.accuracy, "f1": plain.micro_f1, "macro_f1": plain.macro_f1}
    return EvalResult(metrics, plain.per_class, data.labels, plain.confusion)


def _score_answers(config: TaskConfig, data: QaData, scores: np.ndarray) -> EvalResult:
    examples: QaExamples = data.examples
    assert examples.answers is not None
    answers = select_answers(config, data, scores[:, 0], scores[:, 1])
    gold = {name: list(answer.texts) for name, answer in zip(examples.ids, examples.answers, strict=True)}
    found = {answer.id: answer.text for answer in answers}
    margins = _margins(answers) if config.qa.allow_no_answer else None
    scored = squad_scores(gold, found, margins, version="2.0" if config.qa.allow_no_answer else "1.1")
    return EvalResult(scored.metrics(), {}, (), None)


def _margins(answers: list[PredictedAnswer]) -> dict[str, float]:
    return {answer.id: 0.0 if answer.null_score_diff is None else answer.null_score_diff for answer in answers}


def probabilities(scores: np.ndarray) -> np.ndarray:
    """Softmax over the last axis, in float64."""
    shifted = scores.astype(np.float64) - scores.max(axis=-1, keepdims=True)
    powers = np.exp(shifted)
    return powers / powers.sum(axis=-1, keepdims=True)
