"""The one training loop: dispatch a step, read the figures of the ones before, evaluate, save."""

from __future__ import annotations

import dataclasses
import math
import operator
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import jax
import optax
from jax.sharding import Mesh

from bertjax.objectives.base import Objective
from bertjax.training.config import LoopConfig
from bertjax.training.evaluate import add_sums, evaluate, means
from bertjax.training.metrics import Clock, Console, Writer, eval_line
from bertjax.training.sharding import put_batch
from bertjax.training.state import TrainState
from bertjax.types import Batch, Params, UserError


class Batches(Protocol):
    """The training rows: how many an epoch of every source has, and the batches of a range of cursors."""

    @property
    def rows_per_epoch(self) -> Mapping[str, int]: ...

    def prefetch(self, start_cursor: int, stop_cursor: int) -> Any: ...


class Checkpoints(Protocol):
    """What the loop needs of a checkpoint manager."""

    def save(self, step: int, state: Any, meta: dict, metrics: Mapping[str, float] | None = None) -> None: ...

    def wait(self) -> None: ...


@dataclasses.dataclass(frozen=True)
class Stage:
    """The batches from cursor `start` on that share a compiled step: rows of one size, hidden in one way."""

    start: int
    objective: Objective
    train_step: Callable
    eval_step: Callable
    eval_sets: Callable[[], Mapping[str, list[Batch]]]
    tokens_per_batch: int  # rows * seq_len, padding included
    flops_per_token: Callable[[float], float]  # of the share of the rows' places that hold real tokens
    title: str = ""  # what the console says when it begins


class Stopped(Exception):
    """The process was asked to stop; its state is saved. `exit_code` is 128 + the signal's number."""

    def __init__(self, signal_number: int, step: int):
        self.exit_code = 128 + signal_number
        super().__init__(
            f"stopped by {signal.Signals(signal_number).name}; saved at step {step}, the same command resumes"
        )


class NonFiniteLoss(UserError):
    """Training diverged; the checkpoints before it are intact."""


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

    def stage_of(self, cursor: int) -> Stage:
        return next(stage for stage in reversed(self.stages) if stage.start <= cursor)


def train(run: Run, state: TrainState) -> tuple[TrainState, dict[str, float]]:
    """Trains to the last step and returns the final state and its held-out figures.

    Raises `Stopped` after SIGTERM or SIGINT (state saved), `NonFiniteLoss` when the loss is no number.
    """
    config, step = run.config, int(state.step)
    window = Window(run, run.stage_of(int(state.cursor)))
    figures: dict[str, float] = {}
    saved_at = time.monotonic()
    with jax.set_mesh(run.mesh), _stop_signals() as stop, Profiler(run) as profiler:
        batches = run.batches.prefetch(int(state.cursor), int(state.cursor) + config.num_steps - step)
        try:
            for cursor, batch in batches:
                profiler.before(step)
                window.enter(run.stage_of(cursor))
                state, metrics = window.stage.train_step(state, run.frozen, put_batch(batch, run.mesh))
                step += 1
                # The device is busy with this step: now is the time to read the figures of those before it.
                window.report_if_due()
                window.add(step, metrics)
                run.console.advance(step)
                last = step == config.num_steps
                if last or _due(step, config.eval_interval_steps):
                    figures = _evaluate(run, window, state, step)
                if last or stop or _due(step, config.checkpoint_interval_steps) or _overdue(saved_at, config):
                    _save(run, window, state, step, figures if _due(step, config.eval_interval_steps) or last else None)
                    saved_at = time.monotonic()
                if stop and not last:
                    run.checkpoints.wait()
                    raise Stopped(stop[0], step)
        finally:
            batches.close()
        window.report()
    run.checkpoints.wait()
    return state, figures


def _due(step: int, interval: int) -> bool:
    return interval > 0 and step % interval == 0


def _overdue(saved_at: float, config: LoopConfig) -> bool:
    minutes = config.checkpoint_interval_minutes
    return minutes is not None and time.monotonic() - saved_at >= 60.0 * minutes


def _evaluate(run: Run, window: Window, state: TrainState, step: int) -> dict[str, float]:
    window.report()
    started = time.monotonic()
    stage, params = window.stage, run.chosen_params(state)
    sets = stage.eval_sets()
    figures = evaluate(stage.eval_step, params, run.frozen, sets, stage.objective, run.mesh)
    for writer in run.writers:
        writer.write(step, figures)
    run.console.print(f"eval at step {step}: {eval_line(figures)}")
    if len(sets) > 1:
        for name in sets:
            run.console.print(f"  {name}: {eval_line(figures, f'eval/{name}')}")
    window.clock.exclude(time.monotonic() - started)
    return figures


def _save(run: Run, window: Window, state: TrainState, step: int, figures: dict[str, float] | None) -> None:
    """Saves after every step until now is known to be finite: a checkpoint must never hold a NaN."""
    window.report()
    started = time.monotonic()
    run.checkpoints.save(step, state, run.meta, figures)
    window.clock.exclude(time.monotonic() - started)


