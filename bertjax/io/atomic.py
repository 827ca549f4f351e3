"""Atomic writes: a file or folder appears under its name complete, or not at all."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from bertjax.errors import UserError


@contextlib.contextmanager
def atomic_file(path: Path, mode: str = "wb", *, errors: str | None = None, fsync: bool = False) -> Iterator[IO[Any]]:
    """Opens a temporary file that replaces `path` at the end of the `with` block.

    The file lies in the folder of `path`, is created exclusively (no link is followed) with the permissions of the
    umask, and is removed when the block raises.

    Args:
        path: the file to write; its folder must exist.
        mode: "wb", or "w" for UTF-8 text.
        errors: what to do with text that cannot be encoded, as in `open`.
        fsync: flush the content to the disk before the file gets its name.

    Raises:
        OSError: the file cannot be written; `path` is then what it was before.
    """
    temporary = _temporary_name(path)
    encoding = None if "b" in mode else "utf-8"
    try:
        with open(temporary, mode.replace("w", "x"), encoding=encoding, errors=errors) as file:
            yield file
            if fsync:
                file.flush()
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


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
    with atomic_file(path) as file:
        file.write(content)


def write_text(path: Path, text: str, *, errors: str | None = None) -> None:
    """Writes or replaces a UTF-8 file atomically.

    Args:
        path: File.
        text: Its new content.
        errors: Handling of invalid characters, as in `open`.
    """
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
    temporary, old = _temporary_name(folder), _temporary_name(folder)
    temporary.mkdir()
    try:
        yield temporary
        try:
            os.replace(temporary, folder)  # works where there is no folder, or an empty one
        except OSError:
            if not folder.is_dir() or not any(folder.iterdir()):
                raise
            if replace:
                os.rename(folder, old)
                try:
                    os.rename(temporary, folder)
                except OSError:
                    os.rename(old, folder)
                    raise
    finally:
        for leftover in (temporary, old):
            shutil.rmtree(leftover, ignore_errors=True)


def _temporary_name(path: Path) -> Path:
    """A new name in the same folder; concurrent writers of one path get different names."""
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
