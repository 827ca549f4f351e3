"""Callbacks: what `pretrain` and `finetune` call while they train."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bertjax.config.task import TaskConfig
from bertjax.data.tokenizer import Tokenizer
from bertjax.experiment.build import Experiment
from bertjax.tasks.evaluate import EvalResult
from bertjax.training import loop
from bertjax.training.run_context import RunContext
from bertjax.training.state import TrainState
from bertjax.types import Params


class TrainingStart(NamedTuple):
    """The run that is about to train from `step` on, as callbacks see it."""

    experiment: Experiment
    run: RunContext
    step: int
    tokenizer: Tokenizer
    token_counts: np.ndarray  # int [V]: occurrences in the training text
    task: TaskConfig | None = None
    mean_batch_size: float | None = None  # sequences per batch, where it varies


class Callback:
    """Base class whose methods do nothing."""

    def on_train_begin(self, start: TrainingStart) -> None:
        """Called before the first step; not called for a finished run."""

    def on_evaluate(self, step: int, params: Params, metrics: Mapping[str, float]) -> None:
        """Called after every evaluation.

        Args:
            step: step that was evaluated.
            params: parameters that were evaluated.
            metrics: their metrics, which metrics.jsonl holds already.
        """

    def on_task_scores(self, scores: EvalResult) -> None:
        """Called with the detailed scores of a task, just before the `on_evaluate` of the same evaluation."""

    def on_train_end(self) -> None:
        """Called after the last step, also when training fails."""

    def on_best_params(self, workdir: Path, step: int, best_step: int) -> None:
        """Called when the parameters to export, which are not the last ones, have been scored.

        Args:
            workdir: work directory of the run.
            step: last step of the run.
            best_step: step of the parameters to export.
        """

    def on_test_scores(self, workdir: Path) -> None:
        """Called when the examples of `task.test` have been scored, and metrics.jsonl of `workdir` holds the scores."""


def train(run: RunContext, state: TrainState, callback: Callback) -> tuple[TrainState, dict[str, float]]:
    """Trains a run with a callback, and closes console and writers.

    Args:
        run: Inputs of the loop.
        state: State to start or resume from.
        callback: Called after every evaluation and at the end.

    Returns:
        The last state and its held-out metrics.
    """
    run.on_evaluate = callback.on_evaluate
    try:
        return loop.train(run, state)
    finally:
        run.console.close()
        for writer in run.writers:
            writer.close()
        callback.on_train_end()
