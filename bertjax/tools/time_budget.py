"""Pretraining for a given time: the length of the run is decided once more when a tenth of it has been measured.

The decision is made at one step and stored in the work directory before the run goes on. From there on it is a run like
any other, of so many steps: it resumes to the same weights.
"""

from __future__ import annotations

import copy
import dataclasses
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

from ml_collections import ConfigDict

from bertjax.config import inputs
from bertjax.config.overrides import set_values
from bertjax.config.phases import list_phases, phase_before
from bertjax.errors import UserError, named
from bertjax.experiment.callbacks import Callback, TrainingStart
from bertjax.experiment.pretrain import pretrain
from bertjax.hf.safe_files import read_json
from bertjax.io import atomic
from bertjax.runtime.process_group import ProcessGroup
from bertjax.tasks.evaluate import EvalResult
from bertjax.tools.measured_step import EVALUATION_SHARE, MeasuredStep
from bertjax.tools.run_length import Cost, steps_in
from bertjax.types import Params

FILE = "budget.json"
MIN_EVALUATIONS, MAX_EVALUATIONS = 4, 20
"""Evaluations and checkpoints of a run; the length is decided at the second."""
_SHARE = 0.05  # of the time, for all evaluations
_FORWARD_SPEED = 3.0  # tokens per second of an evaluation by those of a step
_EXPORT_SECONDS = 5.0


@dataclasses.dataclass(frozen=True)
class TimeBudget:
    """The contents of budget.json in a work directory.

    Attributes:
        minutes: minutes of training, from the first step to the export.
        config: name of the config, such as bertjax:micro; its argument may have been planned.
        changes: planned values by dotted key.
        num_steps: steps by the measurement before the run.
        warmup_steps: steps of the warm-up, which stay as they are unless the run is shorter.
        interval: steps between two evaluations, at each of which a checkpoint is saved.
        last_slot_seconds: seconds per slot of a batch of the last phase and its share of the evaluations, by the
            measurement before the run.
        seconds: seconds since the first step at the evaluations so far, by step.
        decided: steps of the run, None until they are decided.
    """

    minutes: float
    config: str | None
    changes: Mapping[str, Any]
    num_steps: int
    warmup_steps: int
    interval: int
    last_slot_seconds: float | None = None
    seconds: Mapping[str, float] = dataclasses.field(default_factory=dict)
    decided: int | None = None

    @classmethod
    def read(cls, workdir: Path) -> Self | None:
        """Returns the budget of a run; None if it has none."""
        return cls(**read_json(workdir, FILE)) if (workdir / FILE).exists() else None

    def write(self, workdir: Path) -> None:
        """Writes budget.json."""
        atomic.write_json(workdir / FILE, dataclasses.asdict(self), indent=2)

    @property
    def decision_step(self) -> int:
        """The step at which the length is decided."""
        return min(2 * self.interval, self.num_steps)

    def configure(self, cfg: ConfigDict) -> ConfigDict:
        """Returns the config of the run, as long as it is known to be."""
        num_steps = self.num_steps if self.decided is None else self.decided
        values = {
            "train.num_steps": num_steps,
            "schedule.warmup_steps": min(self.warmup_steps, num_steps),
            "eval.interval_steps": self.interval,
            "checkpoint.interval_steps": self.interval,
        }
        return set_values(copy.deepcopy(cfg), values)

    def decide(self, cfg: ConfigDict) -> Self:
        """Returns the budget with the steps that fit into the time, by the seconds of the evaluations so far."""
        first, last = self.seconds.get(str(self.interval)), self.seconds[str(self.decision_step)]
        cycle = last / 2 if first is None or first >= last else last - first
        start = max((first or 0.0) - cycle, 0.0)  # compiling, which the longer run and every later phase do again

        measured = phase_before(self.configure(cfg), self.decision_step).cfg
        slots = self.interval * measured.train.batch_size * measured.data.seq_len
        left = 60 * self.minutes - last - _EXPORT_SECONDS
        decided = steps_in(cfg, left, Cost(cycle / slots, start, self.last_slot_seconds), self.decision_step)
        return dataclasses.replace(self, decided=max(decided, self.decision_step + 1))


