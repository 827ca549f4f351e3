"""Evaluation of a task: one forward pass over all windows, and the metrics of the head's outputs."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from bertjax.config.model import float32_config
from bertjax.config.task import TaskConfig
from bertjax.data.tokenizer import Tokenizer
from bertjax.metrics import add_sums, mean_metrics
from bertjax.tasks.batch_layout import scatter_token_values, scatter_window_values
from bertjax.tasks.batches import EvalBatches, InferenceBatches
from bertjax.tasks.features import TextData
from bertjax.tasks.metrics.classification import ClassScore
from bertjax.tasks.metrics.multilabel import LabelScore
from bertjax.tasks.objective import TaskObjective
from bertjax.tasks.qa_features import QaData
from bertjax.tasks.readers.examples import Examples
from bertjax.tasks.token_features import TokenData
from bertjax.training.sharding import put_batch
from bertjax.types import Batch, Params, Sum

TaskData = TextData | TokenData | QaData
"""Features of a split, what maps predictions back to labels, words or answers, and remarks to print."""
_POSITIONS = ("example_numbers", "segment_ids", "position_ids")


class EvalResult(NamedTuple):
    """Metrics without prefix; for reports the scores per class and, for labels, the confusion matrix (rows gold).

    Of generated texts there are `samples` {source, target, output}, and `signatures`, how metrics were computed; of
    decisions `reliability`, (mean confidence, accuracy, number of predictions) by bins of confidence.
    """

    metrics: dict[str, float]
    per_class: Mapping[str, ClassScore | LabelScore] = {}
    labels: tuple[str, ...] = ()
    confusion: np.ndarray | None = None
    samples: tuple[dict[str, str], ...] = ()
    signatures: Mapping[str, str] = {}
    reliability: tuple[tuple[float, float, int], ...] = ()


class HeadOutputs(NamedTuple):
    """Outputs of the head for every window, and the sums of its loss if there are labels.

    `scores` is float32 [n, K] for texts, and [total, K], one row per token of the features, for words and questions.
    """

    scores: np.ndarray
    sums: dict[str, Sum]


class ForwardPass:
    """A compiled forward pass over windows in float32, as an export is read, whatever the dtype of training.

    Args:
        objective: the task.
        mesh: devices of the batches.
        labeled: whether the batches have labels, so that the sums of the loss can be computed.
        outputs: computes the outputs of the head of a batch instead of the model.
    """

    def __init__(
        self,
        objective: TaskObjective,
        mesh: Mesh,
        labeled: bool = True,
        outputs: Callable[[Batch], np.ndarray] | None = None,
    ):
        padded = objective.model.padded_vocab_size
        exact = dataclasses.replace(float32_config(objective.model), padded_vocab_size=padded)
        objective = objective.build({"model": exact}, objective.vocabulary)
        self.objective, self.mesh = objective, mesh

        def step(params: Params, batch: Batch) -> tuple[Any, dict[str, Sum], dict[str, Any]]:
            scores = objective.scores(params, batch)
            sums = objective.sums(scores, batch) if labeled else {}
            return scores, sums, {name: batch[name] for name in _POSITIONS}

        if outputs is not None:
            self._step: Any = lambda _, batch: (outputs(batch), {}, {name: batch[name] for name in _POSITIONS})
            return
        # Replicated: every process gets all scores, and the positions that they belong to.
        self._step = jax.jit(step, out_shardings=NamedSharding(mesh, PartitionSpec()))

    def __call__(self, params: Params, batches: EvalBatches | InferenceBatches) -> HeadOutputs:
        """Returns the outputs for all windows of `batches`."""
        features, spec = batches.features, self.objective.spec
        num_rows = len(features.tokens) if spec.per_token else len(features)
        scores = np.zeros((num_rows, self.objective.num_outputs), np.float32)
        with jax.default_matmul_precision("float32"):
            pending = [self._step(params, put_batch(batch, self.mesh)) for batch in batches]
        sums = []
        for outputs, batch_sums, positions in map(jax.device_get, pending):
            if spec.per_token:
                scatter_token_values(features, positions, outputs, scores)
            else:
                scatter_window_values(positions, outputs, scores)
            sums.append(batch_sums)
        return HeadOutputs(scores, add_sums(sums))


class Evaluator:
    """Held-out metrics of a task; a kind of task names its subclass.

    Args:
        config: settings of the task.
        objective: the task as an objective.
        mesh: devices of the batches.
        tokenizer: tokenizer of the model.
        examples: the held-out examples.
        data: their features.
        batches: their batches.
        on_result: called with every result, for reports.
    """

    def __init__(
        self,
        config: TaskConfig,
        objective: Any,
        mesh: Mesh,
        tokenizer: Tokenizer,
        examples: Examples,
        data: TaskData,
        batches: EvalBatches,
        on_result: Callable[[EvalResult], None] = lambda result: None,
    ) -> None:
        self.config, self.objective, self.mesh, self.tokenizer = config, objective, mesh, tokenizer
        self.examples, self.data, self.batches, self.on_result = examples, data, batches, on_result

    def __call__(self, params: Params, frozen: Any) -> dict[str, float]:
        """Returns the metrics `eval/...` of parameters, which lie on the mesh."""
        raise NotImplementedError

    def names(self) -> list[str]:
        """Returns the names of the metrics; runs no model."""
        raise NotImplementedError


class Tuner:
    """Evaluation after the settings that `TaskKind.tune` chooses for the weights at hand.

    Args:
        config: settings of the task.
        objective: the task as an objective.
        mesh: devices of the batches.
        data: features of the examples to tune on.
        batches: their batches.
        evaluate: computes the held-out metrics of parameters and frozen weights: an `Evaluator`, or another function.

    Attributes:
        config: Settings with those that were tuned last.
    """

    def __init__(
        self,
        config: TaskConfig,
        objective: Any,
        mesh: Mesh,
        data: TaskData,
        batches: EvalBatches,
        evaluate: Callable[[Params, Any], Mapping[str, float]],
    ) -> None:
        self.config, self._labels, self._data, self._batches = config, objective.model.labels, data, batches
        self._forward, self._evaluate = ForwardPass(objective, mesh, labeled=False), evaluate

    def __call__(self, params: Params, frozen: Any) -> Mapping[str, float]:
        """Tunes, and returns the held-out metrics of the parameters with the result."""
        scores = self._forward(params, self._batches).scores
        tuned = self.config.spec.tune(self.config, self._data, scores, self._labels)
        self.config = self.config.replace(spec=tuned)
        if isinstance(self._evaluate, Evaluator):
            self._evaluate.config = self._evaluate.config.replace(spec=tuned)
        return self._evaluate(params, frozen)


class HeadEvaluator(Evaluator):
    """Metrics of the outputs of a head."""

    def __call__(self, params: Params, frozen: Any) -> dict[str, float]:
        outputs = self._forward(params, self.batches)
        result = self._result(outputs.scores)
        self.on_result(result)
        return self._named(outputs.sums, result)

    @functools.cached_property
    def _forward(self) -> ForwardPass:
        return ForwardPass(self.objective, self.mesh)

    def names(self) -> list[str]:
        features = self.data.features
        num_rows = len(features.tokens) if self.config.spec.per_token else len(features)
        scores = np.zeros((num_rows, self.objective.num_outputs), np.float32)
        return list(self._named(dict.fromkeys(self.objective.loss_weights, Sum(0.0, 1.0)), self._result(scores)))

    def _result(self, scores: np.ndarray) -> EvalResult:
        result: EvalResult = self.config.spec.compute_metrics(
            self.config, self.examples, self.data, scores, self.objective.model.labels
        )
        return result

    def _named(self, sums: Mapping[str, Sum], result: EvalResult) -> dict[str, float]:
        redundant = (f"{self.config.spec.name}_accuracy", "log_loss")  # equal to the accuracy and to the loss
        metrics = mean_metrics(sums, self.objective.loss_weights) | result.metrics
        return {f"eval/{name}": value for name, value in metrics.items() if name not in redundant}
