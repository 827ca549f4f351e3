"""The one training loop: dispatch a step, read the figures of the ones before, evaluate, save."""

from __future__ import annotations

import contextlib
import functools
import time
from typing import Any

import jax
import numpy as np

from bertjax.config.training import LoopConfig
from bertjax.errors import UserError
from bertjax.training.anomalies import (
    Anomaly,
    AnomalyTracker,
    BatchSkip,
    NonFiniteLossError,
    RollbackRequest,
    read_batch_skips,
    write_batch_skips,
)
from bertjax.training.data_wait import DataWaitTimer
from bertjax.training.early_stopping import EarlyStopping
from bertjax.training.evaluate import eval_set_names
from bertjax.training.logging import eval_line
from bertjax.training.metric_buffer import MetricBuffer, due
from bertjax.training.multi_step import portions, steps_per_dispatch
from bertjax.training.profiler import Profiler
from bertjax.training.run_context import RunContext
from bertjax.training.sharding import put_batch
from bertjax.training.signals import StoppedBySignal, stop_signals
from bertjax.training.state import COUNTER_DEFAULTS, TrainState
from bertjax.training.step import layer_names


def train(run: RunContext, state: TrainState) -> tuple[TrainState, dict[str, float]]:
    """Trains to the last step and returns the final state and its held-out figures.

    Raises `StoppedBySignal` after SIGTERM or SIGINT (state saved), `NonFiniteLossError` when a loss is not finite and
    `train.on_nonfinite` is `raise`.
    """
    with jax.set_mesh(run.mesh), stop_signals() as stop, Profiler(run) as profiler:
        course = TrainLoop(run, state, stop, profiler)
        with contextlib.closing(course.waiting):
            course.begin()
            while course.window.step < run.config.num_steps and not course.best.should_stop:
                try:
                    course.go_on()
                except RollbackRequest as request:
                    course.roll_back(request.fault)
    run.checkpoints.wait()
    return course.state, course.figures


