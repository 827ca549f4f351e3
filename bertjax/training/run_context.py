"""Everything that the loop works with: handed in by `build`, replaced by small fakes in tests."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import optax
from jax.sharding import Mesh

from bertjax.config.training import LoopConfig
from bertjax.errors import UserError
from bertjax.objectives.base import Objective
from bertjax.training.logging import Console, Figures, Writer
from bertjax.training.state import TrainState
from bertjax.types import Params


class Batches(Protocol):
    """The training rows: how many an epoch of every source has, and the batches of a range of cursors."""

    @property
    def rows_per_epoch(self) -> Mapping[str, int]: ...

    def prefetch(self, start_cursor: int, stop_cursor: int) -> Any: ...


class Processes(Protocol):
    """What the loop needs of the others that train the same model."""

    def agree(self, stop: int, save: bool) -> tuple[int, bool]: ...


class Alone:
    """There are no others."""

    def agree(self, stop: int, save: bool) -> tuple[int, bool]:
        return stop, save


class Checkpoints(Protocol):
    """What the loop needs of a checkpoint manager; `all_steps` and what follows it only to go back to one."""

    def save(self, step: int, state: Any, meta: dict, metrics: Mapping[str, float] | None = None) -> None: ...

    def wait(self) -> None: ...

    def all_steps(self) -> list[int]: ...

    def restore(self, abstract_state: Any, step: int | None, absent: Mapping[str, Any]) -> Any: ...

    def delete_after(self, step: int) -> None: ...


def no_portions(*_: Any) -> Any:
    raise AssertionError("train.steps_per_dispatch is more than 1, and nothing was compiled for it")


def nobody(*_: Any) -> None:
    """Looks on, and does nothing."""


@dataclasses.dataclass(frozen=True)
class Stage:
    """The batches from cursor `start` on that share a compiled step: rows of one size, hidden in one way."""

    start: int
    objective: Objective
    train_step: Callable
    measure: Callable[[Params, Any], Mapping[str, float]]  # `eval/...` of these parameters and of what is frozen
    flops_per_token: Callable[[float], float]  # of the share of the rows' places that hold real tokens
    title: str = ""  # what the console says when it begins
    train_steps: Callable = no_portions  # `train_step` of several batches, its figures with a leading axis


@dataclasses.dataclass
class Run:
    """Everything the loop works with, made by `build`."""

    config: LoopConfig
    stages: list[Stage]  # by their start, the first at 0
    frozen: Any  # what objectives read and nobody trains
    schedule: optax.Schedule
    mesh: Mesh
    batches: Batches
    checkpoints: Checkpoints
    meta: dict[str, Any]
    writers: list[Writer]
    console: Console
    workdir: Path
    peak_flops: float | None  # of all devices of the mesh
    chosen_params: Callable[[TrainState], Params] = operator.attrgetter("params")  # those to evaluate
    past: Mapping[str, Any] | None = None  # the meta of the checkpoint that the state is from; None = the run begins
    processes: Processes = dataclasses.field(default_factory=Alone)
    watch: Callable[[int, Params, Figures], None] = nobody  # is told of every evaluation: step, weights, figures

    def stage_of(self, cursor: int) -> Stage:
        return next(stage for stage in reversed(self.stages) if stage.start <= cursor)

    def write(self, step: int, figures: Figures) -> None:
        """To all writers; raises `UserError` when the disk takes no more."""
        try:
            for writer in self.writers:
                writer.write(step, figures)
        except OSError as error:
            raise UserError(
                f"the figures of step {step} could not be written to {self.workdir}: {error.strerror}; checkpoints are "
                "intact, the same command resumes"
            ) from error
