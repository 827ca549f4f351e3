"""Folders in object stores: a local copy that commands read and runs work in, and the way back.

    <cache>/bertjax/stores/<name>/              the copy of a folder; <cache> is $XDG_CACHE_HOME, or ~/.cache
    <cache>/bertjax/stores/<name>/.store.json   its URL, and the state of every file when it was last the same in both

A run holds a lease on its folder, an object that it renews; it uploads what changed once a minute, and every checkpoint
as soon as it is written, its manifest last. Arrays of checkpoints are downloaded only to be restored.
"""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import json
import logging
import os
import re
import secrets
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from bertjax.errors import UserError
from bertjax.io import atomic
from bertjax.io.run_lock import LOCK, DirectoryInUseError, is_locked
from bertjax.io.store import Store
from bertjax.storage import copy_folder, is_url, to_url

log = logging.getLogger(__name__)

MARKER = ".store.json"
LEASE = ".lease.json"
LEASE_SECONDS = 300.0
"""A lease that was not renewed for so long has no holder: its process was killed, or lost its host."""
SYNC_SECONDS = 60.0
_CHECKPOINTS = "checkpoints/"
_TOKENS: dict[str, str] = {}
"""Names of the leases of this process, by URL."""
_UPLOADING = threading.Lock()
_MANIFEST = re.compile(rf"{_CHECKPOINTS}\d+/bertjax\.json")


def local_copy(path: str | os.PathLike[str]) -> Path:
    """Returns a path as it is, and for a URL the local copy of its folder, which is brought up to date.

    While a run on this host works in the copy, it is the newest state, and stays as it is.

    Raises:
        UserError: the store cannot be read.
    """
    if not is_url(path):
        return Path(path).expanduser()
    url = to_url(path)
    folder = copy_folder(url)
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / MARKER).exists():
        atomic.write_json(folder / MARKER, {"url": url, "files": {}})
    if not is_locked(folder / LOCK):
        StoredFolder(folder).pull()
    return folder


def stored_folder(folder: Path) -> StoredFolder | None:
    """Returns the store that a folder is the local copy of; None for any other folder."""
    return StoredFolder(folder) if (folder / MARKER).is_file() else None


def display_path(path: Path) -> str:
    """Returns the URL of a path in a local copy, and any other path as it is."""
    for folder in (path, *path.parents):
        if (stored := stored_folder(folder)) is not None:
            return "/".join((stored.url, *path.relative_to(folder).parts))
    return str(path)


@contextlib.contextmanager
def output_path(path: Path, overwrite: bool = False) -> Iterator[Path]:
    """Gives a local path to write a file or folder to, which is uploaded at the end where `path` is a URL.

    Args:
        path: where the result is to appear.
        overwrite: replaces a folder.

    Raises:
        UserError: the folder is not empty, or the store cannot be written.
    """
    if not is_url(path):
        yield path
        return
    url = to_url(path)
    store = Store(url)
    with _errors(f"{url} cannot be written"):
        old = [name for name in store.list() if name]
    if old and not overwrite:
        raise UserError(f"{url} is not empty; give a new folder")
    with tempfile.TemporaryDirectory() as name:
        local = Path(name) / url.rpartition("/")[2]
        yield local
        with _errors(f"{url} cannot be written"):
            if local.is_file():
                store.upload([(local, "")])
                return
            files = {each.relative_to(local).as_posix(): each for each in local.rglob("*") if each.is_file()}
            last = [each for each in files if each == "config.json"]  # without it no program reads the folder
            store.remove(last)
            store.upload((each, name) for name, each in files.items() if name not in last)
            store.upload((files[name], name) for name in last)
            store.remove(set(old) - set(files))
    print(f"uploaded to {url}")


