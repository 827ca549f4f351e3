"""Folders in object stores: a local copy that commands read and runs work in, and the way back.

    <cache>/bertjax/stores/<name>/        the copy of a folder; <cache> is $XDG_CACHE_HOME, or ~/.cache
    <cache>/bertjax/stores/<name>.json    the state of every file when it was last the same in both

Which folder a copy belongs to follows from the URL that a command was given, and is written nowhere. Files are deleted
from a copy alone, and objects only where this process has seen them before. A run holds a lease on its folder. It
uploads what changed once a minute, and every checkpoint as soon as it is written, its manifest last. Arrays of
checkpoints are downloaded only to be restored.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import shutil
import tempfile
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from bertjax.errors import UserError
from bertjax.io import atomic
from bertjax.io.run_lock import LEASE, LOCK, Lease, is_locked
from bertjax.io.store import Store, store_errors
from bertjax.storage import copy_folder, is_url, local_path, to_url

log = logging.getLogger(__name__)

SYNC_SECONDS = 60.0
_CHECKPOINTS = "checkpoints/"
_MANIFEST = re.compile(rf"{_CHECKPOINTS}[0-9]+/bertjax\.json")
_FOLDERS: dict[Path, StoredFolder] = {}
"""Copies of the URLs that commands of this process were given."""


def local_copy(path: str | os.PathLike[str]) -> Path:
    """Returns a path as it is, and for a URL the local copy of its folder, which is brought up to date.

    While a run on this host works in the copy, it is the newest state, and stays as it is.

    Raises:
        UserError: the store cannot be read, or the path is that of no store that is known.
    """
    with store_errors(os.fspath(path)):
        if not is_url(path):
            return Path(local_path(path))
        folder = copy_folder(path)
        if folder not in _FOLDERS:
            _FOLDERS[folder] = StoredFolder(folder, to_url(path))
        folder.mkdir(parents=True, exist_ok=True)
    if not is_locked(folder / LOCK):
        _FOLDERS[folder].pull()
    return folder


def stored_folder(folder: Path) -> StoredFolder | None:
    """Returns the store that a folder is the local copy of; None for any other folder."""
    return _FOLDERS.get(folder)


def display_path(path: Path) -> str:
    """Returns the URL of a path in a local copy of this process, and any other path as it is."""
    for folder in (path, *path.parents):
        if folder in _FOLDERS:
            return "/".join((_FOLDERS[folder].url, *path.relative_to(folder).parts))
    return str(path)


@contextlib.contextmanager
def output_path(path: Path, overwrite: bool = False) -> Iterator[Path]:
    """Gives a local path to write a file or folder to, which is uploaded at the end where `path` is a URL.

    Raises:
        UserError: the folder is not empty and not to be overwritten, or the store is unknown or cannot be written.
    """
    if not is_url(path):
        yield local_copy(path)
        return
    url = to_url(path)
    with store_errors(f"{url} cannot be written"):
        store = Store(url)
        old = set(store.list())
    if old and not overwrite:
        raise UserError(f"{url} is not empty; give a new folder")
    with tempfile.TemporaryDirectory() as name:
        local = Path(name) / url.rpartition("/")[2]
        yield local
        with store_errors(f"{url} cannot be written"):
            if local.is_file():
                store.upload([(local, "")])
                return
            store.remove(old & {"config.json"})  # without it no program reads the folder
            store.remove(old - store.upload_folder(local, "", "config.json"))
    print(f"uploaded to {url}")


class StoredFolder:
    """A local copy and the folder of a store, given by its URL; raises `OSError` for one that no library can open."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder, self.url, self._store = folder, url, Store(url)
        self._lease = Lease(self._store, folder.with_name(f"{folder.name}.lease"))
        self._state = folder.with_name(f"{folder.name}.json")
        self._files: dict[str, list[Any]] = {}
        self._is_busy = threading.Lock()

    # -- files ---------------------------------------------------------------------------------------------------------

    def pull(self) -> None:
        """Makes the copy what the store holds, but for arrays of checkpoints.

        Raises:
            UserError: the store cannot be read.
        """
        with store_errors(f"{self.url} cannot be read"):
            there = {name: each for name, each in self._store.list().items() if _is_copied(name)}
            known = self._read_state()
            self._drop_checkpoints(there)
            for name, path in self._local_files().items():
                if name in known and name not in there:
                    path.unlink(missing_ok=True)
                    with contextlib.suppress(OSError):  # one is not empty
                        for parent in path.parents[: name.count("/")]:
                            parent.rmdir()
            self._store.download(
                (name for name, each in there.items() if known.get(name) != [*each, *_stamp(self.folder / name)]),
                self.folder,
            )
            self._write_state({name: [*each, *_stamp(self.folder / name)] for name, each in there.items()})

    def push(self) -> None:
        """Uploads the files that changed, and deletes those that are gone; raises `OSError`."""
        with self._is_busy:
            stamps = {name: _stamp(path) for name, path in self._local_files().items() if not _is_checkpoint(name)}
            changed = [name for name, stamp in stamps.items() if stamp and self._files.get(name, [])[2:] != stamp]
            gone = [name for name in self._files if name not in stamps and not _is_checkpoint(name)]
            self._store.upload((self.folder / name, name) for name in changed)
            self._store.remove(gone)
            if changed or gone:
                there = self._store.list()
                entries = {name: [*there[name], *stamps[name]] for name in changed if name in there}
                self._write_state({name: each for name, each in self._files.items() if name not in gone} | entries)

    def _local_files(self) -> dict[str, Path]:
        """Returns the files of the copy that the store is to have, but for arrays of checkpoints."""
        paths = [Path(folder, name) for folder, _, names in os.walk(self.folder) for name in names]
        files = {path.relative_to(self.folder).as_posix(): path for path in sorted(paths)}
        return {name: path for name, path in files.items() if _is_copied(name)}

    def _drop_checkpoints(self, there: Iterable[str]) -> None:
        """Deletes local checkpoints that the store does not have: they were never uploaded as a whole."""
        steps = {name.split("/")[1] for name in there if _is_checkpoint(name)}
        folder = self.folder / _CHECKPOINTS
        for path in folder.iterdir() if folder.is_dir() else ():
            if path.name not in steps:
                shutil.rmtree(path, ignore_errors=True)
        if not steps:
            shutil.rmtree(folder, ignore_errors=True)

    def _read_state(self) -> dict[str, Any]:
        """Returns what is known of the files; without it, or where it is damaged, they are downloaded again."""
        with contextlib.suppress(FileNotFoundError, ValueError, RecursionError):
            files = json.loads(self._state.read_bytes())
            return files if isinstance(files, dict) else {}
        return {}

    def _write_state(self, files: dict[str, list[Any]]) -> None:
        self._files = files
        atomic.write_json(self._state, files, indent=None)

    # -- checkpoints ---------------------------------------------------------------------------------------------------

    def publish(self, name: str, folder: Path, last: str) -> None:
        """Uploads a folder after the other files of the run; `last` says that it is complete.

        Raises:
            OSError: the store cannot be written, or another run has taken the lease.
        """
        self._lease.require()
        self.push()
        self._store.upload_folder(folder, name, last, self._lease.require)

    def fetch(self, name: str, files: Iterable[str]) -> None:
        """Downloads files of a folder; those that are not there stay missing; raises `OSError`."""
        there = self._store.list(name)
        self._store.download([each for file in files if (each := f"{name}/{file}") in there], self.folder)

    def remove(self, name: str, last: str) -> None:
        """Deletes a folder of the store, the file that says that it is complete first; raises `OSError`."""
        self._store.remove([f"{name}/{last}"])
        self._store.remove(self._store.list(name))

    def incomplete(self, name: str, last: str) -> list[str]:
        """Returns the folders in a folder of the store that lack the file that says that they are complete."""
        there = self._store.list(name)
        folders = {each.removeprefix(f"{name}/").split("/")[0] for each in there}
        return sorted(each for each in folders if re.fullmatch("[0-9]+", each) and f"{name}/{each}/{last}" not in there)

    # -- lease ---------------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        """Holds the lease, brings the copy up to date, uploads while the body runs, and once more at its end.

        Raises:
            DirectoryInUseError: another run holds the lease.
            UserError: the store cannot be read or written.
        """
        with contextlib.ExitStack() as stack:
            with store_errors(f"{self.url} cannot be locked"):
                stack.enter_context(self._lease.hold())
            self.pull()
            stopped = threading.Event()
            thread = threading.Thread(target=self._keep_up, args=(stopped,), daemon=True)
            thread.start()
            try:
                yield
            finally:
                stopped.set()
                thread.join()
                with store_errors(f"{self.url} cannot be written; {self.folder} has what it lacks"):
                    self._lease.require()
                    self.push()

    def _keep_up(self, stopped: threading.Event) -> None:
        """Renews the lease and uploads what changed until the run ends."""
        while not stopped.wait(SYNC_SECONDS):
            try:
                self._lease.renew()
                self.push()
            except PermissionError as error:
                log.warning("%s: %s; the next checkpoint will not be saved", self.url, error.strerror)
                return
            except OSError as error:
                log.warning("%s cannot be written now (%s); trying again", self.url, error.strerror)


def _is_copied(name: str) -> bool:
    base = name.rpartition("/")[2]
    is_private = base.startswith((LEASE, LOCK)) or base.endswith(".tmp")
    return not is_private and (not _is_checkpoint(name) or _MANIFEST.fullmatch(name) is not None)


def _is_checkpoint(name: str) -> bool:
    return name.startswith(_CHECKPOINTS)


def _stamp(path: Path) -> list[int]:
    """Returns the time of the last change and the size of a file; nothing for one that is gone."""
    with contextlib.suppress(OSError):
        result = path.stat()
        return [result.st_mtime_ns, result.st_size]
    return []
