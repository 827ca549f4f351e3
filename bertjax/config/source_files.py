"""Files that sources name, on disks and in object stores."""

from __future__ import annotations

import contextlib
import fnmatch
import glob
import json
import os
import re
from collections.abc import Iterable, Iterator
from typing import Any

from bertjax.compression import ENDINGS, bare_name
from bertjax.config.extensions import SOURCES
from bertjax.config.registry import import_object
from bertjax.config.sources import BUILTINS, Source
from bertjax.errors import UserError, named, require_regular_file
from bertjax.storage import ObjectInfo, entry_of, exists, expand_url, is_url, local_path, open_binary


def expand_pattern(pattern: str) -> Iterator[str]:
    """Yields the files that match a pattern; one with links may come under several names."""
    root = "/" if pattern.startswith("/") else ""
    parts = [part for part in pattern.split("/") if part not in ("", ".")]
    yield from (path for path in _expand(root, parts, {}) if os.path.isfile(path))


def _expand(folder: str, parts: list[str], visited: dict[int, set[tuple[int, int]]]) -> Iterator[str]:
    """Yields the paths that match a pattern, as `glob` does, but enters no folder twice by ** whatever links there are.

    Args:
        folder: folder to search, "" for the current one.
        parts: the rest of the pattern between slashes.
        visited: folders that every ** has entered, by the number of parts from there on.
    """
    if not parts:
        yield folder
        return
    name, rest = parts[0], parts[1:]
    if name == "**":
        entered = visited.setdefault(len(parts), set())
        if (here := identity(folder or ".")) in entered:
            return
        entered.add(here)
        yield from _expand(folder, rest, visited)
        inside = [os.path.join(folder, each) for each in _names(folder) if not each.startswith(".")]
        for path in inside:
            if os.path.isdir(path):
                yield from _expand(path, parts, visited)
            elif not rest:
                yield path
    elif not glob.has_magic(name):
        path = os.path.join(folder, name)
        if os.path.exists(path):
            yield from _expand(path, rest, visited)
    else:
        for match in fnmatch.filter(_names(folder), name):
            if name.startswith(".") or not match.startswith("."):
                yield from _expand(os.path.join(folder, match), rest, visited)


def _names(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder or "."))
    except OSError:  # not a folder, or not readable
        return []


def identity(path: str) -> tuple[int, int]:
    """Returns what two names of one file or folder have in common."""
    result = os.stat(path)
    return result.st_dev, result.st_ino


_ENDINGS = {"text": "txt", "lines": "txt", "files": "txt", "squad": "json"}
_KIND_OF_FILE = {".parquet": "parquet", ".arrow": "arrow", ".tar": "tar", ".jsonl": "jsonl", ".ndjson": "jsonl"}
_BINARY = ("parquet", "arrow", "tar")
_UNREADABLE = (".zip", ".7z", ".rar", *(f"{kind}{ending}" for kind in (".parquet", ".arrow") for ending in ENDINGS))
_LANGUAGES = re.compile(r"(\w+)-(\w+)")
_TWO_PATHS = re.compile(r"(.+):(?!//)(.*)")


def check_source(source: Source) -> None:
    """Raises `UserError` for what cannot work, by a few calls to the file system or store; reads no text."""
    if source.kind == "builtin":
        if source.where not in BUILTINS:
            raise source.error(f"no such builtin; there is {', '.join(BUILTINS)}")
    elif source.spec.is_file:
        with _errors(source):
            path, _ = next(_matches(source), (None, None))
        if path is None:
            raise _missing_file(source)
        _check_file(source, path)


def source_files(source: Source) -> list[str]:
    """Returns the files of a source, sorted; raises `UserError` where none can be read."""
    return list(source_entries(source))


def source_entries(source: Source) -> dict[str, ObjectInfo]:
    """Returns the files of a source with size and tag, sorted; raises `UserError` where none can be read."""
    with _errors(source):
        entries = dict(_matches(source))
    files: dict[object, str] = {}
    for path in sorted(entries, key=lambda path: (os.path.islink(path), path)) if source.spec.is_file else entries:
        _check_file(source, path)
        files.setdefault(path if is_url(path) or not source.spec.is_file else identity(path), path)
    if source.spec.is_file and not files:
        raise _missing_file(source)
    return {path: entries[path] for path in (sorted(files.values()) if source.spec.is_file else entries)}


@contextlib.contextmanager
def _errors(source: Source) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise source.error(f"{error.filename or source.where}: cannot be read: {error.strerror or error}") from error


