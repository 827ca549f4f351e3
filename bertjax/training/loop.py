"""The training loop: dispatch a step, read the metrics of earlier ones, evaluate, save, stop, roll back."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Generator, Mapping
from typing import Any

import jax
import numpy as np

from bertjax.checkpoint.manager import RestoredCheckpoint
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
from bertjax.training.evaluate import EarlyStopping, eval_set_names
from bertjax.training.logging import eval_line
from bertjax.training.metric_buffer import MetricBuffer, is_due
from bertjax.training.profiler import Profiler
from bertjax.training.run_context import RunContext
from bertjax.training.sharding import put_batch
from bertjax.training.signals import StoppedBySignal, stop_signals
from bertjax.training.state import COUNTER_DEFAULTS, TrainState
from bertjax.training.step import layer_names
from bertjax.training.timing import DataWaitTimer
from bertjax.types import Batch


def train(run: RunContext, state: TrainState) -> tuple[TrainState, dict[str, float]]:
    """Trains to the last step, or until early stopping.

    The host never waits for the step that it has just dispatched: metrics are read while later steps run.

    Args:
        run: Programs, batches, checkpoints and writers of the run.
        state: State to begin with, on the mesh; it is donated.

    Returns:
        The final state, and the metrics of the last evaluation.

    Raises:
        StoppedBySignal: SIGTERM or SIGINT arrived; the state is saved.
        NonFiniteLossError: A step was not finite, and `train.on_nonfinite` does not say how to go on.
        UserError: The disk is full, or a checkpoint is damaged.
    """
    config = run.config
    with (
        jax.set_mesh(run.mesh),
        stop_signals() as signals,
        Profiler(run) as profiler,
        contextlib.closing(DataWaitTimer()) as data_wait,
    ):
        loop = TrainLoop(run, state, data_wait)
        if config.anomalies.on_nonfinite == "rollback" and run.restored_meta is None:
            loop.save(None)  # a rollback needs a checkpoint
        while loop.buffer.step < config.num_steps and not loop.early_stopping.should_stop:
            try:
                loop.run_steps(signals, profiler)
            except RollbackRequest as request:
                loop.roll_back(request.anomaly)
    run.checkpoints.wait()
    return loop.state, loop.eval_metrics


class TrainLoop:
    """State of a run: the train state after the last dispatched step, and the index of the next batch.

    Args:
        run: Context of the run.
        state: State to begin with.
        data_wait: Measures the seconds without a batch.
    """

    def __init__(self, run: RunContext, state: TrainState, data_wait: DataWaitTimer):
        self.run, self.data_wait, self.names = run, data_wait, layer_names(state.params)
        self.stragglers = run.processes.watch_stragglers(data_wait.totals)
        self.eval_metrics: dict[str, float] = {}
        resumed, step = run.restored_meta is not None, int(state.step)
        self.saved_at, self.saved_step = time.monotonic(), step if resumed else -1
        if not resumed:
            write_batch_skips(run.workdir, [])  # of an earlier run in this work directory
        self._start_from(state, run.restored_meta or {}, read_batch_skips(run.workdir, step) if resumed else [])

    def _start_from(self, state: TrainState, meta: Mapping[str, Any], batch_skips: list[BatchSkip]) -> None:
        """Continues from a state and the meta stored with it, after the batches that were skipped there."""
        step, self.cursor, self.state = int(state.step), int(state.cursor), state
        skipped, consecutive = int(state.skipped), int(state.consecutive_skipped)
        tracker = AnomalyTracker(self.run, self.names, meta.get("anomalies", {}), batch_skips, skipped, consecutive)
        program = self.run.program_at(max(self.cursor - 1, 0))  # of the losses in the tracker
        self.buffer = MetricBuffer(self.run, program, tracker, step, self.data_wait, self.stragglers)
        self.early_stopping = EarlyStopping(self.run.config, meta.get("early_stopping"))
        self._move_to(tracker.next_cursor(step, self.cursor))

    def _move_to(self, cursor: int) -> None:
        """Skips the batches before `cursor`."""
        if cursor != self.cursor:
            self.cursor = cursor
            self.state = self.state._replace(cursor=jax.device_put(np.int32(cursor), self.state.cursor.sharding))

    def run_steps(self, signals: list[int], profiler: Profiler) -> None:
        """Trains on the batches before the next one to skip, or to the last step.

        Args:
            signals: Numbers of the signals received so far.
            profiler: Records the steps of `profile.steps`.
        """
        run, config, buffer = self.run, self.run.config, self.buffer
        with contextlib.closing(self._batches()) as groups:
            for cursors, batches in groups:
                program = run.program_at(cursors[0])
                profiler.before_dispatch(buffer.num_dispatched, self.state, len(batches))
                buffer.start_phase(program)

                # Dispatch a step, or several in one program. The call returns before the devices have begun.
                placed = [put_batch(batch, run.mesh) for batch in batches]
                if len(placed) == 1:
                    self.state, metrics = program.train_step(self.state, run.frozen, placed[0])
                else:
                    self.state, metrics = program.train_steps(self.state, run.frozen, placed)
                self.cursor = cursors[-1] + 1
                self.data_wait.dispatched(metrics)

                # The devices are busy: read the metrics of earlier steps meanwhile.
                buffer.write_if_due()
                buffer.add(cursors, metrics)
                run.console.advance(buffer.num_dispatched)

                # All processes stop or save after the same step.
                stop, save = run.processes.agree(signals[0] if signals else 0, self._is_overdue())
                if not (stop or save or _may_evaluate_or_save(config, buffer.num_dispatched)):
                    continue

                # Wait for the devices. After a refused step nothing is due: the same step was reached before.
                applied = buffer.read_all()
                step = buffer.step
                is_last = step == config.num_steps
                evaluates = applied and (is_last or is_due(step, config.eval_interval_steps))
                if evaluates:
                    self.eval_metrics = self.evaluate()
                    self.early_stopping.update(self.eval_metrics)
                is_last = is_last or self.early_stopping.should_stop
                saves = applied and (is_last or is_due(step, config.checkpoint_interval_steps))
                if saves or ((stop or save) and step > self.saved_step):
                    self.save(self.eval_metrics if evaluates else None)
                if evaluates:
                    self.early_stopping.check_metric(self.eval_metrics)
                if self.early_stopping.should_stop:
                    run.console.print(f"ends at step {step}: {self.early_stopping.describe()} (eval.patience)")
                    return
                if stop and not is_last:
                    run.checkpoints.wait()
                    raise StoppedBySignal(stop, step)

    def _batches(self) -> Generator[tuple[list[int], list[Batch]]]:
        """Yields the cursors and batches of every dispatch, up to the next batch to skip, or to the last step."""
        config, run = self.run.config, self.run
        self._move_to(config.anomalies.after_skipped(self.cursor))
        stop = self.cursor + config.num_steps - self.buffer.num_dispatched  # if every batch makes a step
        stop = min(stop, config.anomalies.next_skipped(self.cursor))
        prefetched = run.batches.prefetch(self.cursor, stop)
        cursors: list[int] = []
        batches: list[Batch] = []
        size = 1
        try:
            for cursor, batch in self.data_wait.timed(prefetched):
                if not cursors:
                    size = steps_per_dispatch(config, self.buffer.num_dispatched)
                    in_one_phase = run.program_at(cursor) is run.program_at(cursor + size - 1)
                    size = size if in_one_phase and cursor + size <= stop else 1
                cursors.append(cursor)
                batches.append(batch)
                if len(cursors) == size:
                    yield cursors, batches
                    cursors, batches = [], []
        finally:
            prefetched.close()

    def evaluate(self) -> dict[str, float]:
        """Evaluates the current weights; returns the metrics, and writes them."""
        run, step = self.run, self.buffer.step
        self.buffer.write()
        with self.buffer.clock.paused():
            params = run.eval_params(self.state)
            metrics = dict(self.buffer.program.evaluate(params, run.frozen))
            run.write(step, metrics)
            run.console.print(f"eval at step {step}: {eval_line(metrics)}")
            for name in eval_set_names(metrics):
                run.console.print(f"  {name}: {eval_line(metrics, f'eval/{name}')}")
            run.on_evaluate(step, params, metrics)
        return metrics

    def save(self, metrics: dict[str, float] | None) -> None:
        """Saves the state; all steps so far are checked first, since a checkpoint must never hold a NaN."""
        self.buffer.write()
        meta = {**self.run.meta, "anomalies": self.buffer.tracker.meta(), **self.early_stopping.meta()}
        with self.buffer.clock.paused():
            self.run.checkpoints.save(self.buffer.step, self.state, meta, metrics)
        self.saved_at, self.saved_step = time.monotonic(), self.buffer.step

    def _is_overdue(self) -> bool:
        minutes = self.run.config.checkpoint_interval_minutes
        return minutes is not None and time.monotonic() - self.saved_at >= 60.0 * minutes

    def roll_back(self, anomaly: Anomaly) -> None:
        """Restores the last checkpoint, and continues after the batch of the anomaly.

        Raises:
            NonFiniteLossError: The same checkpoint was restored `train.max_nonfinite` times before.
        """
        run, limit = self.run, self.run.config.anomalies.max_nonfinite
        run.checkpoints.wait()
        restored = self._restore()
        skips = [skip for skip in self.buffer.tracker.batch_skips if skip.step <= restored.step]
        if sum(skip.step == restored.step for skip in skips) >= limit:
            raise NonFiniteLossError(
                f"went back to step {restored.step} {limit} times (train.max_nonfinite), and yet {anomaly.describe()}; "
                f"the checkpoint of step {restored.step} is intact; try a lower optimizer.learning_rate, or go back "
                "further by hand"
            )
        run.checkpoints.delete_after(restored.step)
        skip = BatchSkip(restored.step, int(restored.state.cursor), anomaly.cursor + 1, anomaly.reason)
        write_batch_skips(run.workdir, [*skips, skip])
        self._start_from(restored.state, restored.meta, [*skips, skip])
        self.saved_at, self.saved_step = time.monotonic(), restored.step
        for writer in run.writers:
            writer.rewind(restored.step)
        metrics = {"train/rollback_from_step": float(anomaly.step), "train/rollback_to_batch": float(skip.to_batch)}
        run.write(restored.step, self.buffer.tracker.metrics() | metrics)
        run.console.print(f"went back to step {restored.step}, on with batch {skip.to_batch}")

    def _restore(self) -> RestoredCheckpoint:
        """Restores the newest checkpoint at a multiple of the interval, else the newest one.

        The checkpoints in between, which a signal or the clock caused, would make the run depend on when they came.
        """
        checkpoints, interval = self.run.checkpoints, self.run.config.checkpoint_interval_steps
        abstract = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding), self.state
        )
        for leaf in jax.tree.leaves(self.state):
            leaf.delete()  # two states may not fit
        regular = [step for step in checkpoints.all_steps() if step == 0 or is_due(step, interval)]
        try:
            if regular and (restored := checkpoints.restore(abstract, regular[-1], COUNTER_DEFAULTS)):
                return restored
        except UserError as error:
            self.run.console.print(str(error))
        newest = checkpoints.restore(abstract, None, COUNTER_DEFAULTS)
        assert newest is not None  # `train` saves one before the first step
        return newest


def _may_evaluate_or_save(config: LoopConfig, step: int) -> bool:
    """Returns whether an evaluation or a checkpoint is due at `step`."""
    intervals = config.eval_interval_steps, config.checkpoint_interval_steps
    return step == config.num_steps or any(is_due(step, each) for each in intervals)


def steps_per_dispatch(config: LoopConfig, step: int) -> int:
    """Returns the number of steps to dispatch in one program after `step`: `train.steps_per_dispatch`, or 1.

    Dispatches begin at multiples of that number, and nothing is due before their last step. That depends on the step
    alone: a resumed run is dispatched in the same groups, and computes the same digits.
    """
    size = config.steps_per_dispatch
    if step % size:
        return 1
    intervals = (
        config.log_interval_steps,
        config.eval_interval_steps,
        config.checkpoint_interval_steps,
        config.num_steps,
    )
    ends = [step + each - step % each for each in intervals if each > 0]
    profiled = config.profiled
    ends += [edge for edge in (profiled.start - 1, profiled.stop - 1) if profiled and edge > step]
    return size if min(ends) >= step + size else 1
