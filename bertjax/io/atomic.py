"""Atomic writes: a file or folder appears under its name complete, or not at all.

What is written has a temporary name, `.NAME.01234567.tmp`, and is locked: `sweep` removes what killed writers left. A
folder that is replaced is `.NAME.01234567.old.tmp` for a moment.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from bertjax.errors import UserError

_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL
_LEFTOVER = re.compile(r"\.(?P<name>.+)\.[0-9a-f]{8}(?P<old>\.old)?\.tmp")


@contextlib.contextmanager
def atomic_file(path: Path, mode: str = "wb", *, errors: str | None = None, fsync: bool = False) -> Iterator[IO[Any]]:
    """Opens a temporary file that replaces `path` at the end of the `with` block.

    The file lies in the folder of `path`, is created exclusively (no link is followed) with the permissions of the
    umask, and is removed when the block raises. A device or a pipe is written in place: a file that replaced /dev/null
    would break the machine.

    Args:
        path: the file to write; its folder must exist.
        mode: "wb", or "w" for UTF-8 text.
        errors: what to do with text that cannot be encoded, as in `open`.
        fsync: flush the content to the disk before the file gets its name.

    Raises:
        OSError: the file cannot be written; `path` is then what it was before.
    """
    encoding = None if "b" in mode else "utf-8"
    if is_device(path):
        with open(path, mode, encoding=encoding, errors=errors) as file:
            yield file
        return
    temporary, descriptor = _make_locked(path, lambda name: os.open(name, _NEW_FILE, 0o666))
    try:
        with open(descriptor, mode, encoding=encoding, errors=errors) as file:
            yield file
            if fsync:
                file.flush()
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def is_device(path: Path) -> bool:
    """Returns whether a path is a device, a pipe or a socket, or names an open file (/dev/stdout)."""
    return path.parent == Path("/dev") or (path.exists() and not path.is_file() and not path.is_dir())


def require_writable(key: str, folder: Path) -> None:
    """Raises `UserError`, which names a key or flag, if no file can be written to this folder, which need not exist."""
    try:
        nearest = next(each for each in (folder, *folder.absolute().parents) if os.path.lexists(each))
        os.rmdir(tempfile.mkdtemp(prefix=".bertjax-", dir=nearest))
    except OSError as error:
        raise UserError(
            f"{key}={folder} cannot be written ({error.strerror}); grant this user write access, or choose another "
            "folder"
        ) from None


def write_bytes(path: Path, content: bytes) -> None:
    """Writes or replaces a file atomically."""
    sweep(path.parent, path.name)
    with atomic_file(path) as file:
        file.write(content)


def write_text(path: Path, text: str, *, errors: str | None = None) -> None:
    """Writes or replaces a UTF-8 file atomically.

    Args:
        path: File.
        text: Its new content.
        errors: Handling of invalid characters, as in `open`.
    """
    sweep(path.parent, path.name)
    with atomic_file(path, "w", errors=errors) as file:
        file.write(text)


def write_json(path: Path, value: Any, *, fsync: bool = False, **options: Any) -> None:
    """Writes or replaces a JSON file atomically.

    Args:
        path: the file to write.
        value: anything that `json.dumps` takes.
        fsync: flush the content to the disk before the file gets its name.
        options: arguments of `json.dumps`; the indentation is 1 by default.
    """
    sweep(path.parent, path.name)
    with atomic_file(path, "w", fsync=fsync) as file:
        file.write(json.dumps(value, **({"indent": 1} | options)) + "\n")


@contextlib.contextmanager
def atomic_folder(folder: Path, *, replace: bool = True) -> Iterator[Path]:
    """Makes a temporary folder that gets the name `folder` at the end of the `with` block.

    Args:
        folder: where the content is to appear; parent folders are made.
        replace: replace a folder that is not empty; otherwise the folder stays as it is and
            the new content is dropped.

    Raises:
        OSError: the folder cannot be written or renamed; `folder` is then what it was before.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary, lock = _make_locked(folder, _make_folder)
    try:
        yield temporary
        try:
            os.replace(temporary, folder)  # works where there is no folder, or an empty one
        except OSError:
            if not folder.is_dir() or not any(folder.iterdir()):
                raise
            if replace:
                _exchange(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        os.close(lock)


def sweep(folder: Path, name: str | None = None) -> None:
    """Removes what killed writers left in a folder; a folder that one of them was replacing gets its name back.

    A writer locks what it writes, so that only leftovers of dead ones are touched; without locks in the file system all
    of them stay.

    Args:
        folder: where to look; it need not exist.
        name: only leftovers of this file or folder; all by default.
    """
    with contextlib.suppress(OSError):
        for entry in list(os.scandir(folder)):
            match = _LEFTOVER.fullmatch(entry.name)
            if match and name in (None, match["name"]):
                _remove_if_dead(folder / entry.name, folder / match["name"] if match["old"] else None)


def _remove_if_dead(leftover: Path, name: Path | None) -> None:
    with contextlib.suppress(OSError):
        descriptor = os.open(leftover, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if name is not None and not os.path.lexists(name):
                os.rename(leftover, name)
            elif leftover.is_dir():
                shutil.rmtree(leftover, ignore_errors=True)
            else:
                leftover.unlink()
        finally:
            os.close(descriptor)


def _exchange(temporary: Path, folder: Path) -> None:
    """Replaces a folder that is not empty; a process that is killed in between leaves the old one to `sweep`."""
    old, lock = temporary.with_suffix(".old.tmp"), os.open(folder, os.O_RDONLY)
    try:
        _lock(lock)
        os.rename(folder, old)
        os.rename(temporary, folder)
    except BaseException:
        if old.exists() and not os.path.lexists(folder):
            os.rename(old, folder)
        raise
    else:
        shutil.rmtree(old, ignore_errors=True)
    finally:
        os.close(lock)


def _make_locked(path: Path, make: Callable[[Path], int]) -> tuple[Path, int]:
    """Makes a temporary file or folder next to a path, of which concurrent writers have different names, and locks it.

    Returns:
        Its path and its descriptor, which holds the lock until it is closed or the process ends.
    """
    while True:
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
        descriptor = make(temporary)
        _lock(descriptor)
        if temporary.exists():  # nobody has swept it before it was locked
            return temporary, descriptor
        os.close(descriptor)


def _make_folder(path: Path) -> int:
    path.mkdir()
    return os.open(path, os.O_RDONLY)


def _lock(descriptor: int) -> None:
    with contextlib.suppress(OSError):  # not every file system has locks
        fcntl.flock(descriptor, fcntl.LOCK_EX)
