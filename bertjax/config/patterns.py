"""Paths that match a pattern with `*`, `?`, `[...]` and `**`."""

from __future__ import annotations

import fnmatch
import glob
import os
from collections.abc import Iterator


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
