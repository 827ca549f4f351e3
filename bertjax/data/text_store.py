"""Prepared text in an object store, for hosts without a shared disk.

    <data.cache_dir>/corpora/<digest>/, tokenizers/<digest>/    as on a disk; complete when their last file is there

A host has a copy of `data.cache_dir` on its disk. Of a corpus in several shards the copy lacks the shards: each is
downloaded when it is read, and the oldest ones are deleted (`ShardDownloads`).
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from bertjax.errors import UserError
from bertjax.io.atomic import atomic_folder, write_json
from bertjax.io.store import Store

MARKER = ".shards.json"
"""File of a local copy that names the URL its shards are downloaded from."""
MAX_LOCAL_SHARDS = 64


class ShardDownloads:
    """Shards of a corpus in a store, at most `MAX_LOCAL_SHARDS` of them on the disk.

    Args:
        folder: Local copy of the corpus.
        url: The corpus in the store.
    """

    def __init__(self, folder: Path, url: str) -> None:
        self._folder, self._url = folder, url
        self._local: OrderedDict[str, None] = OrderedDict()
        self._lock = threading.Lock()

    def fetch(self, file: str) -> None:
        """Downloads a shard unless it is there; raises `OSError`."""
        if not (self._folder / file).exists():
            Store(self._url).download([(file, self._folder / file)])
        with self._lock:
            self._local[file] = None
            self._local.move_to_end(file)
            while len(self._local) > MAX_LOCAL_SHARDS:  # files that are mapped stay readable
                (self._folder / self._local.popitem(last=False)[0]).unlink(missing_ok=True)


def open_downloads(folder: Path) -> ShardDownloads | None:
    """Returns where a corpus downloads its shards from; None if all of them are on the disk."""
    try:
        return ShardDownloads(folder, json.loads((folder / MARKER).read_text())["url"])
    except FileNotFoundError:
        return None


def fetch_folder(url: str, folder: Path, last: str) -> bool:
    """Downloads a folder, of a corpus in several shards all but these; does nothing where it is on the disk.

    Args:
        url: The folder in the store.
        folder: Its local copy.
        last: File without which it is incomplete.

    Returns:
        Whether the folder is in the store.

    Raises:
        UserError: The store cannot be read.
    """
    with _explained(url, "read"):
        store = Store(url)
        names = list(store.list())
        if last not in names or folder.exists():
            return last in names
        with atomic_folder(folder, replace=False) as temporary:
            store.download([(last, temporary / last)])
            later = _shards(json.loads((temporary / last).read_text())) if last == "meta.json" else set()
            store.download((name, temporary / name) for name in names if name not in {last, *later})
            if later:
                for name in later:
                    (temporary / name).parent.mkdir(exist_ok=True)
                write_json(temporary / MARKER, {"url": url})
    return True


def publish_folder(url: str, folder: Path, last: str) -> None:
    """Uploads a folder unless it is in the store.

    Args:
        url: The folder in the store.
        folder: Its local copy, complete.
        last: File without which it is incomplete, uploaded last.

    Raises:
        UserError: The store cannot be written.
    """
    with _explained(url, "written"):
        store = Store(url)
        if last in store.list():
            return
        files = {path: path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*")) if path.is_file()}
        store.upload((path, name) for path, name in files.items() if name != last)
        store.upload([(folder / last, last)])


def _shards(meta: Mapping[str, Mapping[str, Sequence[Sequence[str]]]]) -> set[str]:
    """Returns the files of splits in several shards."""
    return {shard[0] for shards in meta["shards"].values() if len(shards) > 1 for shard in shards}


@contextlib.contextmanager
def _explained(url: str, action: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(f"{url} cannot be {action}: {error.strerror or error}") from error
