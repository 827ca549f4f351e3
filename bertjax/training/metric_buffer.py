"""The steps since the last report: their figures are read late, judged, and written as means."""

from __future__ import annotations

import operator
from typing import Any, NoReturn

import jax

from bertjax.training.anomalies import (
    Anomaly,
    AnomalyTracker,
    NonFiniteLossError,
    RollbackRequest,
    diagnose_step,
    write_batch,
)
from bertjax.training.data_wait import DataWaitTimer
from bertjax.training.evaluate import add_sums, mean_metrics
from bertjax.training.logging import StepClock
from bertjax.training.run_context import PhaseProgram, RunContext

ADVICE = (
    "checkpoints before it are intact; leave it out with train.skip_batches={batch}, let the run go round such batches "
    "with train.on_nonfinite=skip or rollback, or try a lower optimizer.learning_rate, longer schedule.warmup_steps or "
    "train.compute_dtype=float32"
)
SLOW, LEAST_WAIT = 0.1, 1.0  # of the time without a batch, and that many seconds, are worth a warning
SLOW_DATA = (
    "warning: up to step {step} the devices waited for data {share:.0f} % of the time (train/data_wait; said once): "
    "the host makes batches too slowly. Is data.cache_dir on a slow disk, or the processor busy with other programs?"
)
UNREAD = 32
"""Steps whose figures nobody asks for yet: so far behind the newest one, reading makes the device wait for nothing."""


def due(step: int, interval: int) -> bool:
    return interval > 0 and step % interval == 0


