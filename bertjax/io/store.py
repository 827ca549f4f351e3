"""Objects of a store below a URL, and files or objects as decompressed streams."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any

from bertjax.compression import decompressed
from bertjax.io.atomic import atomic_file
from bertjax.storage import ObjectInfo, describe, filesystem, open_binary, request, to_url

_THREADS = 8


@contextlib.contextmanager
def open_decompressed(path: str) -> Iterator[tuple[IO[bytes], Any]]:
    """Opens a file or object, as stored and decompressed; both are the same where its ending is that of no compression.

    Raises:
        DamagedFileError: Also on every read, where the file is broken or cut short.
        OSError: The file cannot be read.
    """
    with open_binary(path) as raw:
        yield raw, decompressed(raw, path)


class Store:
    """The objects below a URL, by their names relative to it.

    Args:
        url: URL of the folder.

    Raises (all methods):
        OSError: the store refuses, or fails for longer than `PATIENCE`.
    """

    def __init__(self, url: str) -> None:
        self.url = to_url(url)
        self._fs = filesystem(self.url)

    def list(self, prefix: str = "") -> dict[str, ObjectInfo]:
        """Returns size and tag of every object whose name begins with a folder's, sorted by name."""
        root = self._fs._strip_protocol(self.url)
        try:
            infos = request(self.url, lambda: self._fs.find(self._path(prefix), detail=True))
        except FileNotFoundError:
            raise OSError(errno.EINVAL, "there is no such bucket; make it first", self.url) from None
        names = {path.removeprefix(root).lstrip("/"): describe(info) for path, info in infos.items()}
        return dict(sorted(names.items()))

    def read(self, name: str) -> bytes:
        """Returns the content of an object; raises `FileNotFoundError` where there is none."""
        content: bytes = request(self._path(name), lambda: self._fs.cat_file(self._path(name)))
        return content

    def write(self, name: str, content: bytes, *, new: bool = False) -> None:
        """Writes or replaces an object.

        Args:
            name: name of the object.
            content: its content.
            new: raise `FileExistsError` where there is one already, if the store can tell.
        """
        mode = {"mode": "create"} if new else {}
        request(self._path(name), lambda: self._fs.pipe_file(self._path(name), content, **mode))

    def upload(self, files: Iterable[tuple[Path, str]]) -> None:
        """Uploads files as objects, several at a time."""
        self._each(lambda pair: self._fs.put_file(os.fspath(pair[0]), self._path(pair[1])), files)

    def download(self, files: Iterable[tuple[str, Path]]) -> None:
        """Downloads objects, several at a time; every file appears complete or not at all."""
        self._each(self._download, files)

    def _download(self, pair: tuple[str, Path]) -> None:
        name, path = pair
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(path) as file, self._fs.open(self._path(name), "rb") as stored:
            while block := stored.read(1 << 22):
                file.write(block)

    def remove(self, names: Iterable[str]) -> None:
        """Deletes objects, several at a time; what is not there is no error."""

        def delete(name: str) -> None:
            with contextlib.suppress(FileNotFoundError):
                self._fs.rm_file(self._path(name))

        self._each(delete, names)

    def move(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Gives objects other names, one after the other; the store copies them."""
        for old, new in pairs:
            request(self._path(old), lambda old=old, new=new: self._fs.cp_file(self._path(old), self._path(new)))  # type: ignore[misc]
            self.remove([old])

    def _each(self, action: Callable[[Any], None], items: Iterable[Any]) -> None:
        with ThreadPoolExecutor(_THREADS) as pool:
            tuple(pool.map(lambda item: request(f"{self.url}/{item}", lambda: action(item)), items))

    def _path(self, name: str) -> str:
        return f"{self.url}/{name}" if name else self.url