class Window:
    """The steps since the last report, all of one stage, their figures still on the device."""

    def __init__(self, run: Run, stage: Stage):
        self.run, self.stage, self.clock = run, stage, Clock()
        self._steps: list[tuple[int, Any]] = []
        self._untimed = 1  # the first step compiles: its time says nothing
        self._compiled = False

    def enter(self, stage: Stage) -> None:
        """Steps of this stage follow."""
        if stage is self.stage:
            return
        self.report()
        self.run.console.print(stage.title)
        self.stage, self._untimed, self._compiled = stage, 1, False

    def add(self, step: int, metrics: Any) -> None:
        self._steps.append((step, metrics))

    def report_if_due(self) -> None:
        if not self._compiled and self._steps:
            jax.block_until_ready(self._steps[0][1])
            self.clock.lap()
            self._compiled = True
        if self._steps and _due(self._steps[-1][0], self.run.config.log_interval_steps):
            self.report()

    def report(self) -> None:
        """Reads the window's figures (this waits for the device), checks, writes and forgets them."""
        if not self._steps:
            return
        steps, self._steps = self._steps, []
        metrics = jax.device_get([metrics for _, metrics in steps])
        for (step, _), values in zip(steps, metrics, strict=True):
            _check_finite(step, values)
        last = steps[-1][0]
        figures = _train_figures(self.stage, metrics)
        figures |= _speed(self.run, self.stage, last, metrics[self._untimed :], self.clock)
        figures["train/learning_rate"] = float(self.run.schedule(last - 1))
        self._untimed = 0
        for writer in self.run.writers:
            writer.write(last, figures)
        self.run.console.train(last, figures)


def _check_finite(step: int, metrics: Any) -> None:
    for name in ("loss", "grad_norm"):
        if not math.isfinite(float(metrics[name])):
            parts = ", ".join(f"{key} {float(value.value):.4g}" for key, value in metrics["sums"].items())
            raise NonFiniteLoss(
                f"{name} is {float(metrics[name])} at step {step} (sums: {parts}); checkpoints before it are intact; "
                "try a lower optimizer.learning_rate, longer schedule.warmup_steps or train.compute_dtype=float32"
            )


def _train_figures(stage: Stage, metrics: list[Any]) -> dict[str, float]:
    """The window's means."""
    sums = add_sums([values["sums"] for values in metrics])
    figures = {f"train/{name}": value for name, value in means(sums, stage.objective.weights).items()}
    return figures | {
        "train/grad_norm": sum(float(values["grad_norm"]) for values in metrics) / len(metrics),
        "train/padding": 1.0 - _filled(stage, metrics),
    }


def _filled(stage: Stage, metrics: list[Any]) -> float:
    """The share of the rows' places that hold real tokens."""
    return sum(int(values["real_tokens"]) for values in metrics) / (stage.tokens_per_batch * len(metrics))


def _speed(run: Run, stage: Stage, step: int, metrics: list[Any], clock: Clock) -> dict[str, float]:
    """Throughput in real tokens, and what follows from it; nothing for a window without a timed step."""
    seconds = clock.lap()
    if not metrics:
        return {}
    tokens = sum(int(values["real_tokens"]) for values in metrics)
    figures = {
        "train/tokens_per_second": tokens / seconds,
        "train/seconds_per_step": seconds / len(metrics),
        "train/eta_seconds": seconds / len(metrics) * (run.config.num_steps - step),
    }
    if run.peak_flops is not None:
        figures["train/mfu"] = tokens / seconds * stage.flops_per_token(_filled(stage, metrics)) / run.peak_flops
    return figures


class Profiler:
    """A jax trace of `profile.num_steps` steps below the work folder, for TensorBoard or Perfetto."""

    def __init__(self, run: Run):
        self.start, self.folder = run.config.profile_start_step, str(run.workdir / "profile")
        self.stop = None if self.start is None else self.start + run.config.profile_num_steps
        self._running = False

    def __enter__(self) -> Profiler:
        return self

    def before(self, step: int) -> None:
        if step == self.start:
            jax.profiler.start_trace(self.folder)
            self._running = True
        elif step == self.stop:
            self.__exit__()

    def __exit__(self, *_: object) -> None:
        if self._running:
            jax.profiler.stop_trace()
            self._running = False


@contextmanager
def _stop_signals() -> Iterator[list[int]]:
    """A list that SIGTERM and SIGINT append to: the loop looks at it after every step. A second signal ends at once."""
    received: list[int] = []
    previous: dict[int, Any] = {}

    def note(number: int, _: object) -> None:
        received.append(number)
        signal.signal(number, previous[number])

    for stop in (signal.SIGTERM, signal.SIGINT):
        try:
            previous[stop] = signal.signal(stop, note)
        except ValueError:  # not the main thread: the caller minds the signals
            break
    try:
        yield received
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
