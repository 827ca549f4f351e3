"""The lock on a work directory: one run at a time, of several processes, released when they end."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from bertjax.errors import UserError
from bertjax.io.run_lock import DirectoryInUseError, RunLock

HOLDER = """
import sys, time
from pathlib import Path
from bertjax.io.run_lock import RunLock

RunLock(Path(sys.argv[1])).acquire()
print("held", flush=True)
time.sleep(60)
"""


def test_a_killed_holder_is_named_before_and_forgotten_after(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(path)], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
        names = rf"{tmp_path} is in use by process {holder.pid} on {re.escape(socket.gethostname())} since \d{{4}}-"
        with pytest.raises(DirectoryInUseError, match=names):
            RunLock(path).acquire()
        holder.send_signal(signal.SIGKILL)
    lock = RunLock(path)
    assert lock.acquire().startswith(f"process {os.getpid()} on")
    assert path.read_text().count("process") == 1
    lock.release()
    assert not path.exists()


def test_the_lock_is_held_until_the_last_process_of_a_run_ends(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    first, second, third = RunLock(path), RunLock(path), RunLock(path)
    second.join(first.acquire())
    third.join(path.read_text().splitlines()[0])
    assert path.read_text().count("process") == 3
    first.release()
    third.release()
    with pytest.raises(DirectoryInUseError, match="in use by process"):
        RunLock(path).acquire()
    second.release()
    assert not path.exists()


def test_a_directory_that_is_not_shared_is_named(tmp_path: Path) -> None:
    first, second = RunLock(tmp_path / "a"), RunLock(tmp_path / "b")
    with pytest.raises(UserError, match=r"another directory here, on .*than for the first process \(process \d+"):
        second.join(first.acquire())
    first.release()
    second.release()
    assert not list(tmp_path.iterdir())


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / ".lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic links"):
        RunLock(tmp_path / ".lock").acquire()
    assert not (tmp_path / "elsewhere").exists()