class MetricBuffer:
    """The steps since the last report, all of one program, the figures of the last ones still on the device.

    `step` counts the updates that are known to be made. `expected` adds the steps under way, each of which makes one
    unless the device refuses it (`train.on_nonfinite=skip`). `waiting` counts the seconds without a batch.
    """

    def __init__(
        self,
        run: RunContext,
        program: PhaseProgram,
        ledger: AnomalyTracker,
        names: list[str],
        step: int,
        waiting: DataWaitTimer,
    ):
        self.run, self.program, self.ledger, self.names, self.step = run, program, ledger, names, step
        self.waiting = waiting
        self.clock = StepClock()
        self._pending: list[tuple[list[int], Any]] = []  # cursors, figures on the device
        self._read: list[Any] = []
        self._untimed: int | None = None  # how many came first, behind a compiler: their time says nothing
        self._compiled = False

    @property
    def expected(self) -> int:
        return self.step + sum(len(cursors) for cursors, _ in self._pending)

    def enter(self, program: PhaseProgram) -> None:
        """Steps of this program follow."""
        if program is self.program:
            return
        self.report()
        self.run.console.print(program.title)
        self.ledger.forget_losses()
        self.program, self._untimed, self._compiled = program, None, False

    def add(self, cursors: list[int], metrics: Any) -> None:
        """Takes note of steps under way; judges old ones, so that a fault does not wait for the next report.

        Figures of several steps that were sent together have a leading axis.
        """
        self._pending.append((cursors, metrics))
        if self._untimed is None:
            self._untimed = len(cursors)
        if len(self._pending) >= 2 * UNREAD:
            self._read_off(UNREAD)

    def report_if_due(self) -> None:
        if not self._compiled and self._pending:
            jax.block_until_ready(self._pending[0][1])
            self.clock.lap()
            self.waiting.lap()
            self._compiled = True
        interval = self.run.config.log_interval_steps
        if self._pending and due(self.expected, interval) and self.settle() and due(self.step, interval):
            self.report()

    def settle(self) -> bool:
        """Reads and judges the steps under way (this waits for the device); whether the last one made an update."""
        if not self._pending:
            return False
        self._read_off(len(self._pending))
        return bool(self._read[-1]["applied"])

    def _read_off(self, count: int) -> None:
        """Judges the steps of the first portions under way, in their order."""
        taken, self._pending = self._pending[:count], self._pending[count:]
        for (cursors, _), values in zip(taken, jax.device_get([metrics for _, metrics in taken]), strict=True):
            for place, cursor in enumerate(cursors):
                own = values if len(cursors) == 1 else jax.tree.map(operator.itemgetter(place), values)
                self._judge(cursor, own)

    def report(self) -> None:
        """Writes the means of the updates since the last report, and forgets them."""
        self.settle()
        read, self._read = self._read, []
        if not any(values["applied"] for values in read):
            return
        figures = _train_figures(self.program, read)
        seconds, waited = self.clock.lap(), self.waiting.lap()
        if timed := read[self._untimed :]:
            figures |= _speed(self.run, self.program, self.step, timed, seconds)
            figures["train/data_wait"] = min(waited / seconds, 1.0)
        figures["train/learning_rate"] = float(self.run.schedule(self.step - 1))
        figures |= self.ledger.figures()
        self._untimed = 0
        self.run.write(self.step, figures)
        self.run.console.train(self.step, figures)
        if timed and waited > max(SLOW * seconds, LEAST_WAIT) and not self.waiting.has_warned:
            self.waiting.has_warned = True
            self.run.console.print(SLOW_DATA.format(share=100 * waited / seconds, step=self.step))

    def _judge(self, cursor: int, values: Any) -> None:
        if not values["applied"]:
            self._refused(diagnose_step(self.step + 1, cursor, values, self.names))
        elif spike := self.ledger.spike(float(values["loss"])):
            fault = diagnose_step(self.step + 1, cursor, values, self.names, spike)
            self.run.console.print(f"{fault.describe()}; {self._batch_of(fault)}")
            if self.run.config.faults.on_nonfinite == "rollback":
                raise RollbackRequest(fault)
        if values["applied"]:
            self.step += 1
            self.ledger.consecutive_skipped = 0
        self._read.append(values)

    def _refused(self, fault: Anomaly) -> None:
        """Counts a step that made no update, or ends the run, or asks for an earlier state."""
        config, ledger, said = self.run.config.faults, self.ledger, f"{fault.describe()}; {self._batch_of(fault)}"
        if config.on_nonfinite == "raise":
            self._give_up(fault, said)
        if config.on_nonfinite == "rollback":
            self.run.console.print(said)
            raise RollbackRequest(fault)
        ledger.skipped, ledger.consecutive_skipped = ledger.skipped + 1, ledger.consecutive_skipped + 1
        self.run.console.print(f"skipped an update: {said}")
        if ledger.consecutive_skipped >= config.max_nonfinite:
            self._give_up(
                fault,
                f"{ledger.consecutive_skipped} updates in a row left out (train.max_nonfinite), the last one: {said}",
            )

    def _give_up(self, fault: Anomaly, said: str) -> NoReturn:
        """Ends the run, the figures of the updates before the fault written."""
        self._pending = []
        self.report()
        raise NonFiniteLossError(f"{said}; {ADVICE.format(batch=fault.cursor)}")

    def _batch_of(self, fault: Anomaly) -> str:
        """Any batch can be made again from its cursor: none is kept for the case of a fault."""
        if self.ledger.files_left == 0:
            return "its batch is not written: there are many already"
        self.ledger.files_left -= 1
        batches = self.run.batches.prefetch(fault.cursor, fault.cursor + 1)
        try:
            (_, batch) = next(iter(batches))
        finally:
            batches.close()
        return write_batch(self.run.workdir, fault, batch)


def _train_figures(program: PhaseProgram, read: list[Any]) -> dict[str, float]:
    """The window's means over its updates."""
    made = [values for values in read if values["applied"]]
    sums = add_sums([values["sums"] for values in made])
    figures = {f"train/{name}": value for name, value in mean_metrics(sums, program.objective.loss_weights).items()}
    return figures | {
        "train/grad_norm": sum(float(values["grad_norm"]) for values in made) / len(made),
        "train/padding": 1.0 - _filled(read),
    }


def _filled(metrics: list[Any]) -> float:
    """The share of the rows' places that hold real tokens."""
    return sum(int(values["real_tokens"]) for values in metrics) / sum(
        int(values["num_positions"]) for values in metrics
    )


def _speed(run: RunContext, program: PhaseProgram, step: int, metrics: list[Any], seconds: float) -> dict[str, float]:
    """Throughput in real tokens, and what follows from it."""
    tokens = sum(int(values["real_tokens"]) for values in metrics)
    figures = {
        "train/tokens_per_second": tokens / seconds,
        "train/seconds_per_step": seconds / len(metrics),
        "train/eta_seconds": seconds / len(metrics) * (run.config.num_steps - step),
    }
    if run.peak_flops is not None:
        figures["train/mfu"] = tokens / seconds * program.flops_per_token(_filled(metrics)) / run.peak_flops
    return figures
