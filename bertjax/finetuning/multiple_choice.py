"""Multiple choice: every choice is a window with the context, and the scores of an example's choices compete."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from bertjax.config.task import TaskConfig
from bertjax.data.tokenizer import Tokenizer
from bertjax.finetuning.evaluate import ForwardPass, HeadEvaluator
from bertjax.finetuning.features import TextData, text_data
from bertjax.finetuning.methods import EvalResult, TaskMethods, rounded, softmax
from bertjax.finetuning.readers.examples import ChoiceExamples, ReadRequest, TextExamples
from bertjax.finetuning.readers.multiple_choice import read_choices
from bertjax.types import Batch, Params, Sum

NOT_A_CHOICE = -1
"""Label of a window that only fills up an example with fewer choices than others."""
_LOWEST = float(np.finfo(np.float32).min)


@dataclasses.dataclass(frozen=True, eq=False)
class ChoiceData(TextData):
    """Features of choices: `group` windows per example, of which the first `counts[i]` are the choices of example i."""

    counts: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0, np.int64))

    def by_example(self, scores: np.ndarray) -> np.ndarray:
        """Returns the scores of windows [n, 1] by example [n / group, group], that of no choice -inf."""
        rows = scores.reshape(-1, self.features.group).astype(np.float64)
        return np.where(np.arange(self.features.group) < self.counts[:, None], rows, -np.inf)


class MultipleChoiceTask(TaskMethods):
    """The right one of several choices."""

    def read(self, request: ReadRequest) -> ChoiceExamples:
        return read_choices(request)

    def make_features(
        self, config: TaskConfig, examples: Any, tokenizer: Tokenizer, labels: Sequence[str], training: bool
    ) -> ChoiceData:
        counts = np.array([len(each) for each in examples.choices])
        width = int(counts.max(initial=0))
        pairs = TextExamples(*_windows(examples, width), None, None, *_repeated(examples, width), examples.notes)
        data = text_data(config, pairs, tokenizer, (), training)
        number = np.repeat(np.arange(len(examples), dtype=np.int32), width)
        arrays: dict[str, np.ndarray] = {}
        if examples.answers is not None:
            choice = np.tile(np.arange(width), len(examples))
            right = (choice == np.repeat(examples.answers, width)).astype(np.int32)
            is_choice = choice < np.repeat(counts, width)
            arrays = {
                "choice_labels": np.where(is_choice, right, NOT_A_CHOICE).astype(np.int32),
                "choice_groups": number,
            }
        features = dataclasses.replace(data.features, example=number, labels=arrays, group=width)
        return ChoiceData(features, data.notes, data.num_truncated, counts)

    def count(self, batch: Batch, class_weights: np.ndarray) -> Array:
        return ((batch["choice_labels"] == 1) * batch["example_weights"]).sum()

    def loss(self, scores: Array, batch: Batch, class_weights: np.ndarray) -> dict[str, Sum]:
        """Sums the cross-entropy of the choices of every example, which may lie in several sequences of the batch.

        Of equal scores that of the first choice counts as predicted.
        """
        labels, groups, windows = (
            batch[name].reshape(-1) for name in ("choice_labels", "choice_groups", "example_ids")
        )
        values, is_window = scores.reshape(-1).astype(jnp.float32), batch["example_weights"].reshape(-1) > 0
        is_choice = is_window & (labels != NOT_A_CHOICE)
        rivals = (groups[:, None] == groups[None, :]) & is_choice[None, :]
        losses = jax.nn.logsumexp(jnp.where(rivals, values[None, :], _LOWEST), axis=1) - values
        earlier = windows[None, :] < windows[:, None]
        better = (values[None, :] > values[:, None]) | ((values[None, :] == values[:, None]) & earlier)
        is_best = ~(rivals & better).any(axis=1)
        is_right = is_choice & (labels == 1)
        count = is_right.sum().astype(jnp.float32)
        return {
            "loss": Sum(jnp.where(is_right, losses, 0.0).sum(), count),
            "accuracy": Sum((is_right & is_best).sum().astype(jnp.float32), count),
        }

    def compute_metrics(
        self, config: TaskConfig, examples: Any, data: Any, scores: np.ndarray, labels: tuple[str, ...]
    ) -> EvalResult:
        predicted = data.by_example(scores).argmax(axis=1)
        return EvalResult({"accuracy": float((predicted == np.array(examples.answers)).mean())})


class ChoiceEvaluator(HeadEvaluator):
    """Held-out loss and metrics; windows of an example may come in several batches, so both follow from all scores."""

    @functools.cached_property
    def _forward(self) -> ForwardPass:
        return ForwardPass(self.objective, self.mesh, labeled=False)

    def __call__(self, params: Params, frozen: Any) -> dict[str, float]:
        scores = self._forward(params, self.batches).scores
        result = self._result(scores)
        self.on_result(result)
        data: Any = self.data
        answers = np.array(self.examples.answers)  # type: ignore[union-attr]
        rows = data.by_example(scores)
        of_right = softmax(rows)[np.arange(len(rows)), answers]
        loss = -np.log(np.maximum(of_right, np.finfo(np.float64).tiny))
        return self._named({self.config.spec.name: Sum(float(loss.sum()), float(len(loss)))}, result)


def choice_records(examples: ChoiceExamples, data: ChoiceData, scores: np.ndarray) -> Iterator[dict[str, Any]]:
    """Yields the predicted choice of every example, and the probabilities of all.

    Args:
        examples: the examples.
        data: their features.
        scores: outputs of the head [windows, 1].
    """
    rows = data.by_example(scores)
    for choices, probabilities in zip(examples.choices, softmax(rows), strict=True):
        best = int(probabilities.argmax())
        shown = [rounded(each) for each in probabilities[: len(choices)]]
        yield {"choice": best, "text": choices[best], "score": shown[best], "probabilities": shown}


def _windows(examples: ChoiceExamples, width: int) -> tuple[list[str], list[str]]:
    """Returns the first and second texts of all windows; an example is filled up with its first choice."""
    firsts, seconds = list[str](), list[str]()
    for index, choices in enumerate(examples.choices):
        question = "" if examples.questions is None else examples.questions[index].strip()
        filled = [*choices, *[choices[0]] * (width - len(choices))]
        firsts += [examples.contexts[index]] * width
        seconds += [f"{question} {choice}".strip() for choice in filled]
    return firsts, seconds


def _repeated(examples: ChoiceExamples, width: int) -> tuple[list[str], list[str]]:
    lists = (examples.ids, examples.locations)
    ids, locations = ([value for value in values for _ in range(width)] for values in lists)
    return ids, locations
