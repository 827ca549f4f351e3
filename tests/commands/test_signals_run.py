"""SIGTERM and SIGINT at every kind of moment: a documented exit code, at most one step lost, the same weights (P14)."""

from __future__ import annotations

import hashlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lab import Finished, Lab

from bertjax.checkpoint.manager import Checkpoints
from bertjax.experiment import pretrain
from bertjax.training import logging, loop, metric_buffer


def weights_digest(workdir: Path) -> str:
    return hashlib.sha256((workdir / "export" / "model.safetensors").read_bytes()).hexdigest()


def steps_saved(workdir: Path) -> list[int]:
    return sorted(int(entry.name) for entry in (workdir / "checkpoints").iterdir() if entry.name.isdigit())


def signalling(number: int, function: Callable, before: bool = True, at: int = 1) -> Callable:
    """Returns `function` with the signal before or after its `at`-th call."""
    calls: list[int] = []

    def called(*arguments: Any, **named: Any) -> Any:
        calls.append(1)
        if before and len(calls) == at:
            os.kill(os.getpid(), number)
        result = function(*arguments, **named)
        if not before and len(calls) == at:
            os.kill(os.getpid(), number)
        return result

    return called


# Interrupted function, signal, and the step on the disk when the process has ended. The run continues
# from one case to the next; saves are due at 2, 4, 6, 8, evaluations at 4 and 8.
MOMENTS = [
    ("before the first step", metric_buffer.MetricBuffer, "start_phase", True, 1, signal.SIGTERM, 1),
    ("in a step", logging.Console, "advance", False, 1, signal.SIGINT, 2),
    ("in an evaluation", loop.TrainLoop, "evaluate", True, 1, signal.SIGTERM, 5),
    ("before a save", Checkpoints, "save", True, 1, signal.SIGINT, 7),
]


def test_a_signal_at_any_moment_saves_and_the_next_run_goes_on(
    lab: Lab, finished: Finished, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    workdir = lab.folder / "signalled"
    for moment, owner, name, before, at, number, saved in MOMENTS:
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, signalling(number, getattr(owner, name), before, at))
            assert lab.run("pretrain", "--workdir", workdir) == 128 + number, moment
        output = capsys.readouterr().err
        assert f"stopped by {number.name}; saved at step {saved}, the same command resumes" in output, moment
        assert steps_saved(workdir)[-1] == saved, moment
    with monkeypatch.context() as patch:  # trained, but not yet exported: there is nothing to save
        patch.setattr(pretrain, "export_run", signalling(signal.SIGINT, pretrain.export_run))
        usual = signal.signal(signal.SIGINT, signal.default_int_handler)  # a worker of pytest-xdist ignores it
        try:
            assert lab.run("pretrain", "--workdir", workdir) == 128 + signal.SIGINT
        finally:
            signal.signal(signal.SIGINT, usual)
    assert steps_saved(workdir)[-1] == 8 and not (workdir / "export").exists()
    assert lab.run("pretrain", "--workdir", workdir) == 0
    assert weights_digest(workdir) == weights_digest(finished.workdir)


INTERRUPTED_WHILE_COLLECTING = """
import gc, signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in what a shell has sent to the background
import bertjax.experiment.config
from bertjax.cli import main

def check(cfg):
    gc.callbacks.append(lambda *_: signal.raise_signal(signal.SIGINT))
    gc.collect()

bertjax.experiment.config.parse = check
main()
print("went on")
"""


@pytest.mark.long
def test_ctrl_c_in_a_callback_of_python_is_not_lost(lab: Lab, tmp_path: Path) -> None:
    """P14: jax has such a callback, and Python ignores exceptions in it."""
    command = [sys.executable, "-c", INTERRUPTED_WHILE_COLLECTING, "prepare", "--config", str(lab.config)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert (done.returncode, done.stdout) == (130, "") and done.stderr == "interrupted\n"


@pytest.mark.weekly
def test_signals_to_a_process_lose_at_most_a_step(lab: Lab, tmp_path: Path) -> None:
    """Includes start-up and compilation; some signals are followed by a second one."""
    steps = ["--config.train.num_steps=200", "--config.checkpoint.interval_steps=20", "--config.eval.interval_steps=15"]
    command = [sys.executable, "-m", "bertjax", "pretrain", "--config", str(lab.config), *steps, "--workdir"]
    draw, workdir, saved = random.Random(0), tmp_path / "stopped", 0
    for lines, number, twice in ROUNDS:
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        process = subprocess.Popen([*command, str(workdir)], preexec_fn=default_interrupt, **pipes)
        assert process.stdout is not None
        for _ in range(lines):  # three before the first step, one every two steps, one for an evaluation
            assert process.stdout.readline()
        time.sleep(draw.uniform(0.0, 0.5 if lines else 3.0))
        process.send_signal(number)
        if twice:
            process.send_signal(signal.SIGTERM)
        _, output = process.communicate(timeout=300)
        # During start-up no handler is installed: the system ends the process, which a shell also reports as 143.
        assert process.returncode in (128 + number, 143, -number, -signal.SIGTERM), output
        if "saved at step" in output:
            saved += 1
            assert f"saved at step {steps_saved(workdir)[-1]}," in output
    assert saved >= 2
    for folder in ("stopped", "whole"):
        subprocess.run([*command, str(tmp_path / folder)], check=True, capture_output=True)
    assert weights_digest(workdir) == weights_digest(tmp_path / "whole")


def default_interrupt() -> None:
    """Undoes what a shell does to processes in the background, which ignore SIGINT."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


ROUNDS = [
    (0, signal.SIGTERM, False),
    (3, signal.SIGTERM, False),
    (8, signal.SIGINT, False),
    (6, signal.SIGTERM, True),
    (0, signal.SIGINT, False),
    (7, signal.SIGTERM, False),
]
"""Lines of output after which a signal is sent, the signal, and whether another one follows at once."""
