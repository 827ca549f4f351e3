"""Kills a run with SIGKILL at random moments, resumes it, and compares it with an uninterrupted run.

    python scripts/chaos.py --kills 50 --config quickstart --config.train.num_steps=400 \\
        --config.checkpoint.interval_steps=4

Moments: while `prepare` writes the corpus (its cache is emptied first), at the `start` (imports, compilation), during a
`restore`, a `step`, a `save`, and once, at the end, during the `export`. Kills in steps and saves wait for a checkpoint
newer than at the previous kill, so that the run has progress to lose; the script fails if fewer than half of all kills
follow such progress. What a kill hit is inferred from the files that it left and printed next to its target. After
every kill all checkpoints must hold the bytes that were written, and the next start must resume from the newest.

At the end the exported weights (SHA-256 of the file), the arrays of the last checkpoint (weights, optimizer, counters)
and the losses of every step must equal those of an uninterrupted run. Exits with 1 otherwise. The two runs prepare
their corpora in separate caches below a temporary directory (`--folder` keeps it). Linux only.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import hashlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from bertjax.checkpoint.manifest import DamagedCheckpointError, verify_checkpoint

POLL = 0.002  # seconds
IN_OPEN = 0x20  # <sys/inotify.h>
AFTER_PROGRESS = ("step", "save")
UNTIMED = re.compile(r"^step$|loss|accuracy|grad_norm|learning_rate|padding")
"""Metrics that must be equal; the others depend on the speed of the machine."""


class Failed(Exception):
    """The run broke a promise."""


class Kill(NamedTuple):
    """One kill: target, what it hit, the newest checkpoint, and the steps after it that are lost."""

    aim: str
    hit: str
    step: int
    redone: int


class Opened:
    """Detects whether a file was opened since; false for a missing file."""

    def __init__(self, path: Path):
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._handle = self._libc.inotify_init1(os.O_NONBLOCK)
        if path.exists() and self._libc.inotify_add_watch(self._handle, os.fsencode(path), IN_OPEN) < 0:
            raise OSError(ctypes.get_errno(), "inotify_add_watch")
        self._last_access = False

    def __call__(self) -> bool:
        with contextlib.suppress(BlockingIOError):
            self._last_access = self._last_access or bool(os.read(self._handle, 4096))
        return self._last_access

    def close(self) -> None:
        os.close(self._handle)


class Run:
    """A run below `folder` with its own cache, and its state as visible from outside."""

    def __init__(self, command: list[str], folder: Path):
        folder.mkdir(parents=True)
        self.workdir, self.cache = folder / "run", folder / "cache"
        self.command = [*command, "--workdir", str(self.workdir), f"--config.data.cache_dir={self.cache}"]
        self.output, self.errors = folder / "stdout", folder / "stderr"

    def start(self) -> subprocess.Popen[bytes]:
        environment = os.environ | {"PYTHONUNBUFFERED": "1"}
        with self.output.open("wb") as text, self.errors.open("wb") as errors:
            return subprocess.Popen(self.command, stdout=text, stderr=errors, env=environment)

    def finish(self) -> None:
        """Runs from the current state to the end."""
        status = self.start().wait()
        if status != 0:
            raise Failed(f"{self._text(self.errors)}\nexit status {status}")

    def settings(self) -> tuple[int, int]:
        """Returns the steps of the run and between checkpoints."""
        config = json.loads((self.workdir / "config.json").read_text(encoding="utf-8"))
        return config["train"]["num_steps"], config["checkpoint"]["interval_steps"]

    def prepared(self) -> bool:
        return any(self.cache.glob("corpora/[!.]*/meta.json"))

    def checkpoints(self) -> list[Path]:
        folder = self.workdir / "checkpoints"
        return [entry for entry in folder.iterdir() if entry.name.isdigit()] if folder.is_dir() else []

    def newest(self) -> int:
        return max((int(entry.name) for entry in self.checkpoints()), default=0)

    def manifest(self) -> Path:
        return self.workdir / "checkpoints" / str(self.newest()) / "bertjax.json"

    def saving(self) -> bool:
        return any((self.workdir / "checkpoints").glob("*tmp*"))

    def logged(self) -> int:
        """Returns the last step whose metrics were written; the last line may be incomplete."""
        file = self.workdir / "metrics.jsonl"
        lines = file.read_bytes().split(b"\n")[-3:-1] if file.exists() else []
        return json.loads(lines[-1])["step"] if lines else 0

    def writes(self) -> int:
        """Returns a token that changes when a start begins to write metrics, which replaces the file first."""
        file = self.workdir / "metrics.jsonl"
        return file.stat().st_ino if file.exists() else 0

    def resumed_at(self) -> int | None:
        results = re.search(r"^resuming at step (\d+)$", self._text(self.output), re.MULTILINE)
        return int(results[1]) if results else None

    def require_whole_checkpoints(self) -> None:
        """Raises `Failed` if a checkpoint was set aside as damaged or is damaged."""
        if (self.workdir / "checkpoints" / "damaged").exists():
            raise Failed(f"a checkpoint was set aside as damaged: {self._text(self.errors)}")
        for folder in self.checkpoints():
            try:
                verify_checkpoint(folder)
            except DamagedCheckpointError as error:
                raise Failed(f"{folder} is damaged: {error}") from None

    def _text(self, path: Path) -> str:
        return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""


class Killer:
    """Starts a run repeatedly and kills it each time, at moments drawn from `draw`."""

    def __init__(self, run: Run, draw: random.Random, num_steps: int, interval: int):
        self.run, self.draw, self.num_steps, self.interval = run, draw, num_steps, interval
        self.reached = 0
        # From the first sign of a moment to the last instant that may still belong to it; learned from misses.
        self.spans = {"prepare": 1.5, "start": 5.0, "restore": 0.15, "save": 0.1, "export": 1.0}

    def kill(self, aim: str, progress_left: int) -> Kill:
        """Starts the run once and kills it; `progress_left` later kills wait for a newer checkpoint."""
        run, before, opened = self.run, self.run.writes(), Opened(self.run.manifest())
        if aim == "prepare" and (run.prepared() or self.draw.random() < 0.5):
            self._empty_cache()
        newest = run.newest()
        process = run.start()
        try:
            self._wait_for(aim, process, opened, progress_left)
        finally:
            process.send_signal(signal.SIGKILL)
            status = process.wait()
        if status != -signal.SIGKILL:
            raise Failed(f"{run._text(run.errors)}\nthe run ended (exit status {status}) before it could be killed")
        hit = self._hit(before, newest, opened())
        opened.close()
        if hit != aim and aim in self.spans:
            self.spans[aim] *= 0.7
        run.require_whole_checkpoints()
        if run.resumed_at() not in (None, newest):
            raise Failed(f"went on from step {run.resumed_at()}, though the newest checkpoint was of step {newest}")
        redone = max(0, run.logged() - run.newest())
        # A save is written while the steps up to the next one are made.
        if redone > 2 * self.interval:
            raise Failed(f"{redone} steps were made after the newest checkpoint, of step {run.newest()}")
        if aim in AFTER_PROGRESS and run.newest() <= self.reached:
            raise Failed(f"no progress was made before the kill at step {run.newest()}")
        self.reached = run.newest()
        return Kill(aim, hit, run.newest(), redone)

    def _hit(self, writes_before: int, newest_before: int, opened: bool) -> str:
        run = self.run
        if not run.prepared():
            return "prepare"
        if run.newest() == self.num_steps:
            return "export"
        if run.writes() != writes_before and run.logged() > newest_before:
            return "save" if run.saving() else "step"
        if opened and run.resumed_at() is None:
            return "restore"
        return "start"

    def _wait_for(self, aim: str, process: subprocess.Popen[bytes], opened: Opened, progress_left: int) -> None:
        run = self.run
        if aim == "prepare":
            before = set(run.cache.rglob("*"))
            self._wait(process, lambda: set(run.cache.rglob("*")) != before)
        elif aim == "restore":
            self._wait(process, opened)
        elif aim in AFTER_PROGRESS:
            self._wait(process, lambda: run.newest() > self.reached)
            until = run.logged() + self.draw.randint(0, self._spare(progress_left))
            self._wait(process, lambda: run.logged() >= until)
            self._wait(process, lambda: run.saving() == (aim == "save"))
        elif aim == "export":
            self._wait(process, lambda: run.newest() == self.num_steps)
        end = time.monotonic() + self.draw.uniform(0.0, self.spans.get(aim, 0.05))
        self._wait(process, lambda: time.monotonic() >= end)

    def _spare(self, progress_left: int) -> int:
        """Returns the steps that this kill may wait for, so that later kills find steps left."""
        left = self.num_steps - self.run.logged() - 3 * self.interval * (progress_left + 1)
        return max(0, min(left, 2 * left // (progress_left + 1)))

    def _empty_cache(self) -> None:
        """Empties the cache of prepared text; compiled code stays."""
        for entry in self.run.cache.iterdir() if self.run.cache.exists() else []:
            if entry.name != "xla":
                shutil.rmtree(entry)

    def _wait(self, process: subprocess.Popen[bytes], happened: Callable[[], bool]) -> None:
        while not happened() and process.poll() is None:
            time.sleep(POLL)


def moments(kills: int, draw: random.Random) -> list[str]:
    """Returns the targets: a tenth in the first preparation, half or more after progress, the last in the export."""
    first = max(1, kills // 10)
    between = draw.choices(
        ["step", "save", "restore", "start", "prepare"], [8, 7, 3, 1.5, 0.5], k=max(0, kills - first - 2)
    )
    aims = [*["prepare"] * first, *["step"] * (kills - first > 1), *between, *["export"] * (kills > first)]
    others = [number for number, aim in enumerate(aims) if aim in ("restore", "start")]
    missing = (kills + 1) // 2 - sum(aim in AFTER_PROGRESS for aim in aims)  # few kills are drawn from
    for number in others[: max(0, missing)]:
        aims[number] = draw.choice(AFTER_PROGRESS)
    return aims


def outcome(run: Run) -> dict[str, str]:
    """Returns digests of the export, of the arrays of the last checkpoint, and of the losses of a finished run."""
    import numpy as np
    import orbax.checkpoint as ocp

    arrays = hashlib.sha256()
    with ocp.StandardCheckpointer() as reader:
        for name, leaf in sorted(_leaves(reader.restore(run.manifest().parent / "state")).items()):
            array = np.asarray(leaf)
            arrays.update(f"{name} {array.dtype} {array.shape}\n".encode() + array.tobytes())
    lines = (run.workdir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    losses = [{name: value for name, value in json.loads(line).items() if UNTIMED.search(name)} for line in lines]
    return {
        "export": hashlib.sha256((run.workdir / "export" / "model.safetensors").read_bytes()).hexdigest(),
        f"arrays of step {run.newest()}": arrays.hexdigest(),
        f"metrics, {len(losses)} lines": hashlib.sha256(json.dumps(losses).encode()).hexdigest(),
    }


def _leaves(tree: Any, path: str = "") -> dict[str, Any]:
    if not isinstance(tree, dict):
        return {path: tree}
    return {name: leaf for key, branch in tree.items() for name, leaf in _leaves(branch, f"{path}/{key}").items()}


def chaos(command: list[str], folder: Path, kills: int, seed: int) -> bool:
    """Returns whether a run that was killed `kills` times ends like an uninterrupted run; prints both."""
    draw = random.Random(seed)
    begin = time.monotonic()
    whole = Run(command, folder / "whole")
    whole.finish()
    num_steps, interval = whole.settings()
    print(
        f"{num_steps} steps, a checkpoint every {interval}: {time.monotonic() - begin:.0f} s when left alone",
        flush=True,
    )
    run = Run(command, folder / "killed")
    killer, aims = Killer(run, draw, num_steps, interval), moments(kills, draw)
    done: list[Kill] = []
    for number, aim in enumerate(aims):
        left = sum(each in AFTER_PROGRESS for each in aims[number + 1 :])
        kill = killer.kill(aim, left)
        done.append(kill)
        print(f"{number + 1:3} {kill.hit:8} newest checkpoint {kill.step:4}, {kill.redone} steps lost", flush=True)
    run.finish()
    run.require_whole_checkpoints()
    seconds = time.monotonic() - begin
    _print_table(done)
    after = sum(kill.aim in AFTER_PROGRESS for kill in done)
    print(f"{len(done)} kills, {after} after a checkpoint newer than at the kill before, {seconds:.0f} s in all")
    print(f"steps done again: {sum(k.redone for k in done)}, at most {max(k.redone for k in done)} after one kill")
    print("damaged checkpoints: 0; every start went on from the newest one")
    theirs, ours = outcome(whole), outcome(run)
    for name in theirs:
        print(f"{name}\n  never stopped  {theirs[name]}\n  killed         {ours.get(name, 'missing')}")
    return theirs == ours and 2 * after >= len(done)


def _print_table(kills: list[Kill]) -> None:
    hit, aimed = Counter(kill.hit for kill in kills), Counter(kill.aim for kill in kills)
    print(f"{'moment':9}{'aimed at':>9}{'hit':>5}")
    for moment in ("prepare", "start", "restore", "step", "save", "export"):
        print(f"{moment:9}{aimed[moment]:9}{hit[moment]:5}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--folder", type=Path, help="a new folder for both runs, kept (default: a temporary one)")
    options, arguments = parser.parse_known_args()
    command = [sys.executable, "-m", "bertjax", "pretrain", *arguments]
    command += ["--config.train.log_interval_steps=1"]
    with tempfile.TemporaryDirectory() as temporary:
        try:
            return 0 if chaos(command, options.folder or Path(temporary), options.kills, options.seed) else 1
        except Failed as failure:
            print(failure, file=sys.stderr)
            return 1


if __name__ == "__main__":
    sys.exit(main())
