"""Objects of a store below a URL, and files or objects as decompressed streams."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any

from bertjax.compression import decompressed
from bertjax.errors import UserError
from bertjax.io.atomic import atomic_file
from bertjax.storage import ObjectInfo, describe, filesystem, open_binary, request, to_url

log = logging.getLogger(__name__)

_THREADS = 8
_NOT_PLAIN = re.compile(r"^[A-Za-z]:|[\x00-\x1f\x7f\\\ud800-\udfff]")
"""A drive, and characters that some system does not take, or takes for a slash."""


@contextlib.contextmanager
def open_decompressed(path: str) -> Iterator[tuple[IO[bytes], Any]]:
    """Opens a file or object, as stored and decompressed; both are the same where its ending is that of no compression.

    Raises:
        DamagedFileError: Also on every read, where the file is broken or cut short.
        OSError: The file cannot be read.
    """
    with open_binary(path) as raw:
        yield raw, decompressed(raw, path)


def is_plain_name(name: object) -> bool:
    """Returns whether a name, with slashes between its parts, is that of a file below a folder, on any system."""
    if not isinstance(name, str) or _NOT_PLAIN.search(name):
        return False
    return not {"", ".", ".."} & set(name.split("/"))


def require_plain_name(name: str, url: str) -> str:
    """Returns a name; raises `OSError` if as a path it might lead out of its folder, that of a URL."""
    if not is_plain_name(name):
        raise OSError(errno.EINVAL, f"the name {name[:200]!r} is not that of a file below it; nothing is read", url)
    return name


@contextlib.contextmanager
def store_errors(action: str) -> Iterator[None]:
    """Raises `OSError` of the body as a `UserError` that begins with `action`."""
    try:
        yield
    except OSError as error:
        raise UserError(f"{action}: {error.strerror or error}") from error


@contextlib.contextmanager
def store_warnings(action: str) -> Iterator[None]:
    """Logs `OSError` of the body, which a run does not need, as a warning that begins with `action`."""
    try:
        yield
    except OSError as error:
        log.warning("%s: %s", action, error.strerror or error)


class Store:
    """The objects below a URL, by their names relative to it; all methods raise `OSError`."""

    def __init__(self, url: str) -> None:
        self.url = to_url(url)
        path = self.url.partition("://")[2]
        if not is_plain_name(path):
            raise OSError(errno.EINVAL, "a path in a store has no empty part, no . or .. and no backslash", self.url)
        self._fs = filesystem(self.url)

    def list(self, prefix: str = "") -> dict[str, ObjectInfo]:
        """Returns size and tag of every object whose name begins with a folder's, sorted by name.

        A name that would lie elsewhere as a file is an error: the folder was not written by a program of its owner.
        """
        root, folder = (f"{self._fs._strip_protocol(url)}/" for url in (self.url, self._path(prefix)))
        try:
            infos = request(self.url, lambda: self._fs.find(self._path(prefix), detail=True))
        except FileNotFoundError:
            raise OSError(errno.EINVAL, "there is no such bucket; make it first", self.url) from None
        names = {path.removeprefix(root): describe(info) for path, info in infos.items() if path.startswith(folder)}
        for name in names:
            require_plain_name(name.removesuffix("/"), self.url)
        return {name: names[name] for name in sorted(names) if not name.endswith("/")}  # not the mark of a folder

    def read(self, name: str) -> bytes:
        """Returns the content of an object; raises `FileNotFoundError` where there is none."""
        content: bytes = request(self._path(name), lambda: self._fs.cat_file(self._path(name)))
        return content

    def write(self, name: str, content: bytes, *, new: bool = False) -> None:
        """Writes or replaces an object; a `new` one raises `FileExistsError` if it exists and the store can tell."""
        mode = {"mode": "create"} if new else {}
        request(self._path(name), lambda: self._fs.pipe_file(self._path(name), content, **mode))

    def upload(self, files: Iterable[tuple[Path, str]]) -> None:
        """Uploads files as objects, several at a time."""
        self._each(lambda pair: self._fs.put_file(os.fspath(pair[0]), self._path(pair[1])), files)

    def upload_folder(self, folder: Path, name: str, last: str, confirm: Callable[[], None] = lambda: None) -> set[str]:
        """Uploads the files of a folder, calls `confirm`, and uploads the last one; returns the objects' names."""
        names = {path: path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*")) if path.is_file()}
        objects = {path: f"{name}/{each}".lstrip("/") for path, each in names.items()}
        self.upload((path, objects[path]) for path, each in names.items() if each != last)
        confirm()
        self.upload((path, objects[path]) for path, each in names.items() if each == last)
        return set(objects.values())

    def download(self, names: Iterable[str], folder: Path) -> None:
        """Downloads objects to files of their names in a folder; every file appears complete or not at all."""
        self._each(lambda name: self._download(name, folder / require_plain_name(name, self.url)), names)

    def _download(self, name: str, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(path) as file, self._fs.open(self._path(name), "rb") as stored:
            shutil.copyfileobj(stored, file, 1 << 22)

    def remove(self, names: Iterable[str]) -> None:
        """Deletes objects, several at a time; what is not there is no error."""

        def delete(name: str) -> None:
            with contextlib.suppress(FileNotFoundError):
                self._fs.rm_file(self._path(name))

        self._each(delete, names)

    def _each(self, action: Callable[[Any], None], items: Iterable[Any]) -> None:
        with ThreadPoolExecutor(_THREADS) as pool:
            tuple(pool.map(lambda item: request(f"{self.url}/{item}", lambda: action(item)), items))

    def _path(self, name: str) -> str:
        return f"{self.url}/{name}" if name else self.url
