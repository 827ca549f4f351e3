"""Where figures go: `metrics.jsonl` always, TensorBoard and Weights & Biases if asked for, and the terminal."""

from __future__ import annotations

import contextlib
import sys
import time
from pathlib import Path
from typing import Any, Protocol

from bertjax.errors import UserError
from bertjax.io.progress_bar import ProgressBar
from bertjax.metrics import Metrics


class MetricWriter(Protocol):
    def write(self, step: int, metrics: Metrics, /) -> None: ...

    def rewind(self, step: int) -> None:
        """The run goes back to `step` and writes what came after it anew."""

    def close(self) -> None: ...


class TensorBoardWriter:
    """Event files below `folder`; a resumed run hides the events it is going to write again.

    Written at once and by this thread: the library's own thread dies when the disk is full, and who fills its queue
    then waits for ever.
    """

    def __init__(self, folder: Path, step: int):
        self._folder = folder
        self._open(step + 1 if step else None)

    def _open(self, hidden_from: int | None) -> None:
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto.event_pb2 import Event, SessionLog

        self._folder.mkdir(parents=True, exist_ok=True)
        number = sum(1 for _ in self._folder.iterdir())  # two of the same second must not have the same name
        self._events = EventsWriter(str(self._folder / "events"), f".{number}")
        if hidden_from is not None:
            start = SessionLog(status=SessionLog.START)
            self._events.write_event(Event(wall_time=time.time(), step=hidden_from, file_version="brain.Event:2"))
            self._events.write_event(Event(wall_time=time.time(), step=hidden_from, session_log=start))
        self._events.flush()

    def write(self, step: int, figures: Metrics) -> None:
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.summary import scalar

        for name, value in figures.items():
            self._events.write_event(Event(wall_time=time.time(), step=step, summary=scalar(name, value)))
        self._events.flush()

    def rewind(self, step: int) -> None:
        self.close()
        self._open(step + 1)

    def close(self) -> None:
        with contextlib.suppress(OSError):  # what a full disk did not take, `write` has told
            self._events.close()


class WandbWriter:
    """One W&B run for a work folder, taken up again on resume."""

    def __init__(self, project: str, workdir: Path, config: dict[str, Any]):
        try:
            import wandb
        except ImportError:
            raise UserError("logging.wandb_project is set but wandb is missing; pip install 'bertjax[wandb]'") from None
        identity = workdir / "wandb_id"
        if not identity.exists():
            identity.write_text(wandb.util.generate_id())
        self._run = wandb.init(
            project=project, id=identity.read_text(), resume="allow", dir=str(workdir), name=workdir.name, config=config
        )

    def write(self, step: int, figures: Metrics) -> None:
        self._run.log(dict(figures), step=step)

    def rewind(self, step: int) -> None:
        """W&B takes no step twice: the figures up to where the run was go missing there, with its own warning."""

    def close(self) -> None:
        self._run.finish()


class Console:
    """A progress bar and the figures below it on a terminal, plain lines elsewhere (a log needs no escape codes)."""

    def __init__(self, step: int, num_steps: int, interactive: bool | None = None):
        self.num_steps = num_steps
        self._bar = ProgressBar(total=num_steps, file=sys.stdout, keep=True, interactive=interactive)
        self._bar.update(step, text="compiling")

    def print(self, text: str) -> None:
        self._bar.print(text)

    def advance(self, step: int) -> None:
        """Moves the bar; call it at every step."""
        self._bar.update(step)

    def train(self, step: int, figures: Metrics) -> None:
        text = train_line(figures)
        self._bar.update(step, text=text)
        if not self._bar.interactive:
            self._bar.print(f"step {step}/{self.num_steps}  {text}")

    def close(self) -> None:
        self._bar.close()


def train_line(figures: Metrics) -> str:
    """The figures of one window, short enough for a terminal."""
    parts = [f"loss {figures['train/loss']:.3f}"]
    for name in _losses(figures, "train"):
        right = figures.get(f"train/{name}_accuracy")
        parts.append(f"{name} {figures[f'train/{name}_loss']:.3f}" + ("" if right is None else f" acc {right:.3f}"))
    parts.append(f"lr {figures['train/learning_rate']:.2e}")
    if "train/tokens_per_second" in figures:
        parts.append(f"{_thousands(figures['train/tokens_per_second'])} tokens/s")
    parts.append(f"padding {100 * figures['train/padding']:.1f} %")
    if "train/mfu" in figures:
        parts.append(f"MFU {100 * figures['train/mfu']:.1f} %")
    if "train/eta_seconds" in figures:
        parts.append(f"ETA {duration(figures['train/eta_seconds'])}")
    return "  ".join(parts)


SCORES = ("accuracy", "exact_match", "f1", "macro_f1", "matthews", "pearson", "spearman")
"""What tasks are scored by, under their own names."""


def eval_line(figures: Metrics, prefix: str = "eval") -> str:
    """A held-out evaluation in words: a loss of words beside what guessing by frequency costs on the same tokens."""
    parts = []
    for name in _losses(figures, prefix):
        loss, right = figures[f"{prefix}/{name}_loss"], figures.get(f"{prefix}/{name}_accuracy")
        unigram = figures.get(f"{prefix}/{name}_unigram_loss")
        if unigram is None:
            parts.append(f"{name} loss {loss:.3f}" + ("" if right is None else f", accuracy {right:.3f}"))
            continue
        verdict = f"{abs(unigram - loss):.3f} {'better' if loss < unigram else 'worse'} than guessing by frequency"
        parts.append(f"{name} {loss:.3f} nats, {verdict} ({unigram:.3f})")
        parts += [] if right is None else [f"accuracy {right:.3f}"]
    named = ((name, figures.get(f"{prefix}/{name}")) for name in SCORES)
    parts += [f"{name} {value:.3f}" for name, value in named if value is not None]
    return "  ".join(parts)


def _losses(figures: Metrics, prefix: str) -> list[str]:
    """The names of the losses that figures hold, those of words first."""
    ending = "_loss"
    names = [
        key.removeprefix(f"{prefix}/").removesuffix(ending)
        for key in figures
        if key.startswith(f"{prefix}/") and key.endswith(ending) and key.count("/") == prefix.count("/") + 1
    ]
    own = [name for name in names if not name.endswith("unigram")]
    return sorted(own, key=lambda name: f"{prefix}/{name}_unigram_loss" not in figures)


def duration(seconds: float) -> str:
    """1 h 02 m, 3 m 04 s, 5 s."""
    whole = round(seconds)
    if whole >= 3600:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} m"
    return f"{whole // 60} m {whole % 60:02d} s" if whole >= 60 else f"{whole} s"


def _thousands(value: float) -> str:
    return f"{value / 1e6:.2f}M" if value >= 1e6 else f"{value / 1e3:.1f}k" if value >= 1e3 else f"{value:.0f}"
