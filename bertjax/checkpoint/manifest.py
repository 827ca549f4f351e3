"""The manifest of one checkpoint: what it holds and the digest of every file, so that damage is seen before it is used.

Orbax restores an array file with a flipped bit without a word; a step is good here only if every byte is what was
written. The manifest carries a digest of itself too.
"""

from __future__ import annotations

import hashlib
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import Any

from bertjax.io import atomic

MANIFEST = "bertjax.json"


class DamagedCheckpointError(Exception):
    """A checkpoint that is not, byte for byte, what was written; the message says which file and how."""


def write_manifest(folder: Path, item: str, body: dict[str, Any]) -> None:
    """Digests every file below `folder/item` and writes them with `body` (JSON values) into the folder's manifest."""
    files = sorted(path for path in (folder / item).rglob("*") if path.is_file())
    with ThreadPoolExecutor() as pool:
        digests = list(pool.map(hash_file, files))
    table = {
        path.relative_to(folder).as_posix(): {"size": path.stat().st_size, "sha256": digest}
        for path, digest in zip(files, digests, strict=True)
    }
    body = {**body, "files": table}
    atomic.write_json(folder / MANIFEST, {"sha256": _body_digest(body), "body": body}, sort_keys=True, fsync=True)


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest's body, checked against its own digest; array files are not read.

    Raises `DamagedCheckpointError`.
    """
    try:
        whole = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        body, digest = whole["body"], whole["sha256"]
    except FileNotFoundError:
        raise DamagedCheckpointError(f"{MANIFEST} is missing") from None
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise DamagedCheckpointError(f"{MANIFEST} cannot be read ({error})") from None
    if _body_digest(body) != digest:
        raise DamagedCheckpointError(f"{MANIFEST} was changed after it was written")
    return body


def verify_checkpoint(folder: Path) -> dict[str, Any]:
    """Compares every file with the manifest, sizes first, and returns the manifest's body.

    Raises `DamagedCheckpointError`.
    """
    body = read_manifest(folder)
    for name, entry in body["files"].items():
        if not is_plain_relative(name):
            raise DamagedCheckpointError(f"{MANIFEST} names a file outside the checkpoint: {name!r}")
        path = folder / name
        if not path.is_file():
            raise DamagedCheckpointError(f"{name} is missing")
        if path.stat().st_size != entry["size"]:
            raise DamagedCheckpointError(f"{name} has {path.stat().st_size} bytes, {entry['size']} were written")
    with ThreadPoolExecutor() as pool:
        digests = pool.map(lambda name: _digest_or_damaged(folder / name), body["files"])
        for (name, entry), digest in zip(body["files"].items(), digests, strict=True):
            if digest != entry["sha256"]:
                raise DamagedCheckpointError(f"{name} does not hold the bytes that were written")
    return body


def is_plain_relative(name: str) -> bool:
    """True for a relative path that stays below where it starts."""
    path = PurePosixPath(name)
    return bool(path.parts) and not path.is_absolute() and ".." not in path.parts


def hash_file(path: Path) -> str:
    """SHA-256 of a file's bytes, in hex."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def _digest_or_damaged(path: Path) -> str:
    try:
        return hash_file(path)
    except OSError as error:
        raise DamagedCheckpointError(f"{path.name} cannot be read ({error})") from None


def _body_digest(body: Any) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
