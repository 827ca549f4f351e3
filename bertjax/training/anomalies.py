"""Detects non-finite steps and loss spikes, records them, and applies the policy (`raise`, `skip`, `rollback`)."""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from bertjax.errors import UserError, comma_list
from bertjax.io import atomic
from bertjax.training.run_context import RunContext
from bertjax.types import Batch

FOLDER = "anomalies"
WINDOW = 128
"""Steps whose losses define the normal range; a quarter of them must be known before anything is called a spike."""
NORMAL = 1.4826
"""Standard deviation of a normal distribution per median absolute deviation."""
MIN_SPREAD = 1e-3
"""Smallest deviation, as a share of the median: the rounding of a loss that hardly moves is not a spike."""
MAX_FILES = 32
"""Batches that one process writes to the work directory."""
_MAX_NAMES = 4

ADVICE = (
    "checkpoints before it are intact; leave it out with train.skip_batches={batch}, let the run skip such batches "
    "with train.on_nonfinite=skip or rollback, or try a lower optimizer.learning_rate, longer schedule.warmup_steps or "
    "train.compute_dtype=float32"
)


class NonFiniteLossError(UserError):
    """Training diverged; the checkpoints before it are intact."""


class RollbackRequest(Exception):
    """Asks the loop to return to a checkpoint because of `anomaly`."""

    def __init__(self, anomaly: Anomaly):
        self.anomaly = anomaly
        super().__init__(anomaly.describe())


class Anomaly(NamedTuple):
    """Non-finite values or a loss spike in `step`, which was computed from the batch at `cursor`."""

    step: int
    cursor: int
    reason: str
    loss: float
    grad_norm: float
    sums: dict[str, float]
    gradients: tuple[str, ...]  # per-layer paths of the non-finite gradients
    weights: tuple[str, ...]  # per-layer paths of the weights that are non-finite after the step

    def describe(self) -> str:
        """Returns a one-line description."""
        sums = ", ".join(f"{name} {value:.4g}" for name, value in self.sums.items())
        # Clipping spreads one non-finite gradient over all weights: their names say nothing then.
        kind, paths = ("gradient", self.gradients) if self.gradients else ("weight", self.weights)
        where = f"; {kind} not finite: {comma_list(paths, _MAX_NAMES)}" if paths else ""
        return f"{self.reason} at step {self.step} (batch {self.cursor}; sums: {sums}{where})"


def diagnose_step(step: int, cursor: int, metrics: Mapping[str, Any], names: Sequence[str], spike: str = "") -> Anomaly:
    """Describes the anomaly of a step.

    Args:
        step: Number of the step, counted from 1.
        cursor: Index of its batch.
        metrics: Metrics of `step.train_step`, on the host.
        names: Paths of `step.layer_names`.
        spike: Description of a loss spike; empty for non-finite values.

    Returns:
        The first reason that applies: the loss, the gradient norm, a weight, the carry.
    """

    def nonfinite(key: str) -> tuple[str, ...]:
        return tuple(name for name, value in zip(names, metrics[key], strict=True) if not math.isfinite(value))

    loss, norm = float(metrics["loss"]), float(metrics["grad_norm"])
    gradients, weights = nonfinite("grad_squares"), nonfinite("weight_sums")
    reason = spike or ("a weight" if weights else "the memory carried to the next batch") + " is not finite"
    if not math.isfinite(loss):
        reason = f"loss is {loss}"
    elif not math.isfinite(norm):
        reason = f"grad_norm is {norm}"
    sums = {name: float(total.value) for name, total in metrics["sums"].items()}
    return Anomaly(step, cursor, reason, loss, norm, sums, gradients, weights)


def write_batch(workdir: Path, anomaly: Anomaly, batch: Batch) -> str:
    """Writes a batch and a JSON `report` to `anomalies/step-N-batch-C.npz`.

    Args:
        workdir: Work directory of the run.
        anomaly: Content of the report.
        batch: This process's sequences [B, ...] of the batch.

    Returns:
        A sentence for the console: where the file is, or why there is none.
    """
    suffix = f"-process-{jax.process_index()}" if jax.process_count() > 1 else ""  # each has its own sequences
    path = workdir / FOLDER / f"step-{anomaly.step}-batch-{anomaly.cursor}{suffix}.npz"
    arrays: dict[str, Any] = {**batch, "report": json.dumps(_without_nan(anomaly._asdict()), indent=1)}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic.atomic_file(path) as file:
            np.savez(file, **arrays)
    except OSError as error:
        return f"its batch could not be written: {error.strerror}"
    return f"its batch is in {path}"


def _without_nan(value: Any) -> Any:
    """Replaces non-finite numbers by text: JSON has none."""
    if isinstance(value, dict):
        return {name: _without_nan(each) for name, each in value.items()}
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


class BatchSkip(NamedTuple):
    """A rollback to the checkpoint of `step`: the run went on with batch `to_batch` instead of `from_batch`."""

    step: int
    from_batch: int
    to_batch: int
    reason: str


def read_batch_skips(workdir: Path, step: int) -> list[BatchSkip]:
    """Reads the rollbacks of a run to checkpoints up to that of `step`; a return to `step` undoes later ones.

    Raises:
        UserError: The file is damaged.
    """
    path = _skips_file(workdir)
    try:
        skips = [BatchSkip(**each) for each in json.loads(path.read_text(encoding="utf-8"))] if path.exists() else []
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise UserError(
            f"{path} cannot be read ({error}); restore it, or delete it to detect its anomalies again"
        ) from None
    return [skip for skip in skips if skip.step <= step]


