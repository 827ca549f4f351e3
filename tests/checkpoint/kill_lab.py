"""A process that saves checkpoints until it is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path


def kill_after_lines(program: str, folder: Path, lines: int, seconds: float = 0.0) -> None:
    """Runs the program on the folder, and sends SIGKILL some seconds after it has printed some number of lines."""
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program), str(folder)],
        stdout=subprocess.PIPE,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        text=True,
    )
    assert child.stdout is not None
    for _ in range(lines):
        assert child.stdout.readline()
    time.sleep(seconds)
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
