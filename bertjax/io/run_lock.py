"""One run at a time: a lock on a directory, and a lease on a folder of an object store.

The processes of one run hold the lock together, on one or several hosts. The kernel, or the server of a network file
system, releases it when a process ends, however it ends. Every process holds a shared lock on one file; a new run
begins by locking it exclusively, which fails while any process of another run lives.

A lease is an object that the run renews, and that expires without it. It belongs to whoever knows its random token. The
token is also in a file of this host, which its process locks: if the kernel has released that lock, the process has
ended, and its lease is free at once. No name or number in a lease is evidence of that. Nothing but this one object is
ever written or removed.
"""

from __future__ import annotations

import contextlib
import datetime
import errno
import fcntl
import logging
import os
import re
import secrets
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from bertjax.errors import UserError, comma_list
from bertjax.io.store import Store

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


LEASE = ".lease.json"
LEASE_SECONDS = 300
"""A lease that was not renewed for so long has no holder: its process was killed, or lost its host."""
_CONTENT = re.compile(rb'\{"token": "([0-9a-f]{32})", "holder": "([ !#-\[\]-~]{1,200})", "expires": (\d{1,11})\}')


class Lease:
    """The lease on a folder of a store, and the file of this host for its token; all methods raise `OSError`."""

    def __init__(self, store: Store, local: Path) -> None:
        self._store, self._local, self._token = store, local, ""

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        """Holds the lease while the body runs; raises `DirectoryInUseError` where another run holds it."""
        with self._local.open("a+", encoding="utf-8", errors="replace") as file:
            ended, (token, holder, expires) = self._lock(file), self._read()
            if token != ended and (left := expires - time.time()) > 0:
                raise DirectoryInUseError(
                    f"{self._store.url} is in use by {holder}; wait until it ends, end it, or give another directory "
                    f"(a lease that its run does not renew ends after {LEASE_SECONDS} s, this one in {left:.0f} s)"
                )
            self._token = secrets.token_hex(16)
            file.truncate(0)
            file.write(self._token)
            file.flush()
            with contextlib.suppress(FileExistsError):
                self._write(new=not token)
            self.require()
            try:
                yield
            finally:
                with contextlib.suppress(OSError):  # it expires, or another run has it
                    self.require()
                    self._store.remove([LEASE])

    def require(self) -> None:
        """Raises `PermissionError` if another run has taken the lease, or somebody has deleted it."""
        token, holder, _ = self._read()
        if token != self._token:
            reason = f"another run has taken the lease: {holder}" if token else "its lease is gone: it was deleted"
            raise PermissionError(0, reason, self._store.url)

    def renew(self) -> None:
        """Moves the end of the lease; raises as `require`."""
        self.require()
        self._write()

    def _lock(self, file: IO[str]) -> str:
        """Locks the file of the token; returns the token of the process that held it and has ended."""
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DirectoryInUseError(f"{self._store.url} is in use by another process of this host") from None
        except OSError:
            return "unknown"  # a file system without locks
        file.seek(0)
        return file.read(64)

    def _read(self) -> tuple[str, str, int]:
        """Returns token, holder and end of the lease; empty texts where there is none."""
        try:
            content = self._store.read(LEASE)
        except FileNotFoundError:
            return "", "", 0
        if (match := _CONTENT.fullmatch(content)) is None:
            text = f"its {LEASE} is not the lease of a run; delete it if no run uses the folder"
            raise OSError(0, text, self._store.url)
        return match[1].decode(), match[2].decode(), int(match[3])

    def _write(self, new: bool = False) -> None:
        since = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        holder = re.sub(r"[^ !#-\[\]-~]", "?", f"process {os.getpid()} on {socket.gethostname()}, {since}")
        end = int(time.time()) + LEASE_SECONDS
        content = f'{{"token": "{self._token}", "holder": "{holder}", "expires": {end}}}'
        self._store.write(LEASE, content.encode(), new=new)
