"""Is a run that was killed the run that was never stopped? SIGKILL at random moments, resume, compare the exports.

    python scripts/chaos.py --kills 50 --config configs/quickstart.py --config.train.num_steps=400 \\
        --config.checkpoint.interval_steps=5

Moments: while the corpus is `prepared` (a tenth of the kills, at the beginning), at the `start` (imports, restore,
compilation), during a `save`, or during a `step`; the last two only after a checkpoint that is newer than at the kill
before, so that the run has lost something. Every kill is followed by a look at all checkpoints: each must hold, byte
for byte, what was written. Prints what was hit, what had to be done again and the SHA-256 of both exports; exits with 1
if they differ or a checkpoint was damaged. Each of the two runs prepares in a cache of its own.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from bertjax.checkpoint.manifest import Damaged, verify

POLL = 0.005  # seconds


class Kill(NamedTuple):
    """What one kill hit: the moment, the newest checkpoint, how many steps after it were known, damaged checkpoints."""

    moment: str
    step: int
    redone: int
    damaged: list[str]


class Victim:
    """A run that is started again and again, and killed each time."""

    def __init__(self, command: list[str], folder: Path, draw: random.Random):
        folder.mkdir(parents=True)
        self.workdir, self.cache, self.draw = folder / "run", folder / "cache", draw
        self.command = [*command, "--workdir", str(self.workdir), f"--config.data.cache_dir={self.cache}"]
        self.errors = folder / "stderr"
        self.reached = 0
        self.start_seconds = 5.0  # from the start of a process to its first step, once it is known
        self.prepare_seconds = 2.0

    def finish(self) -> str:
        """Runs to the end; the digest of the exported weights."""
        subprocess.run(self.command, check=True, stdout=subprocess.DEVNULL)
        return hashlib.sha256((self.workdir / "export" / "model.safetensors").read_bytes()).hexdigest()

    def kill(self, moment: str) -> Kill:
        if moment == "prepare" and self.draw.random() < 0.5:
            shutil.rmtree(self.cache, ignore_errors=True)
        begin = time.monotonic()
        with self.errors.open("wb") as errors:
            process = subprocess.Popen(self.command, stdout=subprocess.DEVNULL, stderr=errors)
        try:
            getattr(self, f"_until_{moment}")(process)
        finally:
            process.send_signal(signal.SIGKILL)
            status = process.wait()
        if status != -signal.SIGKILL:
            said = self.errors.read_text(encoding="utf-8", errors="replace")
            raise SystemExit(f"{said}\nthe run ended (exit status {status}) before it could be killed")
        if moment in ("step", "save"):
            self.start_seconds = time.monotonic() - begin
        newest = self._newest()
        if moment in ("step", "save") and newest <= self.reached:
            raise SystemExit(f"no progress was made before the kill at step {newest}")
        self.reached = newest
        return Kill(moment, newest, max(0, self._logged() - newest), self.damaged())

    def _until_prepare(self, process: subprocess.Popen[bytes]) -> None:
        """Something came into the cache (which is emptied every other time), and preparing goes on."""
        before = set(self.cache.rglob("*"))
        self._wait(process, lambda: set(self.cache.rglob("*")) != before or self._newest() > self.reached)
        self._pause(process, self.prepare_seconds)

    def _until_start(self, process: subprocess.Popen[bytes]) -> None:
        self._pause(process, self.start_seconds)

    def _until_step(self, process: subprocess.Popen[bytes]) -> None:
        self._wait(process, lambda: self._newest() > self.reached)
        self._pause(process, 1.0)

    def _until_save(self, process: subprocess.Popen[bytes]) -> None:
        self._wait(process, lambda: self._newest() > self.reached)
        self._wait(process, lambda: any((self.workdir / "checkpoints").glob("*tmp*")))
        self._pause(process, 0.05)

    def _pause(self, process: subprocess.Popen[bytes], most: float) -> None:
        end = time.monotonic() + self.draw.uniform(0.0, most)
        while time.monotonic() < end and process.poll() is None:
            time.sleep(POLL)

    def _wait(self, process: subprocess.Popen[bytes], happened: Callable[[], bool]) -> None:
        while not happened() and process.poll() is None:
            time.sleep(POLL)

    def _steps(self) -> list[Path]:
        folder = self.workdir / "checkpoints"
        return [entry for entry in folder.iterdir() if entry.name.isdigit()] if folder.is_dir() else []

    def _newest(self) -> int:
        return max((int(entry.name) for entry in self._steps()), default=0)

    def _logged(self) -> int:
        """The last step whose figures were written; the last line may be half of one."""
        file = self.workdir / "metrics.jsonl"
        lines = file.read_bytes().split(b"\n")[:-1] if file.exists() else []
        return max((json.loads(line)["step"] for line in lines), default=0)

    def damaged(self) -> list[str]:
        found = [str(path) for path in (self.workdir / "checkpoints" / "damaged").glob("*")]
        for folder in self._steps():
            try:
                verify(folder)
            except Damaged as error:
                found.append(f"{folder}: {error}")
        return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    options, arguments = parser.parse_known_args()
    command = [sys.executable, "-m", "bertjax", "pretrain", *arguments]
    command += ["--config.export.at_end=true", "--config.train.log_interval_steps=1"]
    draw = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        whole = Victim(command, folder / "whole", draw).finish()
        victim = Victim(command, folder / "killed", draw)
        kills = []
        for number in range(options.kills):
            kills.append(victim.kill(moment_of(number, options.kills, draw)))
            print(f"{number + 1:3} {kills[-1].moment:8} newest checkpoint {kills[-1].step}", flush=True)
        killed = victim.finish()
        damaged = [line for kill in kills for line in kill.damaged] + victim.damaged()
    moments = Counter(kill.moment for kill in kills)
    print(", ".join(f"{count} kills: {moment}" for moment, count in moments.items()))
    print(f"steps known to have been done again after a kill: at most {max(kill.redone for kill in kills)}")
    print(f"damaged checkpoints: {len(damaged)}", *damaged, sep="\n")
    print(f"never stopped  {whole}\nkilled         {killed}")
    return 0 if whole == killed and not damaged else 1


def moment_of(number: int, kills: int, draw: random.Random) -> str:
    """The first tenth meets the preparation; of the others, three of four come after progress."""
    if number < max(1, kills // 10):
        return "prepare"
    return draw.choice(["start", "step", "step", "save"]) if number > max(1, kills // 10) else "step"


if __name__ == "__main__":
    sys.exit(main())
