"""Prepared text in an object store, for hosts without a shared disk.

    <data.cache_dir>/corpora/<digest>/, tokenizers/<digest>/    as on a disk; complete when their last file is there

A host has a copy of `data.cache_dir` on its disk. Of a corpus in several shards the copy lacks the shards: each is
downloaded when it is read, and the oldest ones are deleted (`ShardDownloads`).
"""

from __future__ import annotations

import errno
import json
import threading
from collections import OrderedDict
from pathlib import Path

from bertjax.io.atomic import atomic_folder
from bertjax.io.store import Store, require_plain_name, store_errors

MAX_LOCAL_SHARDS = 64


class ShardDownloads:
    """Shards of a corpus in a store, at most `MAX_LOCAL_SHARDS` of them in its local copy, a folder."""

    def __init__(self, folder: Path, url: str) -> None:
        self._folder, self._url = folder, url
        self._local: OrderedDict[str, None] = OrderedDict()
        self._lock = threading.Lock()

    def fetch(self, file: str) -> None:
        """Downloads a shard unless it is there; raises `OSError`."""
        require_plain_name(file, self._url)
        if not (self._folder / file).exists():
            Store(self._url).download([file], self._folder)
        with self._lock:
            self._local[file] = None
            self._local.move_to_end(file)
            while len(self._local) > MAX_LOCAL_SHARDS:  # files that are mapped stay readable
                (self._folder / self._local.popitem(last=False)[0]).unlink(missing_ok=True)


_DOWNLOADS: dict[Path, ShardDownloads] = {}
"""The folders that this process has found in a store, or written to one: no file says where a folder belongs."""


def open_downloads(folder: Path) -> ShardDownloads | None:
    """Returns where a corpus downloads its shards from; None if it is in no store."""
    return _DOWNLOADS.get(folder)


def fetch_folder(url: str, folder: Path, last: str) -> bool:
    """Downloads a folder, of a corpus in several shards all but these, unless it is on the disk.

    Returns:
        Whether its `last` file, without which it is incomplete, is in the store.

    Raises:
        UserError: The store cannot be read.
    """
    with store_errors(f"{url} cannot be read"):
        store = Store(url)
        names = list(store.list())
        if last not in names:
            return False
        _DOWNLOADS.setdefault(folder, ShardDownloads(folder, url))
        if not folder.exists():
            with atomic_folder(folder, replace=False) as temporary:
                store.download([last], temporary)
                later = _shards(temporary / last) if last == "meta.json" else set()
                store.download([name for name in names if name not in {last, *later}], temporary)
    return True


def publish_folder(url: str, folder: Path, last: str) -> None:
    """Uploads a folder, its `last` file at the end, unless it is in the store; raises `UserError`."""
    with store_errors(f"{url} cannot be written"):
        store = Store(url)
        if last not in store.list():
            store.upload_folder(folder, "", last)
    _DOWNLOADS.setdefault(folder, ShardDownloads(folder, url))


def _shards(path: Path) -> set[str]:
    """Returns the files of splits in several shards, from the description of a corpus; raises `OSError`."""
    try:
        splits = json.loads(path.read_bytes())["shards"].values()
        return {shard[0] for shards in splits if len(shards) > 1 for shard in shards}
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        raise OSError(errno.EINVAL, f"{path.name} does not describe a corpus; delete the folder") from None