def _listed_files(source: Source) -> list[str]:
    if not source.spec.files:
        return []
    try:
        paths: list[str] = import_object(source.spec.files, source.text)(source.where)
    except UserError as error:
        raise source.error(str(error)) from None
    return paths


def saved_files(where: str) -> list[str]:
    """Returns the files of a folder of `datasets.save_to_disk`, none where it is another path.

    Raises:
        UserError: the folder has several splits, or a file is missing.
    """
    folder = local_path(where)
    if is_url(folder) and (glob.has_magic(folder) or folder.lower().endswith(".arrow")):
        return []
    if splits := _read_json(os.path.join(folder, "dataset_dict.json")):
        names = ", ".join(splits.get("splits", []))
        raise UserError(f"the folder holds the splits {names}; name one, such as arrow:{os.path.join(where, 'train')}")
    state = _read_json(os.path.join(folder, "state.json"))
    paths = [os.path.join(folder, os.path.basename(each["filename"])) for each in state.get("_data_files", ())]
    for path in paths:
        if not exists(path):
            raise UserError(f"{path} is missing, which state.json of the folder names; copy or save the folder again")
    return paths


def _read_json(path: str) -> dict[str, Any]:
    try:
        with open_binary(path) as file:
            result: dict[str, Any] = json.load(file)
            return result
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from error


def parallel_files(where: str) -> list[str]:
    """Returns the two files of a `parallel` source; raises `UserError` where one is missing or more than one fits."""
    if not (match := _TWO_PATHS.fullmatch(where)):
        raise UserError("names one file; write parallel:SOURCE:TARGET, or parallel:PREFIX:en-de")
    names = [local_path(each) for each in match.groups()]
    try:
        if (languages := _LANGUAGES.fullmatch(match[2])) and not exists(names[1]):
            names = [f"{names[0]}.{each}" for each in languages.groups()]
        paths = [next(filter(exists, (name + each for each in ("", *ENDINGS))), None) for name in names]
    except OSError as error:
        raise UserError(f"{error.filename} cannot be read: {error.strerror}") from error
    for name, path in zip(names, paths, strict=True):
        if path is None:
            raise UserError(f"no such file: {name}; relative to {os.getcwd()}")
    return [path for path in paths if path is not None]


def _matches(source: Source) -> Iterator[tuple[str, ObjectInfo]]:
    where = local_path(source.where)
    paths: Iterable[str] = _listed_files(source)
    if source.spec.is_file and not paths:
        if is_url(where):
            yield from expand_url(where).items()
        elif os.path.exists(where):  # also a real name that looks like a pattern, such as a[1].txt
            paths = [where]
        elif glob.has_magic(where):
            paths = expand_pattern(where)
    yield from ((path, entry_of(path)) for path in paths)


def _check_file(source: Source, path: str) -> None:
    require_regular_file(path, f"{named(source.key)}: {source.text!r}")
    if os.path.isdir(path):
        raise source.error(f"is a directory; name its files: {_files_of(source, path)}")
    if not (is_url(path) or os.access(path, os.R_OK)):
        raise source.error(f"{path} may not be read; check its permissions")
    if SOURCES.is_extension(source.kind):
        return
    if path.lower().endswith(_UNREADABLE):
        raise source.error(f"{path} is an archive; unpack it, or compress its text as {', '.join(ENDINGS)}")
    actual = _KIND_OF_FILE.get(os.path.splitext(bare_name(path))[1], "")
    is_binary = actual in _BINARY or source.kind in _BINARY
    if actual != source.kind and (is_binary or (actual and "text" in source.kinds)):
        advice = f"write {actual}:{path}#FIELD" if actual in source.kinds else f"write {', '.join(source.kinds)}"
        raise source.error(f"{path} is not a {source.kind} file; {advice}")


def _files_of(source: Source, folder: str) -> str:
    return f"{source.kind}:{folder.rstrip('/')}/**/*.{_ENDINGS.get(source.kind, source.kind)}"


def _missing_file(source: Source) -> UserError:
    if glob.has_magic(source.where):
        return source.error(f"no file matches {source.where}; ** searches subdirectories")
    hint = ""
    cut = re.sub(r"[#@][\w.]+$", "", source.where)
    with _errors(source):
        is_suffix = cut != source.where and exists(cut)
    if is_suffix:
        hint = f" ({cut} exists: {source.kind}: takes no #FIELD, and a weight is a number, @2.5)"
    if is_url(source.where):
        return source.error(
            f"no such object: {source.where}{hint}; for a folder write {_files_of(source, source.where)}"
        )
    return source.error(f"no such file: {source.where}{hint}; relative to {os.getcwd()}")
