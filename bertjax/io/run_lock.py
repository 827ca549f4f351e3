"""A lock on a directory that the processes of one run hold together, on one or several hosts.

The kernel, or the server of a network file system, releases it when a process ends, however it ends. Every process
holds a shared lock on one file; a new run begins by locking it exclusively, which fails while any process of another
run lives.
"""

from __future__ import annotations

import contextlib
import datetime
import errno
import fcntl
import logging
import os
import socket
from pathlib import Path

from bertjax.errors import UserError, comma_list

log = logging.getLogger(__name__)

LOCK = ".lock"
"""Name of the lock file of a work directory."""
_UNSUPPORTED = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)


class DirectoryInUseError(UserError):
    """Another run holds the lock; the message names its processes."""


class RunLock:
    """Lock file of a directory; its lines name the processes that hold it.

    Args:
        path: The lock file; made by the first process, removed by the last one.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = -1

    def acquire(self) -> str:
        """Locks the directory for a new run; returns the line that names this process.

        Raises:
            DirectoryInUseError: Processes of another run hold the lock.
            OSError: The file cannot be written.
        """
        while True:
            self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
            self._lock(fcntl.LOCK_EX)
            if self._is_current():
                break
            os.close(self._fd)  # its last holder has removed it in between
        line = _describe_process()
        os.ftruncate(self._fd, 0)
        os.write(self._fd, line.encode())
        os.fsync(self._fd)  # other hosts read it
        self._lock(fcntl.LOCK_SH)
        return line

    def join(self, first: str) -> None:
        """Locks the directory for another process of a run; `first` is what `acquire` returned to the first process.

        Raises:
            UserError: This process sees another directory than the first one.
            OSError: The file cannot be written.
        """
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        self._lock(fcntl.LOCK_SH)
        if not self._holders().startswith(first):
            raise UserError(
                f"{self._path.parent} is another directory here, on {socket.gethostname()}, than for the first process "
                f"({first.strip()}); the work directory must be on a disk that all hosts share, under the same path"
            )
        os.lseek(self._fd, 0, os.SEEK_END)
        os.write(self._fd, _describe_process().encode())

    def release(self) -> None:
        """Releases the lock; the last process of a run removes the file."""
        if self._fd < 0:
            return
        with contextlib.suppress(OSError):
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if self._is_current():
                self._path.unlink()
        os.close(self._fd)
        self._fd = -1

    def _lock(self, kind: int) -> None:
        try:
            fcntl.flock(self._fd, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            holders = comma_list((line for line in self._holders().split("\n") if line), 4)
            os.close(self._fd)
            self._fd = -1
            raise DirectoryInUseError(
                f"{self._path.parent} is in use by {holders}; wait until it ends, end it, or give another directory"
            ) from None
        except OSError as error:
            if error.errno not in _UNSUPPORTED:
                raise
            log.warning(
                "%s cannot be locked (%s): a second run there would not be noticed", self._path.parent, error.strerror
            )

    def _is_current(self) -> bool:
        """Returns whether the path still names the locked file."""
        try:
            return os.path.samestat(os.fstat(self._fd), os.lstat(self._path))
        except FileNotFoundError:
            return False

    def _holders(self) -> str:
        return os.pread(self._fd, 1 << 16, 0).decode(errors="replace")


def is_locked(path: Path) -> bool:
    """Returns whether a run holds a lock file."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        pass  # there is no such file, or the file system has no locks
    return False


def _describe_process() -> str:
    since = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    return f"process {os.getpid()} on {socket.gethostname()} since {since}\n"