def new_budget(
    minutes: float, step: MeasuredStep, num_steps: int, config: str | None, changes: Mapping[str, Any]
) -> TimeBudget:
    """Returns the budget of a run that has not begun.

    Args:
        minutes: minutes of training.
        step: the measured step.
        num_steps: steps of the run by this measurement.
        config: name of the config.
        changes: planned values by dotted key.
    """
    cfg = set_values(copy.deepcopy(step.cfg), {"train.num_steps": num_steps})
    held_out = cfg.eval.num_batches * cfg.eval.batch_size * cfg.data.seq_len
    affordable = 60 * minutes * _SHARE * _FORWARD_SPEED * step.tokens_per_second / held_out
    evaluations = round(min(max(affordable, MIN_EVALUATIONS), MAX_EVALUATIONS))
    interval = max(-(-num_steps // evaluations), 1)
    slot_seconds = step.cost.slot_seconds / (1 - EVALUATION_SHARE)
    return TimeBudget(minutes, config, changes, num_steps, cfg.schedule.warmup_steps, interval, slot_seconds)


def require_same_minutes(budget: TimeBudget, minutes: float, workdir: Path) -> None:
    """Raises `UserError` if a run was planned for another time."""
    if budget.minutes != minutes:
        raise UserError(
            f"{named('workdir')} {workdir} holds a run of {budget.minutes:g} minutes, not {minutes:g}: the same "
            f"command resumes it; for a longer run, leave {named('minutes')} out and set config.train.num_steps"
        )


def require_one_length(cfg: ConfigDict) -> None:
    """Raises `UserError` for a config whose batches follow the length of the run, or whose phases do not follow it."""
    if inputs.limits_epochs(cfg):
        raise UserError(
            f"{named('minutes')} decides the length of a run late, and the epochs of sources are limited "
            "(data.sources, data.mixture_epochs), so that their shares follow it: set train.num_steps instead"
        )
    try:
        list_phases(set_values(copy.deepcopy(cfg), {"train.num_steps": 1}))
    except UserError as error:
        raise UserError(f"{named('minutes')} decides the length of a run late: {error}") from None


def require_one_phase(budget: TimeBudget, cfg: ConfigDict) -> None:
    """Raises `UserError` for a config with a phase that ends before the length is decided, and would end elsewhere."""
    starts = [phase.start for phase in list_phases(budget.configure(cfg))][1:] if cfg.train.phases else []
    if starts and starts[0] <= budget.decision_step:
        raise UserError(
            f"{named('minutes')} decides the length of this run at step {budget.decision_step}, and a phase of "
            f"train.phases ends before, at step {starts[0]}: set config.train.num_steps instead"
        )


def pretrain_for(
    budget: TimeBudget,
    make_callback: Callable[[], Callback],
    cfg: ConfigDict,
    workdir: Path,
    processes: ProcessGroup,
    callback: Callback,
) -> None:
    """Trains until the length can be decided, decides it, and trains to the end.

    Args:
        budget: the budget of the run, decided or not.
        make_callback: makes the callback of the rest of the run.
        cfg, workdir, processes, callback: those of `pretrain`; `cfg` is that of `budget`.
    """
    if budget.decided is None:
        watch = _Stopwatch(callback, budget, workdir)
        pretrain(budget.configure(cfg), workdir, processes, watch, stop_step=budget.decision_step)
        budget = watch.budget.decide(cfg)
        budget.write(workdir)
        print(
            f"{budget.decided:,} steps fit into {budget.minutes:g} minutes, by the speed of the first "
            f"{budget.decision_step:,}"
        )
        callback = make_callback()
    pretrain(budget.configure(cfg), workdir, processes, callback)


class _Stopwatch(Callback):
    """Notes the seconds at every evaluation in budget.json."""

    def __init__(self, callback: Callback, budget: TimeBudget, workdir: Path) -> None:
        self.budget, self._callback, self._workdir = budget, callback, workdir
        self._began = time.monotonic()

    def on_train_begin(self, start: TrainingStart) -> None:
        before = max((seconds for step, seconds in self.budget.seconds.items() if int(step) <= start.step), default=0.0)
        self._began = time.monotonic() - before
        self.budget.write(self._workdir)
        self._callback.on_train_begin(start)

    def on_evaluate(self, step: int, params: Params, metrics: Mapping[str, float]) -> None:
        self._callback.on_evaluate(step, params, metrics)
        seconds = {**self.budget.seconds, str(step): round(time.monotonic() - self._began, 3)}
        self.budget = dataclasses.replace(self.budget, seconds=seconds)
        self.budget.write(self._workdir)

    def on_task_scores(self, scores: EvalResult) -> None:
        self._callback.on_task_scores(scores)

    def on_train_end(self) -> None:
        self._callback.on_train_end()

    def on_best_params(self, workdir: Path, step: int, best_step: int) -> None:
        self._callback.on_best_params(workdir, step, best_step)
