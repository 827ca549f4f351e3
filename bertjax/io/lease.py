"""One run at a time in a folder of an object store: an object that the run renews, and that expires without it.

A lease belongs to whoever knows its random token. The token is also in a file of this host, which its process locks: if
the kernel has released that lock, the process has ended, and its lease is free at once. No name or number in a lease is
evidence of that. Nothing but this one object is ever written or removed.
"""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import os
import re
import secrets
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from bertjax.io.run_lock import DirectoryInUseError
from bertjax.io.store import Store

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