class TrainLoop:
    """A run on its way: the state after the last step that was dispatched, and where it is."""

    def __init__(self, run: RunContext, state: TrainState, stop: list[int], profiler: Profiler):
        self.run, self.stop, self.profiler = run, stop, profiler
        self.names, self.waiting = layer_names(state.params), DataWaitTimer()
        self.figures: dict[str, float] = {}
        self.saved_at = time.monotonic()
        self.saved_step = -1 if run.restored_meta is None else int(state.step)
        if run.restored_meta is None:
            write_batch_skips(run.workdir, [])  # of a run that was here before
        self._set_out(
            state,
            run.restored_meta or {},
            [] if run.restored_meta is None else read_batch_skips(run.workdir, int(state.step)),
        )

    def _set_out(self, state: TrainState, restored_meta: Any, jumps: list[BatchSkip]) -> None:
        """Goes on from a state and the meta saved with it, behind the batches that were refused there."""
        step, self.cursor, self.state = int(state.step), int(state.cursor), state
        skipped, row = int(state.skipped), int(state.consecutive_skipped)
        ledger = AnomalyTracker(self.run.config.faults, restored_meta.get("anomalies", {}), jumps, skipped, row)
        program = self.run.program_at(max(self.cursor - 1, 0))  # of the losses in the ledger
        self.window = MetricBuffer(self.run, program, ledger, self.names, step, self.waiting)
        self.best = EarlyStopping(self.run.config, restored_meta.get("early_stopping"))
        self._move_to(ledger.cursor_at(step, self.cursor))

    def _move_to(self, cursor: int) -> None:
        """Leaves the batches before `cursor` out."""
        if cursor != self.cursor:
            self.cursor = cursor
            self.state = self.state._replace(cursor=jax.device_put(np.int32(cursor), self.state.cursor.sharding))

    def begin(self) -> None:
        """A run that may have to go back needs something to go back to."""
        if self.run.config.faults.on_nonfinite == "rollback" and self.saved_step < 0:
            self._save(None)

    def go_on(self) -> None:
        """The batches up to the next one to be left out, or all, if every one of them makes an update."""
        run, window, faults = self.run, self.window, self.run.config.faults
        self._move_to(faults.behind_skipped(self.cursor))
        left = run.config.num_steps - window.expected
        stop = min(self.cursor + left, faults.next_skipped(self.cursor))
        batches = run.batches.prefetch(self.cursor, stop)
        try:
            for cursors, taken in portions(self.waiting.each(batches), functools.partial(self._together, stop)):
                self.profiler.before(window.expected, self.state, len(cursors))
                window.enter(run.program_at(cursors[0]))
                placed = [put_batch(batch, run.mesh) for batch in taken]
                if len(placed) == 1:
                    self.state, metrics = window.program.train_step(self.state, run.frozen, placed[0])
                else:
                    self.state, metrics = window.program.train_steps(self.state, run.frozen, placed)
                self.cursor = cursors[-1] + 1
                self.waiting.sent(metrics)
                # The device is busy with this step: now is the time to read the figures of those before it.
                window.report_if_due()
                window.add(cursors, metrics)
                run.console.advance(window.expected)
                overdue = _overdue(self.saved_at, run.config)
                stop, save = run.processes.agree(self.stop[0] if self.stop else 0, overdue)
                if stop or save or self._is_due(window.expected):
                    self._pause(stop, save)
                    if self.best.should_stop:
                        break
        finally:
            batches.close()

    def _together(self, stop: int, cursor: int) -> int:
        """How many batches from `cursor` on go to the devices at once."""
        size = steps_per_dispatch(self.run.config, self.window.expected)
        one_stage = self.run.program_at(cursor) is self.run.program_at(cursor + size - 1)
        return size if one_stage and cursor + size <= stop else 1

    def _is_due(self, step: int) -> bool:
        """Whether, if this many updates are made, there is something to do that must wait for the device."""
        config = self.run.config
        intervals = config.eval_interval_steps, config.checkpoint_interval_steps
        return step == config.num_steps or any(due(step, each) for each in intervals)

    def _pause(self, stop: int, save: bool) -> None:
        """Evaluates, saves or stops (by the signal of that number), once it is known which step this is."""
        config, window = self.run.config, self.window
        made = window.settle()  # a step that made no update leaves us where we were, with that done already
        step = window.step
        last = step == config.num_steps
        evaluates = made and (last or due(step, config.eval_interval_steps))
        if evaluates:
            self.figures = _evaluate(self.run, window, self.state, step)
            self.best.update(self.figures)
        last = last or self.best.should_stop
        saves = made and (last or due(step, config.checkpoint_interval_steps))
        if saves or ((stop or save) and step > self.saved_step):
            self._save(self.figures if evaluates else None)
        if evaluates:
            self.best.require_known(self.figures)
        if self.best.should_stop:
            self.run.console.print(f"ends at step {step}: {self.best.describe()} (eval.patience)")
        if stop and not last:
            self.run.checkpoints.wait()
            raise StoppedBySignal(stop, step)

    def _save(self, figures: dict[str, float] | None) -> None:
        """Saves after every step until now is known to be finite: a checkpoint must never hold a NaN."""
        run, window = self.run, self.window
        window.report()
        started = time.monotonic()
        run.checkpoints.save(
            window.step, self.state, {**run.meta, "anomalies": window.ledger.record(), **self.best.record()}, figures
        )
        window.clock.exclude(time.monotonic() - started)
        self.saved_at, self.saved_step = time.monotonic(), window.step

    def roll_back(self, fault: Anomaly) -> None:
        """Takes the last checkpoint up again, behind the batch at fault; those in between are not used."""
        run, limit = self.run, self.run.config.faults.max_nonfinite
        run.checkpoints.wait()
        restored = self._restore()
        jumps = [jump for jump in self.window.ledger.jumps if jump.step <= restored.step]
        if sum(jump.step == restored.step for jump in jumps) >= limit:
            raise NonFiniteLossError(
                f"went back to step {restored.step} {limit} times (train.max_nonfinite), and yet {fault.describe()}; "
                f"the checkpoint of step {restored.step} is intact; try a lower optimizer.learning_rate, or go back "
                "further by hand"
            )
        run.checkpoints.delete_after(restored.step)  # they belong to what is now undone
        jump = BatchSkip(restored.step, int(restored.state.cursor), fault.cursor + 1, fault.reason)
        jumps.append(jump)
        write_batch_skips(run.workdir, jumps)
        self._set_out(restored.state, restored.meta, jumps)
        self.saved_at, self.saved_step = time.monotonic(), restored.step
        for writer in run.writers:
            writer.rewind(restored.step)
        found = {"train/rollback_from_step": float(fault.step), "train/rollback_to_batch": float(jump.to_batch)}
        run.write(restored.step, self.window.ledger.figures() | found)
        run.console.print(f"went back to step {restored.step}, on with batch {jump.to_batch}")

    def _restore(self) -> Any:
        """The newest checkpoint at a multiple of the interval, else the newest one.

        Those that a signal or the clock made in between would let the run depend on when it was stopped.
        """
        checkpoints, interval = self.run.checkpoints, self.run.config.checkpoint_interval_steps
        abstract = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding), self.state
        )
        for leaf in jax.tree.leaves(self.state):
            leaf.delete()  # there may be no room for two states
        regular = [step for step in checkpoints.all_steps() if step == 0 or due(step, interval)]
        try:
            if regular:
                return checkpoints.restore(abstract, regular[-1], COUNTER_DEFAULTS)
        except UserError as error:
            self.run.console.print(str(error))
        return checkpoints.restore(abstract, None, COUNTER_DEFAULTS)


def _overdue(saved_at: float, config: LoopConfig) -> bool:
    minutes = config.checkpoint_interval_minutes
    return minutes is not None and time.monotonic() - saved_at >= 60.0 * minutes


def _evaluate(run: RunContext, window: MetricBuffer, state: TrainState, step: int) -> dict[str, float]:
    window.report()
    started = time.monotonic()
    params = run.eval_params(state)
    figures = dict(window.program.evaluate(params, run.frozen))
    run.write(step, figures)
    run.console.print(f"eval at step {step}: {eval_line(figures)}")
    for name in eval_set_names(figures):
        run.console.print(f"  {name}: {eval_line(figures, f'eval/{name}')}")
    run.on_evaluate(step, params, figures)
    window.clock.exclude(time.monotonic() - started)
    return figures