class StoredFolder:
    """A local copy and its store.

    Args:
        folder: the copy, with its marker.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url: str = self._marker()["url"]
        self._store = Store(self.url)

    # -- files ---------------------------------------------------------------------------------------------------------

    def pull(self) -> None:
        """Makes the copy what the store holds, but for arrays of checkpoints, and for logs that only grew here.

        Raises:
            UserError: the store cannot be read.
        """
        with _errors(f"{self.url} cannot be read"), _exclusive(self.folder / f"{MARKER}.lock"):
            there = {name: each for name, each in self._store.list().items() if _is_copied(name)}
            files = self._marker()["files"]
            for name in set(files) - set(there):
                with contextlib.suppress(FileNotFoundError):
                    (self.folder / name).unlink()
            self._drop_checkpoints(there)
            changed = [name for name, each in there.items() if files.get(name) != [*each, *_stamp(self.folder / name)]]
            longer = {name: content for name in changed if (content := self._longer_log(name)) is not None}
            self._store.download((name, self.folder / name) for name in changed if name not in longer)
            files = {name: [*each, *_stamp(self.folder / name)] for name, each in there.items() if name not in longer}
            self._write_marker(files | {name: [*there[name], 0, 0] for name in longer})

    def push(self) -> None:
        """Uploads the files that changed, and deletes those that are gone; raises `OSError`."""
        with _UPLOADING:
            files = self._marker()["files"]
            here = {
                name: path
                for path in sorted(self.folder.rglob("*"))
                if _is_copied(name := path.relative_to(self.folder).as_posix())
                and not name.startswith(_CHECKPOINTS)
                and path.is_file()
            }
            stamps = {name: stamp for name, path in here.items() if (stamp := _stamp(path))[1] >= 0}
            changed = [name for name, stamp in stamps.items() if files.get(name, [])[2:] != stamp]
            gone = [name for name in files if name not in here and not name.startswith(_CHECKPOINTS)]
            self._store.upload((here[name], name) for name in changed)
            self._store.remove(gone)
            if changed or gone:
                there = self._store.list()
                entries = {name: [*there[name], *stamps[name]] for name in changed if name in there}
                self._write_marker({name: each for name, each in files.items() if name not in gone} | entries)

    def _longer_log(self, name: str) -> bytes | None:
        """Returns the local content of a log of lines that begins with the store's: its run was killed."""
        path = self.folder / name
        if not (name.endswith(".jsonl") and path.is_file()):
            return None
        here, there = path.read_bytes(), self._store.read(name)
        return here if here.startswith(there) else None

    def _drop_checkpoints(self, there: Iterable[str]) -> None:
        """Deletes local checkpoints that the store does not have: they were never uploaded as a whole."""
        steps = {name.split("/")[1] for name in there if name.startswith(_CHECKPOINTS)}
        folder = self.folder / _CHECKPOINTS
        for path in folder.iterdir() if folder.is_dir() else ():
            if path.name not in steps:
                shutil.rmtree(path, ignore_errors=True)

    def _marker(self) -> dict[str, Any]:
        content: dict[str, Any] = json.loads((self.folder / MARKER).read_text(encoding="utf-8"))
        return content

    def _write_marker(self, files: dict[str, list[Any]]) -> None:
        atomic.write_json(self.folder / MARKER, {"url": self.url, "files": files}, indent=None)

    # -- checkpoints ---------------------------------------------------------------------------------------------------

    def publish(self, name: str, folder: Path, last: str) -> None:
        """Uploads a folder, after the other files of the run.

        Args:
            name: its name in the store.
            folder: where its files lie.
            last: the file whose presence says that the folder is complete; uploaded last.

        Raises:
            OSError: the store cannot be written, or another run has taken the lease.
        """
        self.require_lease()
        self.push()
        files = [path for path in folder.rglob("*") if path.is_file()]
        names = {path: f"{name}/{path.relative_to(folder).as_posix()}" for path in files}
        self._store.upload((path, names[path]) for path in files if names[path] != f"{name}/{last}")
        self.require_lease()
        self._store.upload([(folder / last, f"{name}/{last}")])

    def fetch(self, name: str, files: Iterable[str]) -> None:
        """Downloads files of a folder; those that are not there stay missing; raises `OSError`."""
        there = self._store.list(name)
        names = [each for file in files if (each := f"{name}/{file}") in there]
        self._store.download((each, self.folder / each) for each in names)

    def remove(self, name: str, last: str) -> None:
        """Deletes a folder of the store, the file that says that it is complete first; raises `OSError`."""
        self._store.remove([f"{name}/{last}"])
        self._store.remove(self._store.list(name))

    def set_aside(self, name: str, target: str) -> None:
        """Gives a folder of the store another name, the manifest first; raises `OSError`."""
        names = sorted(self._store.list(name), key=lambda each: _MANIFEST.fullmatch(each) is None)
        self._store.move((each, f"{target}{each.removeprefix(name)}") for each in names)

    def incomplete(self, name: str, last: str) -> list[str]:
        """Returns the folders in a folder of the store that lack the file that says that they are complete."""
        there = self._store.list(name)
        folders = {each.removeprefix(f"{name}/").split("/")[0] for each in there}
        return sorted(each for each in folders if each.isdecimal() and f"{name}/{each}/{last}" not in there)

    # -- lease ---------------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        """Holds the lease, brings the copy up to date, uploads while the body runs, and once more at its end.

        Raises:
            DirectoryInUseError: another run holds the lease.
            UserError: the store cannot be read or written.
        """
        with _errors(f"{self.url} cannot be locked"):
            self._acquire()
        stopped = threading.Event()
        thread = threading.Thread(target=self._keep_up, args=(stopped,), daemon=True)
        try:
            self.pull()
            thread.start()
            yield
        finally:
            stopped.set()
            if thread.ident is not None:
                thread.join()
            with _errors(f"{self.url} cannot be written; the same command uploads the rest from {self.folder}"):
                self.require_lease()
                try:
                    self.push()
                finally:
                    self._store.remove([LEASE])

    def require_lease(self) -> None:
        """Raises `OSError` if another run has taken the lease."""
        with contextlib.suppress(FileNotFoundError):
            holder = json.loads(self._store.read(LEASE))
            if holder.get("token") == _TOKENS.get(self.url):
                return
            raise PermissionError(0, f"another run has taken the lease: {holder.get('holder')}", self.url)
        raise PermissionError(0, "its lease is gone: it was deleted", self.url)

    def _acquire(self) -> None:
        token = secrets.token_hex(8)
        for _ in range(3):
            with contextlib.suppress(FileNotFoundError):  # also where a store does not refuse to replace an object
                self._require_expired(json.loads(self._store.read(LEASE)))
                self._store.remove([LEASE])
            with contextlib.suppress(FileExistsError):
                self._store.write(LEASE, _lease(token), new=True)
                _TOKENS[self.url] = token
                break
        self.require_lease()

    def _require_expired(self, lease: dict[str, Any]) -> None:
        age = time.time() - float(lease.get("renewed", 0))
        dead = lease.get("host") == socket.gethostname() and not _is_alive(int(lease.get("pid", -1)))
        if age < LEASE_SECONDS and not dead:
            raise DirectoryInUseError(
                f"{self.url} is in use by {lease.get('holder')}, whose lease was renewed {age:.0f} s ago; wait until "
                f"it ends, end it, or give another directory (a lease without a process expires after "
                f"{LEASE_SECONDS:.0f} s)"
            )

    def _keep_up(self, stopped: threading.Event) -> None:
        """Renews the lease and uploads what changed until the run ends."""
        while not stopped.wait(SYNC_SECONDS):
            try:
                self.require_lease()
                self._store.write(LEASE, _lease(_TOKENS[self.url]))
                self.push()
            except PermissionError as error:
                log.warning("%s: %s; the next checkpoint will not be saved", self.url, error.strerror)
                return
            except OSError as error:
                log.warning("%s cannot be written now (%s); trying again", self.url, error.strerror)


def _lease(token: str) -> bytes:
    since = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    host, pid = socket.gethostname(), os.getpid()
    values = {"holder": f"process {pid} on {host}, {since}", "host": host, "pid": pid}
    return json.dumps({**values, "token": token, "renewed": time.time()}).encode()


def _is_copied(name: str) -> bool:
    base = name.rpartition("/")[2]
    private = base.startswith((MARKER, LEASE, LOCK)) or base.endswith(".tmp")
    return bool(name) and not private and (not name.startswith(_CHECKPOINTS) or _MANIFEST.fullmatch(name) is not None)


def _stamp(path: Path) -> list[int]:
    """Returns the time of the last change and the size of a file; -1 for one that is gone."""
    try:
        result = path.stat()
    except OSError:
        return [0, -1]
    return [result.st_mtime_ns, result.st_size]


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    return True


@contextlib.contextmanager
def _exclusive(path: Path) -> Iterator[None]:
    """Lets one process of this host at a time run the body."""
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def _errors(action: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(f"{action}: {error.strerror or error}") from error
