"""The manifest of a checkpoint: what it holds, and the SHA-256 of every file, so that damage is found before use.

Orbax restores an array file with a flipped bit silently; a step is valid here only if every byte is what was written.
The manifest has a digest of itself, too.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from bertjax.errors import comma_list, shortened
from bertjax.io.atomic import write_json
from bertjax.io.store import is_plain_name

MANIFEST = "bertjax.json"
_TABLES = ("meta", "metrics", "state", "files")


class DamagedCheckpointError(Exception):
    """A checkpoint that is not, byte for byte, what was written; the message names the file and the damage."""


def write_manifest(folder: Path, item: str, body: dict[str, Any]) -> None:
    """Writes the manifest of a checkpoint.

    Args:
        folder: the checkpoint.
        item: the subfolder whose files are digested.
        body: further content, JSON values.
    """
    paths = sorted(path for path in (folder / item).rglob("*") if path.is_file())
    with ThreadPoolExecutor() as pool:
        files = {
            path.relative_to(folder).as_posix(): {"size": path.stat().st_size, "sha256": digest}
            for path, digest in zip(paths, pool.map(_digest_file, paths), strict=True)
        }
    body = {**body, "files": files}
    write_json(folder / MANIFEST, {"sha256": body_digest(body), "body": body}, fsync=True, sort_keys=True)


def steps_in(directory: Path) -> list[int]:
    """Returns the steps whose checkpoints a directory holds, damaged ones included, in ascending order."""
    names = [path.name for path in directory.iterdir() if path.is_dir()] if directory.is_dir() else []
    return sorted(int(name) for name in names if re.fullmatch("0|[1-9][0-9]*", name))


def manifests(directory: Path) -> dict[int, dict[str, Any]]:
    """Returns the manifests of the steps in a directory that can be read, oldest first; array files are not read."""
    bodies = {}
    for step in steps_in(directory):
        with contextlib.suppress(DamagedCheckpointError):
            bodies[step] = read_manifest(directory / str(step))
    return bodies


def read_manifest(folder: Path) -> dict[str, Any]:
    """Returns the body of the manifest, checked against its own digest; array files are not read.

    Raises:
        DamagedCheckpointError: the manifest is missing, unreadable, changed, or of another step than the folder's name.
    """
    try:
        content = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        body, digest = content["body"], content["sha256"]
    except FileNotFoundError:
        raise DamagedCheckpointError(f"{MANIFEST} is missing") from None
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise DamagedCheckpointError(f"{MANIFEST} cannot be read ({error})") from None
    if body_digest(body) != digest:
        raise DamagedCheckpointError(f"{MANIFEST} was changed after it was written")
    if not (isinstance(body, dict) and all(isinstance(body.get(name), dict) for name in _TABLES)):
        raise DamagedCheckpointError(f"{MANIFEST} lacks {comma_list(_TABLES)}")
    if not all(isinstance(entry, dict) and entry.keys() >= {"size", "sha256"} for entry in body["files"].values()):
        raise DamagedCheckpointError(f"{MANIFEST} names a file without size and sha256")
    if not all(map(is_plain_name, body["files"])):
        raise DamagedCheckpointError(f"{MANIFEST} names a file outside the checkpoint")
    if not all(isinstance(value, int | float | None) for value in body["metrics"].values()):
        raise DamagedCheckpointError(f"{MANIFEST} has a metric that is not a number")
    if not all(isinstance(spec, list) and len(spec) == 2 for spec in body["state"].values()):
        raise DamagedCheckpointError(f"{MANIFEST} has an array without type and shape")
    if str(body.get("step")) != folder.name:
        raise DamagedCheckpointError(f"it is the checkpoint of step {shortened(body.get('step'))}")
    return body


def verify_checkpoint(folder: Path) -> dict[str, Any]:
    """Compares every file with the manifest, sizes first, and returns the manifest's body.

    Raises:
        DamagedCheckpointError: something is missing or differs.
    """
    body = read_manifest(folder)
    for name, entry in body["files"].items():
        path = folder / name
        if not path.is_file():
            raise DamagedCheckpointError(f"{name} is missing")
        if path.stat().st_size != entry["size"]:
            raise DamagedCheckpointError(f"{name} has {path.stat().st_size} bytes, {entry['size']} were written")
    with ThreadPoolExecutor() as pool:
        digests = pool.map(lambda name: _digest_file(folder / name), body["files"])
        for (name, entry), digest in zip(body["files"].items(), digests, strict=True):
            if digest != entry["sha256"]:
                raise DamagedCheckpointError(f"{name} does not hold the bytes that were written")
    return body


def _digest_file(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise DamagedCheckpointError(f"{path.name} cannot be read ({error})") from None


def body_digest(body: Any) -> str:
    """Returns the digest of a manifest's body, which names the digests of all files of its checkpoint."""
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
