"""A disk that fills up at any moment: one line, exit code 2, nothing lost, and the same command resumes (P13).

The disk is a small tmpfs where one may be mounted; elsewhere the system limits the length of files (RLIMIT_FSIZE),
which makes the same calls fail with another error number.
"""

from __future__ import annotations

import errno
import hashlib
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from lab import Finished, Lab

from bertjax.checkpoint.manifest import verify_checkpoint
from bertjax.io.jsonl import JsonlLog
from bertjax.training.logging import TensorBoardWriter

# output of orbax's other writers in the process of the tests; a separate process prints nothing, which is tested
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
STEPS = ["--config.train.num_steps=36", "--config.eval.interval_steps=36", "--config.train.log_interval_steps=1"]


class Disk:
    """A folder that can be filled and emptied."""

    def __init__(self, folder: Path):
        self.folder, self.mounted = folder, False
        folder.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", "size=30m", "tmpfs", str(folder)]
        self.mounted = os.geteuid() == 0 and subprocess.run(command, capture_output=True).returncode == 0

    def fill(self, process: subprocess.Popen[bytes] | None = None) -> None:
        if self.mounted:
            self._write_until_full()
        elif process is not None:
            resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (512, resource.RLIM_INFINITY))

    def _write_until_full(self) -> None:
        with (self.folder / "filler").open("wb", buffering=0) as file:
            for size in (1 << 16, 1):
                try:
                    while True:
                        file.write(bytes(size))
                except OSError as error:
                    assert error.errno == errno.ENOSPC

    def free_space(self) -> None:
        (self.folder / "filler").unlink(missing_ok=True)

    def close(self) -> None:
        if self.mounted:
            subprocess.run(["umount", "-l", str(self.folder)], check=True)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    disk = Disk(tmp_path / "disk")
    yield disk
    disk.close()


@pytest.fixture
def short_files() -> Iterator[None]:
    """Limits every file to 200 bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def digest(workdir: Path) -> str:
    return hashlib.sha256((workdir / "export" / "model.safetensors").read_bytes()).hexdigest()


def checkpoints(workdir: Path) -> list[Path]:
    folder = workdir / "checkpoints"
    return sorted(folder.iterdir(), key=lambda entry: entry.name) if folder.is_dir() else []


@pytest.mark.long
def test_a_disk_that_fills_up_stops_the_run_and_costs_nothing(
    lab: Lab, disk: Disk, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """P13: during a run in a separate process, with TensorBoard's files, and while checkpoints are written."""
    settings = [*STEPS, "--config.logging.tensorboard=true"]
    assert lab.run("pretrain", "--workdir", tmp_path / "whole", *settings) == 0
    workdir = disk.folder / "run"
    command = [sys.executable, "-m", "bertjax", "pretrain", "--config", str(lab.config), "--workdir", str(workdir)]
    process = subprocess.Popen([*command, *settings], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    while process.poll() is None and not any(each.name.isdigit() for each in checkpoints(workdir)):
        time.sleep(0.01)
    disk.fill(process)
    try:
        _, output = process.communicate(timeout=60)  # it must not wait for free space
    finally:
        process.send_signal(signal.SIGKILL)
    lines = output.decode().splitlines()
    assert process.returncode == 2 and len(lines) == 1, output.decode()
    assert lines[0].startswith("bertjax pretrain: ") and (
        "to resume from" in lines[0] or "the same command" in lines[0]
    )
    if disk.mounted:
        assert "no space left" in lines[0].lower()
    left = checkpoints(workdir)
    assert left and all(each.name.isdigit() for each in left)  # and no partial one
    for each in left:
        verify_checkpoint(each)

    disk.free_space()
    capsys.readouterr()
    assert lab.run("pretrain", "--workdir", workdir, *settings) == 0
    assert f"resuming at step {max(int(each.name) for each in left)}" in capsys.readouterr().out
    assert digest(workdir) == digest(tmp_path / "whole")
    assert {each.name for each in checkpoints(workdir)} == {"32", "34", "36"}
    assert not [path for path in workdir.rglob("*") if "tmp" in path.name or path.name.startswith(".")]


@pytest.mark.parametrize(
    "free", [0, pytest.param(12, marks=pytest.mark.long), pytest.param(300, marks=pytest.mark.weekly)]
)  # KiB: not enough for a file, for the tokenizer, for a checkpoint
def test_a_disk_that_is_full_from_the_beginning(
    lab: Lab, finished: Finished, disk: Disk, free: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """P13: whichever write is the first that finds the disk full."""
    if not disk.mounted:
        pytest.skip("no tmpfs may be mounted here")
    disk.fill()
    with (disk.folder / "filler").open("r+b") as file:
        file.truncate(max(0, file.seek(0, os.SEEK_END) - (free << 10)))
    workdir = disk.folder / "run"
    capsys.readouterr()
    assert lab.run("pretrain", "--workdir", workdir) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "no space left" in line.lower() and "None" not in line
    assert not [path for path in workdir.rglob("*") if "tmp" in path.name]
    disk.free_space()
    assert lab.run("pretrain", "--workdir", workdir) == 0
    assert digest(workdir) == digest(finished.workdir)


@pytest.mark.long
def test_a_disk_too_full_for_the_prepared_text_or_the_export(
    lab: Lab, finished: Finished, disk: Disk, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """P13: the text cache and the export are often on other disks."""
    if not disk.mounted:
        pytest.skip("no tmpfs may be mounted here")
    cache = disk.folder / "cache"
    assert lab.run("tokenizer", "--out", tmp_path / "tokenizer", f"--config.data.cache_dir={cache}") == 0
    disk.fill()
    text = ["--config.data.workers=1", f"--config.data.cache_dir={cache}", "--workdir", tmp_path / "run"]
    capsys.readouterr()
    assert lab.run("pretrain", *text) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "no space left" in line.lower()
    disk.free_space()
    assert lab.run("pretrain", *text) == 0
    assert digest(tmp_path / "run") == digest(finished.workdir)

    workdir = disk.folder / "run"
    subprocess.run(["cp", "-r", str(finished.workdir), str(workdir)], check=True)
    subprocess.run(["rm", "-r", str(workdir / "export")], check=True)
    disk.fill()
    capsys.readouterr()
    assert lab.run("pretrain", "--workdir", workdir) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "no space left" in line.lower() and not (workdir / "export").exists()
    disk.free_space()
    assert lab.run("pretrain", "--workdir", workdir) == 0
    assert digest(workdir) == digest(finished.workdir)


def test_metrics_on_a_full_disk_are_an_error_and_closing_is_none(tmp_path: Path, short_files: None) -> None:
    """P13: a writer with a separate thread would be waited for without end."""
    for writer in (JsonlLog(tmp_path / "metrics.jsonl", 0), TensorBoardWriter(tmp_path / "events", 0)):
        with pytest.raises(OSError, match="too large"):
            for step in range(1, 100):
                writer.write(step, {"train/loss": 1.0})
        writer.close()


@pytest.mark.long
def test_a_run_that_was_killed_while_it_claimed_its_folder_begins(lab: Lab, finished: Finished, tmp_path: Path) -> None:
    """P1: the folder has only half of a config.json, under another name."""
    workdir = tmp_path / "run"
    workdir.mkdir()
    (workdir / ".config.json.0a1b2c3d.tmp").write_text('{"seed"')
    assert lab.run("pretrain", "--workdir", workdir) == 0
    assert digest(workdir) == digest(finished.workdir) and not list(workdir.glob(".*.tmp"))
