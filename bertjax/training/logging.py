"""Writers of metrics: `metrics.jsonl` (`io.jsonl.JsonlLog`), TensorBoard, Weights & Biases, and the console.

TensorBoard's event files hold scalars as records of protocol buffers. A record is its length, the length's checksum, an
`Event`, and that one's checksum (tensorflow:core/lib/io/record_writer.h, core/util/event.proto,
core/framework/summary.proto). The libraries that write them import torch and the clients of cloud stores where these
are installed, which takes seconds at the start of every run.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from bertjax.io.progress_bar import ProgressBar
from bertjax.metrics import Metrics


class MetricWriter(Protocol):
    """Stores metrics by step."""

    def write(self, step: int, metrics: Metrics, /) -> None:
        """Writes the metrics of a step."""

    def rewind(self, step: int) -> None:
        """Drops what was written after `step`: the run returned to it."""

    def close(self) -> None:
        """Writes what is buffered and ends."""


class TensorBoardWriter:
    """Event files in `folder`; a resumed run marks the events after `step` as obsolete."""

    def __init__(self, folder: Path, step: int):
        self._folder = folder
        self._events = EventFile(folder, step + 1 if step else None)

    def write(self, step: int, metrics: Metrics) -> None:
        self._events.write(step, metrics)

    def rewind(self, step: int) -> None:
        """Begins an event file that marks the events after `step` as obsolete."""
        self.close()
        self._events = EventFile(self._folder, step + 1)

    def close(self) -> None:
        with contextlib.suppress(OSError):  # `write` has reported a full disk
            self._events.close()


class WandbWriter:
    """One W&B run per work directory, continued on resume."""

    def __init__(self, project: str, workdir: Path, config: dict[str, Any]):
        import wandb

        identity = workdir / "wandb_id"
        if not identity.exists():
            identity.write_text(wandb.util.generate_id())
        self._run = wandb.init(
            project=project, id=identity.read_text(), resume="allow", dir=str(workdir), name=workdir.name, config=config
        )

    def write(self, step: int, metrics: Metrics) -> None:
        self._run.log(dict(metrics), step=step)

    def rewind(self, step: int) -> None:
        """Does nothing: W&B accepts no step twice, so the repeated steps are missing there, with its own warning."""

    def close(self) -> None:
        self._run.finish()


class Console:
    """Progress bar with the metrics below it on a terminal; plain lines elsewhere."""

    def __init__(self, step: int, num_steps: int, interactive: bool | None = None):
        self.num_steps = num_steps
        self._bar = ProgressBar(total=num_steps, file=sys.stdout, keep=True, interactive=interactive)
        self._bar.update(step, text="compiling")

    def print(self, text: str) -> None:
        """Prints a line above the progress bar."""
        self._bar.print(text)

    def advance(self, step: int) -> None:
        """Moves the bar; to be called at every step."""
        self._bar.update(step)

    def train(self, step: int, metrics: Metrics) -> None:
        """Shows the metrics of a step in the progress bar, or as a line where there is no terminal."""
        text = train_line(metrics)
        self._bar.update(step, text=text)
        if not self._bar.interactive:
            self._bar.print(f"step {step}/{self.num_steps}  {text}")

    def close(self) -> None:
        """Ends the progress bar."""
        self._bar.close()


def train_line(metrics: Metrics) -> str:
    """Returns the metrics since the last report in one line of a terminal."""
    parts = [f"loss {metrics['train/loss']:.3f}"]
    names = _losses(metrics, "train")
    for name in names:
        accuracy = metrics.get(f"train/{name}_accuracy")
        suffix = "" if accuracy is None else f" acc {accuracy:.3f}"
        if len(names) == 1 and metrics["train/loss"] == metrics[f"train/{name}_loss"]:
            parts[0] += suffix
        else:
            parts.append(f"{name} {metrics[f'train/{name}_loss']:.3f}{suffix}")
    parts.append(f"lr {metrics['train/learning_rate']:.2e}")
    if "train/tokens_per_second" in metrics:
        parts.append(f"{_thousands(metrics['train/tokens_per_second'])} tokens/s")
    parts.append(f"padding {100 * metrics['train/padding']:.1f} %")
    if "train/mfu" in metrics:
        parts.append(f"MFU {100 * metrics['train/mfu']:.1f} %")
    if "train/eta_seconds" in metrics:
        parts.append(f"ETA {duration(metrics['train/eta_seconds'])}")
    return "  ".join(parts)


SCORES = ("accuracy", "exact_match", "f1", "macro_f1", "matthews", "pearson", "spearman", "bleu", "chrf", "rougeL")
"""Scores of tasks, which have no prefix."""


def eval_line(metrics: Metrics, prefix: str = "eval") -> str:
    """Returns an evaluation in one line: losses with a unigram baseline are compared with it.

    Args:
        metrics: Metrics of an evaluation.
        prefix: `eval`, or `eval/<set>`.
    """
    parts = []
    for name in _losses(metrics, prefix):
        loss, accuracy = metrics[f"{prefix}/{name}_loss"], metrics.get(f"{prefix}/{name}_accuracy")
        unigram = metrics.get(f"{prefix}/{name}_unigram_loss")
        if unigram is None:
            parts.append(f"{name} loss {loss:.3f}" + ("" if accuracy is None else f", accuracy {accuracy:.3f}"))
            continue
        verdict = f"{abs(unigram - loss):.3f} {'better' if loss < unigram else 'worse'} than guessing by frequency"
        parts.append(f"{name} {loss:.3f} nats, {verdict} ({unigram:.3f})")
        parts += [] if accuracy is None else [f"accuracy {accuracy:.3f}"]
    named = ((name, metrics.get(f"{prefix}/{name}")) for name in SCORES)
    parts += [f"{name} {value:.3f}" for name, value in named if value is not None]
    return "  ".join(parts)


def _losses(metrics: Metrics, prefix: str) -> list[str]:
    """Returns the names of the losses, those with a unigram baseline first."""
    ending = "_loss"
    names = [
        key.removeprefix(f"{prefix}/").removesuffix(ending)
        for key in metrics
        if key.startswith(f"{prefix}/") and key.endswith(ending) and key.count("/") == prefix.count("/") + 1
    ]
    losses = [name for name in names if not name.endswith("unigram")]
    return sorted(losses, key=lambda name: f"{prefix}/{name}_unigram_loss" not in metrics)


def duration(seconds: float) -> str:
    """Returns `1 h 02 m`, `3 m 04 s`, or `5 s`."""
    whole = round(seconds)
    if whole >= 3600:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} m"
    return f"{whole // 60} m {whole % 60:02d} s" if whole >= 60 else f"{whole} s"


def _thousands(value: float) -> str:
    return f"{value / 1e6:.2f}M" if value >= 1e6 else f"{value / 1e3:.1f}k" if value >= 1e3 else f"{value:.0f}"


_VERSION = b"brain.Event:2"
_START = 1  # SessionLog.START: readers drop the events from this step on that came before


def _crc_table() -> list[int]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)  # Castagnoli's polynomial, reversed
        table.append(value)
    return table


_CRC_TABLE = _crc_table()


class EventFile:
    """New event file in a folder.

    Args:
        folder: Created if it does not exist.
        obsolete_from: Step whose events, and all later ones, are obsolete in earlier files; None: none are.
    """

    def __init__(self, folder: Path, obsolete_from: int | None = None):
        folder.mkdir(parents=True, exist_ok=True)
        number = sum(1 for _ in folder.iterdir())  # two of the same second must not have the same name
        name = f"events.out.tfevents.{time.time():010.0f}.{socket.gethostname()}.{number}"
        self._file = (folder / name).open("wb")
        self._write(0, _bytes(3, _VERSION))
        if obsolete_from is not None:
            self._write(obsolete_from, _bytes(7, _varint(1 << 3) + _varint(_START)))
        self._file.flush()

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Appends scalars by name.

        Raises:
            OSError: The disk is full, for example.
        """
        for name, value in scalars.items():
            with np.errstate(over="ignore"):  # beyond float32 is infinite
                number = np.asarray(value, "<f4").tobytes()
            scalar = _bytes(1, name.encode()) + _varint(2 << 3 | 5) + number
            self._write(step, _bytes(5, _bytes(1, scalar)))
        self._file.flush()

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def _write(self, step: int, content: bytes) -> None:
        """Appends an event: the wall time in seconds (field 1), the step (2), and its content."""
        event = _varint(1 << 3 | 1) + struct.pack("<d", time.time()) + _varint(2 << 3) + _varint(step) + content
        length = struct.pack("<Q", len(event))
        self._file.write(length + _checksum(length) + event + _checksum(event))


def _bytes(field: int, content: bytes) -> bytes:
    """Returns a field of bytes, text or a message."""
    return _varint(field << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    """Returns a number below 2**63 in groups of seven bits, the lowest first."""
    groups = bytearray()
    while value > 0x7F:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*groups, value])


def _checksum(data: bytes) -> bytes:
    """Returns the CRC-32C of data, rotated and shifted, as records hold it."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _CRC_TABLE[(crc ^ byte) & 0xFF]
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)
