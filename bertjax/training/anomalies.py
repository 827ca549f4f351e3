"""Numbers that are none, and losses that jump: what is said of them, what is kept, and how a run goes round them."""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from bertjax.config.training import FaultConfig
from bertjax.errors import UserError, comma_list
from bertjax.io import atomic
from bertjax.types import Batch

FOLDER = "anomalies"
WATCHED = 128
"""Updates whose losses say what is usual; a quarter of them must be known before anything is called a spike."""
NORMAL = 1.4826
"""Standard deviations of a normal distribution in one median distance from its median."""
LEAST_SPREAD = 1e-3
"""A loss that hardly moves is taken to vary by this share of it: rounding is no spike."""
MOST_FILES = 32
"""Batches written to the work folder by one process; a thousand would tell no more."""
_NAMED_AT_MOST = 4


class NonFiniteLossError(UserError):
    """Training diverged; the checkpoints before it are intact."""


class Anomaly(NamedTuple):
    """What was wrong with the batch at `cursor`, from which update `step` was to be made."""

    step: int
    cursor: int
    reason: str
    loss: float
    grad_norm: float
    sums: dict[str, float]
    gradients: tuple[str, ...]  # per-layer paths of those that are not finite
    weights: tuple[str, ...]  # the same of the weights after the update

    def describe(self) -> str:
        """All of it in one line."""
        sums = ", ".join(f"{name} {value:.4g}" for name, value in self.sums.items())
        # Clipping spreads what is wrong with one gradient over all weights: they tell nothing then.
        kind, paths = ("gradient", self.gradients) if self.gradients else ("weight", self.weights)
        where = f"; {kind} not finite: {comma_list(paths, _NAMED_AT_MOST)}" if paths else ""
        return f"{self.reason} at step {self.step} (batch {self.cursor}; sums: {sums}{where})"


class RollbackRequest(Exception):
    """Asks the loop to go back to a checkpoint because of `fault`."""

    def __init__(self, fault: Anomaly):
        self.fault = fault
        super().__init__(fault.describe())


def diagnose_step(step: int, cursor: int, values: Mapping[str, Any], names: Sequence[str], spike: str = "") -> Anomaly:
    """What the figures of a step, read from the device, say of it; `names` are `layer_names`."""

    def broken(figure: str) -> tuple[str, ...]:
        return tuple(name for name, value in zip(names, values[figure], strict=True) if not math.isfinite(value))

    loss, norm = float(values["loss"]), float(values["grad_norm"])
    gradients, weights = broken("grad_squares"), broken("weight_sums")
    reason = spike or ("a weight" if weights else "the memory carried to the next batch") + " is not finite"
    if not math.isfinite(loss):
        reason = f"loss is {loss}"
    elif not math.isfinite(norm):
        reason = f"grad_norm is {norm}"
    sums = {name: float(total.value) for name, total in values["sums"].items()}
    return Anomaly(step, cursor, reason, loss, norm, sums, gradients, weights)


def write_batch(workdir: Path, fault: Anomaly, batch: Batch) -> str:
    """Writes the batch, and `report` in JSON, to `anomalies/step-N-batch-C.npz` atomically; says where it is."""
    own = f"-process-{jax.process_index()}" if jax.process_count() > 1 else ""  # each has its own rows
    path = workdir / FOLDER / f"step-{fault.step}-batch-{fault.cursor}{own}.npz"
    arrays: dict[str, Any] = {**batch, "report": _as_json(fault)}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic.atomic_file(path) as file:
            np.savez(file, **arrays)
    except OSError as error:
        return f"its batch could not be written: {error.strerror}"
    return f"its batch is in {path}"


