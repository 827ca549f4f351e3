"""Metrics of the steps since the last report: read late from the devices, checked, and written as means."""

from __future__ import annotations

import operator
from typing import Any

import jax

from bertjax.metrics import add_sums, mean_metrics
from bertjax.runtime.heartbeat import StragglerDetector
from bertjax.training.anomalies import AnomalyTracker, NonFiniteLossError
from bertjax.training.run_context import PhaseProgram, RunContext
from bertjax.training.timing import DataWaitTimer, StepClock

MAX_WAIT_SHARE, MIN_WAIT_SECONDS = 0.1, 1.0
"""Share of the time without a batch, and seconds of it, above which the console warns."""
SLOW_DATA = (
    "warning: up to step {step} the devices waited for data {share:.0f} % of the time (train/data_wait; printed once): "
    "the host makes batches too slowly. Is data.cache_dir on a slow disk, or the processor busy with other programs?"
)
MIN_UNREAD = 32
"""Dispatches that stay unread between reports: reading older ones does not make the device wait."""


def is_due(step: int, interval: int) -> bool:
    """Returns whether `step` is a multiple of `interval`; 0 means never."""
    return interval > 0 and step % interval == 0


class MetricBuffer:
    """Metrics since the last report, all of one phase; those of the newest steps are still on the devices.

    `step` counts the completed steps, and `num_dispatched` in addition those under way, each of which will count unless
    the device refuses it (`train.on_nonfinite=skip`).

    Args:
        run: Context of the run.
        program: Program of the phase.
        tracker: Checks every step that is read.
        step: Number of steps completed so far.
        data_wait: Measures the seconds without a batch.
        stragglers: Compares the processes of a run, on the first of several.
    """

    def __init__(
        self,
        run: RunContext,
        program: PhaseProgram,
        tracker: AnomalyTracker,
        step: int,
        data_wait: DataWaitTimer,
        stragglers: StragglerDetector | None = None,
    ):
        self.program, self.tracker, self.step, self.clock = program, tracker, step, StepClock()
        self._run, self._data_wait, self._stragglers = run, data_wait, stragglers
        self._pending: list[tuple[list[int], Any]] = []  # cursors, metrics on the devices
        self._read: list[Any] = []
        self._untimed: int | None = None  # number of first steps whose time includes compilation
        self._compiled = False

    @property
    def num_dispatched(self) -> int:
        """Number of steps of the run that were dispatched."""
        return self.step + sum(len(cursors) for cursors, _ in self._pending)

    def start_phase(self, program: PhaseProgram) -> None:
        """Writes the metrics of the phase before, and begins with those of `program`, unless it is the same."""
        if program is self.program:
            return
        self.write()
        self._run.console.print(f"from step {program.phase.start} on: {program.title}")
        self.tracker.losses.clear()  # losses of another phase have another range
        self.program, self._untimed, self._compiled = program, None, False

    def add(self, cursors: list[int], metrics: Any) -> None:
        """Adds dispatched steps, and checks old ones, so that an anomaly is noticed before the next report.

        Args:
            cursors: Indices of the batches dispatched together.
            metrics: Their metrics on the devices, with a leading axis if there are several.
        """
        self._pending.append((cursors, metrics))
        if self._untimed is None:
            self._untimed = len(cursors)
        if len(self._pending) >= 2 * MIN_UNREAD:
            self._read_pending(MIN_UNREAD)

    def read_all(self) -> bool:
        """Waits for all dispatched steps and checks them; returns whether the last one was applied."""
        if not self._pending:
            return False
        self._read_pending(len(self._pending))
        return bool(self._read[-1]["applied"])

    def write_if_due(self) -> None:
        """Writes the metrics after every `train.log_interval_steps` steps."""
        if not self._compiled and self._pending:
            jax.block_until_ready(self._pending[0][1])
            self.clock.lap()
            self._data_wait.lap()
            self._compiled = True
        interval = self._run.config.train.log_interval_steps
        if self._pending and is_due(self.num_dispatched, interval) and self.read_all() and is_due(self.step, interval):
            self.write()

    def write(self) -> None:
        """Waits for all dispatched steps, writes the means since the last report, and clears the buffer."""
        self.read_all()
        read, self._read = self._read, []
        if not any(values["applied"] for values in read):
            return
        metrics = self._means(read)
        seconds, waited = self.clock.lap(), self._data_wait.lap()
        if timed := read[self._untimed :]:
            metrics |= self._speed(timed, seconds)
            metrics["train/data_wait"] = min(waited / seconds, 1.0)
        metrics["train/learning_rate"] = float(self._run.schedule(self.step - 1))
        metrics |= self.tracker.metrics()
        if self._stragglers is not None:
            compared, message = self._stragglers.update()
            metrics |= compared
            if message is not None:
                self._run.console.print(message)
        self._untimed = 0
        self._run.write(self.step, metrics)
        self._run.console.train(self.step, metrics)
        if timed and waited > max(MAX_WAIT_SHARE * seconds, MIN_WAIT_SECONDS) and not self._data_wait.has_warned:
            self._data_wait.has_warned = True
            self._run.console.print(SLOW_DATA.format(share=100 * waited / seconds, step=self.step))

    def _read_pending(self, count: int) -> None:
        """Reads and checks the first `count` dispatches, in order."""
        dispatches, self._pending = self._pending[:count], self._pending[count:]
        for (cursors, _), values in zip(dispatches, jax.device_get([each for _, each in dispatches]), strict=True):
            for index, cursor in enumerate(cursors):
                step = values if len(cursors) == 1 else jax.tree.map(operator.itemgetter(index), values)
                try:
                    self.tracker.check(self.step + 1, cursor, step)
                except NonFiniteLossError:  # the run ends: write the steps before it
                    self._pending = []
                    self.write()
                    raise
                self.step += int(step["applied"])
                self._read.append(step)

    def _means(self, read: list[Any]) -> dict[str, float]:
        applied = [values for values in read if values["applied"]]
        means = mean_metrics(add_sums([values["sums"] for values in applied]), self.program.objective.loss_weights)
        return {f"train/{name}": value for name, value in means.items()} | {
            "train/grad_norm": sum(float(values["grad_norm"]) for values in applied) / len(applied),
            "train/padding": 1.0 - _filled(read),
        }

    def _speed(self, read: list[Any], seconds: float) -> dict[str, float]:
        """Computes the throughput in real tokens, and what follows from it."""
        tokens = sum(int(values["real_tokens"]) for values in read)
        metrics = {
            "train/tokens_per_second": tokens / seconds,
            "train/seconds_per_step": seconds / len(read),
            "train/eta_seconds": seconds / len(read) * (self._run.config.train.num_steps - self.step),
        }
        if self._run.peak_flops is not None:
            flops = self.program.flops_per_token(_filled(read))
            metrics["train/mfu"] = tokens / seconds * flops / self._run.peak_flops
        return metrics


def _filled(read: list[Any]) -> float:
    """Returns the share of the positions that hold real tokens."""
    return sum(int(values["real_tokens"]) for values in read) / sum(int(values["num_positions"]) for values in read)
