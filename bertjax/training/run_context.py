"""Everything that the training loop works with: made by `experiment.build`, replaced by small fakes in tests."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import optax
from jax.sharding import Mesh

from bertjax.checkpoint.manager import Checkpoints
from bertjax.config.phases import Phase
from bertjax.errors import UserError
from bertjax.metrics import Metrics
from bertjax.objectives.base import Objective
from bertjax.runtime.process_group import SINGLE_PROCESS, ProcessGroup
from bertjax.training.logging import Console, MetricWriter
from bertjax.training.settings import LoopSettings
from bertjax.training.state import TrainState
from bertjax.types import Params


class Batches(Protocol):
    """Training data: the sequences in an epoch of every source, and the batches of a range of cursors."""

    @property
    def sequences_per_epoch(self) -> Mapping[str, int]:
        """Returns the number of sequences in an epoch of every source."""

    def prefetch(self, start_cursor: int, stop_cursor: int) -> Any:
        """Returns an iterator of (cursor, batch) that reads ahead: a context manager that ends its thread."""


@dataclasses.dataclass(frozen=True)
class PhaseProgram:
    """The jitted steps of one phase of a run."""

    phase: Phase
    objective: Objective
    train_step: Any
    train_steps: Any = None  # `train_step` over several batches, metrics with a leading axis; None = one per dispatch
    eval_step: Any = None
    evaluate: Callable[[Params, Any], Mapping[str, float]] = lambda params, frozen: {}  # held-out metrics, `eval/...`
    flops_per_token: Callable[[float], float] = lambda filled: 0.0  # of the share of positions that hold real tokens
    title: str = ""  # its batches in words


@dataclasses.dataclass
class RunContext:
    """Inputs of `loop.train`, in addition to the train state."""

    config: LoopSettings
    programs: list[PhaseProgram]  # in the order of their phases, the first of which starts at batch 0
    frozen: Any  # weights that the objective reads and the optimizer does not update
    schedule: optax.Schedule
    mesh: Mesh
    batches: Batches
    checkpoints: Checkpoints
    meta: dict[str, Any]  # stored with every checkpoint
    writers: list[MetricWriter]
    console: Console
    workdir: Path
    peak_flops: float | None  # FLOP/s of all devices of the mesh
    eval_params: Callable[[TrainState], Params] = operator.attrgetter("params")  # the weights to evaluate
    restored_meta: Mapping[str, Any] | None = None  # meta of the checkpoint to resume from; None = a new run
    processes: ProcessGroup = SINGLE_PROCESS
    on_evaluate: Callable[[int, Params, Metrics], None] = lambda step, params, metrics: None
    stop_step: int | None = None  # the loop saves and ends there, although the run is longer; None = at its end

    @property
    def last_step(self) -> int:
        """The step at which the loop ends."""
        steps = self.config.train.num_steps
        return steps if self.stop_step is None else min(steps, self.stop_step)

    def program_at(self, cursor: int) -> PhaseProgram:
        """Returns the program of batch `cursor`."""
        return next(program for program in reversed(self.programs) if program.phase.start <= cursor)

    def write(self, step: int, metrics: Metrics) -> None:
        """Sends metrics to all writers.

        Raises:
            UserError: The disk is full or cannot be written to.
        """
        try:
            for writer in self.writers:
                writer.write(step, metrics)
        except OSError as error:
            raise UserError(
                f"the metrics of step {step} could not be written to {self.workdir}: {error.strerror}; "
                f"{self.checkpoints.remaining()}"
            ) from error