def _as_json(fault: Anomaly) -> str:
    """JSON has no NaN: such numbers are text."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: plain(each) for name, each in value.items()}
        return str(value) if isinstance(value, float) and not math.isfinite(value) else value

    return json.dumps(plain(fault._asdict()), indent=1)


class BatchSkip(NamedTuple):
    """At the checkpoint of `step`, whose next batch was `from_batch`, the run went on with batch `to_batch`."""

    step: int
    from_batch: int
    to_batch: int
    reason: str


def read_batch_skips(workdir: Path, step: int) -> list[BatchSkip]:
    """The jumps that a run has made from checkpoints up to that of `step`: those from later ones are undone."""
    path = _journal(workdir)
    try:
        jumps = [BatchSkip(**each) for each in json.loads(path.read_text(encoding="utf-8"))] if path.exists() else []
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise UserError(
            f"{path} cannot be read ({error}); bring it back, or delete it to find its faults anew"
        ) from None
    return [jump for jump in jumps if jump.step <= step]


def write_batch_skips(workdir: Path, jumps: Iterable[BatchSkip]) -> None:
    """Replaces the journal of the run, by the first process alone; a run without jumps has none."""
    if jax.process_index() != 0:
        return
    path, entries = _journal(workdir), [jump._asdict() for jump in jumps]
    if not entries:
        path.unlink(missing_ok=True)
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic.write_json(path, entries)
    except OSError as error:
        raise UserError(f"{path} could not be written: {error.strerror}; the same command resumes") from error


def _journal(workdir: Path) -> Path:
    return workdir / FOLDER / "batch_skips.json"


class AnomalyTracker:
    """What the faults of a run have come to, and what is usual; a pure function of the updates made so far.

    `restored_meta` is the `record` saved with the checkpoint that the run goes on from, `jumps` the journal.
    """

    def __init__(
        self, config: FaultConfig, restored_meta: Mapping[str, Any], jumps: Iterable[BatchSkip], skipped: int, row: int
    ):
        self.config = config
        self.skipped, self.consecutive_skipped = skipped, row
        self.spikes = int(restored_meta.get("spikes", 0))
        self.losses: deque[float] = deque(restored_meta.get("losses", ()), maxlen=WATCHED)
        self.jumps = list(jumps)
        self.files_left = MOST_FILES

    def record(self) -> dict[str, Any]:
        """What a checkpoint must say, in JSON."""
        return {
            "spikes": self.spikes,
            "losses": list(self.losses),
            "batch_skips": [jump._asdict() for jump in self.jumps],
        }

    def figures(self) -> dict[str, float]:
        """Counts since the beginning of the run, of what the config watches."""
        counts = {}
        if self.config.on_nonfinite == "skip" or self.skipped:
            counts["train/skipped"] = float(self.skipped)
        if self.config.on_nonfinite == "rollback" or self.jumps:
            counts["train/rollbacks"] = float(len(self.jumps))
        if self.config.spike_factor is not None:
            counts["train/spikes"] = float(self.spikes)
        return counts

    def spike(self, loss: float) -> str:
        """Takes note of a loss, a finite one; in words if it lies far above those before it, else nothing.

        Spikes join those that come after: the median does not feel one, and a loss that stays high becomes usual.
        """
        if self.config.spike_factor is None:
            return ""
        said = ""
        if len(self.losses) >= WATCHED // 4:
            median = float(np.median(self.losses))
            spread = NORMAL * float(np.median(np.abs(np.asarray(self.losses) - median)))
            spread = max(spread, LEAST_SPREAD * abs(median))
            if loss > median + self.config.spike_factor * spread:
                said = f"loss {loss:.4g} is a spike ({(loss - median) / spread:.1f} deviations above {median:.4g})"
                self.spikes += 1
        self.losses.append(loss)
        return said

    def forget_losses(self) -> None:
        """Rows of another kind follow, with losses of their own."""
        self.losses.clear()

    def cursor_at(self, step: int, cursor: int) -> int:
        """Where a run goes on from the checkpoint of `step` whose next batch was `cursor`."""
        return max([cursor, *(jump.to_batch for jump in self.jumps if (jump.step, jump.from_batch) == (step, cursor))])