def write_batch_skips(workdir: Path, skips: Iterable[BatchSkip]) -> None:
    """Replaces the file of rollbacks, on the first process, or deletes it where there are none.

    Raises:
        UserError: The disk is full or cannot be written to.
    """
    if jax.process_index() != 0:
        return
    path, entries = _skips_file(workdir), [skip._asdict() for skip in skips]
    if not entries:
        path.unlink(missing_ok=True)
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic.write_json(path, entries)
    except OSError as error:
        raise UserError(f"{path} could not be written: {error.strerror}; the same command resumes") from error


def _skips_file(workdir: Path) -> Path:
    return workdir / FOLDER / "batch_skips.json"


class AnomalyTracker:
    """Checks every step for non-finite values and loss spikes; a pure function of the steps so far.

    Args:
        run: Gives the policy, the console, and the batches to write.
        names: Paths of `step.layer_names`.
        meta: `meta()` of the checkpoint that the run resumes from.
        batch_skips: Rollbacks so far.
        skipped: Number of batches skipped so far, and
        consecutive_skipped: since the last step that was not.
    """

    def __init__(
        self,
        run: RunContext,
        names: Sequence[str],
        meta: Mapping[str, Any],
        batch_skips: Iterable[BatchSkip] = (),
        skipped: int = 0,
        consecutive_skipped: int = 0,
    ):
        self._run, self._names, self.config = run, names, run.config.train
        self.skipped, self.consecutive_skipped = skipped, consecutive_skipped
        self.spikes = int(meta.get("spikes", 0))
        self.losses: deque[float] = deque(meta.get("losses", ()), maxlen=WINDOW)
        self.batch_skips = list(batch_skips)
        self.files_left = MAX_FILES

    def meta(self) -> dict[str, Any]:
        """Returns the state to store with a checkpoint, in JSON types."""
        skips = [skip._asdict() for skip in self.batch_skips]
        return {"spikes": self.spikes, "losses": list(self.losses), "batch_skips": skips}

    def metrics(self) -> dict[str, float]:
        """Returns the counts since the start of the run, of what the config looks for."""
        counts = {}
        if self.config.on_nonfinite == "skip" or self.skipped:
            counts["train/skipped"] = float(self.skipped)
        if self.config.on_nonfinite == "rollback" or self.batch_skips:
            counts["train/rollbacks"] = float(len(self.batch_skips))
        if self.config.spike_factor is not None:
            counts["train/spikes"] = float(self.spikes)
        return counts

    def check(self, step: int, cursor: int, metrics: Mapping[str, Any]) -> None:
        """Checks a step, prints its anomaly, and writes its batch.

        Args:
            step: Number of the step, counted from 1.
            cursor: Index of its batch.
            metrics: Metrics of `step.train_step`, on the host. `applied` is False where the step was refused.

        Raises:
            NonFiniteLossError: `train.on_nonfinite` is `raise`, or too many consecutive batches were skipped.
            RollbackRequest: `train.on_nonfinite` is `rollback`.
        """
        policy, console = self.config.on_nonfinite, self._run.console
        if metrics["applied"]:
            self.consecutive_skipped = 0
            if spike := self.detect_spike(float(metrics["loss"])):
                anomaly = diagnose_step(step, cursor, metrics, self._names, spike)
                console.print(f"{anomaly.describe()}; {self._save_batch(anomaly)}")
                if policy == "rollback":
                    raise RollbackRequest(anomaly)
            return
        anomaly = diagnose_step(step, cursor, metrics, self._names)
        message = f"{anomaly.describe()}; {self._save_batch(anomaly)}"
        if policy == "raise":
            raise NonFiniteLossError(f"{message}; {ADVICE.format(batch=cursor)}")
        if policy == "rollback":
            console.print(message)
            raise RollbackRequest(anomaly)
        self.skipped, self.consecutive_skipped = self.skipped + 1, self.consecutive_skipped + 1
        console.print(f"skipped a batch: {message}")
        if self.consecutive_skipped >= self.config.max_nonfinite:
            count, advice = self.consecutive_skipped, ADVICE.format(batch=cursor)
            raise NonFiniteLossError(
                f"{count} consecutive batches skipped (train.max_nonfinite), the last one: {message}; {advice}"
            )

    def detect_spike(self, loss: float) -> str:
        """Records a finite loss; returns a description if it lies far above the losses before it, else "".

        The range is the median and the median absolute deviation of the last `WINDOW` losses. Spikes are among them: a
        single one does not move the median, and a loss that stays high becomes normal.
        """
        if self.config.spike_factor is None:
            return ""
        description = ""
        if len(self.losses) >= WINDOW // 4:
            median = float(np.median(self.losses))
            spread = NORMAL * float(np.median(np.abs(np.asarray(self.losses) - median)))
            spread = max(spread, MIN_SPREAD * abs(median))
            if loss > median + self.config.spike_factor * spread:
                deviations = (loss - median) / spread
                description = f"loss {loss:.4g} is a spike ({deviations:.1f} deviations above {median:.4g})"
                self.spikes += 1
        self.losses.append(loss)
        return description

    def next_cursor(self, step: int, cursor: int) -> int:
        """Returns the batch with which a run resumes from the checkpoint of `step`, whose next batch was `cursor`."""
        skips = (skip.to_batch for skip in self.batch_skips if (skip.step, skip.from_batch) == (step, cursor))
        return max([cursor, *skips])

    def _save_batch(self, anomaly: Anomaly) -> str:
        """Makes the batch again from its cursor, and writes it."""
        if self.files_left == 0:
            return "its batch is not written: there are many already"
        self.files_left -= 1
        batches = self._run.batches.prefetch(anomaly.cursor, anomaly.cursor + 1)
        try:
            (_, batch) = next(iter(batches))
        finally:
            batches.close()
        return write_batch(self._run.workdir, anomaly, batch)
