"""Is a run that was killed the run that was never stopped? SIGKILL at random moments, resume, compare the exports.

    python scripts/kill_and_resume.py --kills 3 --config configs/bert.py:tiny --config.train.num_steps=300 ...

Every kill lands after a checkpoint that is newer than at the kill before. Prints the SHA-256 of both exports.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=1)
    options, arguments = parser.parse_known_args()
    command = [sys.executable, "-m", "bertjax", "pretrain", *arguments, "--config.export.at_end=true"]
    with tempfile.TemporaryDirectory() as folder:
        whole, killed = Path(folder) / "whole", Path(folder) / "killed"
        finish(command, whole)
        reached = 0
        for _ in range(options.kills):
            reached = kill_after_progress(command, killed, reached)
            print(f"killed after the checkpoint of step {reached}", flush=True)
        finish(command, killed)
        digests = [digest(workdir) for workdir in (whole, killed)]
    print(f"never stopped  {digests[0]}\nkilled         {digests[1]}")
    return 0 if digests[0] == digests[1] else 1


def finish(command: list[str], workdir: Path) -> None:
    subprocess.run([*command, "--workdir", str(workdir)], check=True, stdout=subprocess.DEVNULL)


def kill_after_progress(command: list[str], workdir: Path, reached: int) -> int:
    """Starts the run, kills it a little after it has saved a step beyond `reached`, and returns that step."""
    process = subprocess.Popen([*command, "--workdir", str(workdir)], stdout=subprocess.DEVNULL)
    while newest(workdir) <= reached:
        if process.poll() is not None:
            raise SystemExit(f"the run ended (exit status {process.returncode}) before it could be killed again")
        time.sleep(0.01)
    time.sleep(random.uniform(0.0, 1.0))
    process.send_signal(signal.SIGKILL)
    if process.wait() != -signal.SIGKILL:
        raise SystemExit("the run ended before the kill; give it more steps")
    return newest(workdir)


def newest(workdir: Path) -> int:
    folder = workdir / "checkpoints"
    entries = folder.iterdir() if folder.is_dir() else ()
    return max((int(entry.name) for entry in entries if entry.name.isdigit()), default=0)


def digest(workdir: Path) -> str:
    return hashlib.sha256((workdir / "export" / "model.safetensors").read_bytes()).hexdigest()


if __name__ == "__main__":
    sys.exit(main())
