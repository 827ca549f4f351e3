"""The grammar of sources, `KIND:WHERE[:CONFIG[:SPLIT]][#FIELD][@WEIGHT]`, and the files that they name."""

from __future__ import annotations

import dataclasses
import difflib
import fnmatch
import glob
import math
import os
import re
from collections.abc import Iterator, Mapping

from bertjax.errors import UserError, require_regular_file

HUB = "a Hugging Face data set, NAME[:CONFIG[:SPLIT]]"
CORPUS_SOURCES = {
    "builtin": "an embedded corpus, by name",
    "text": "documents separated by blank lines",
    "lines": "one document per line",
    "files": "one document per file",
    "jsonl": "one JSON object per line, the document in #FIELD",
    "parquet": "one row per document, in the column #FIELD",
    "hub": f"{HUB}#FIELD",
}
"""Kinds of `data.sources`, which may have @WEIGHT."""
TASK_SOURCES = {
    "tsv": "columns between tabs, without quoting",
    "csv": "columns between commas, quoted with double quotes",
    "jsonl": "one JSON object per line",
    "conll": "one word per line, columns between blanks, a blank line after every sentence",
    "squad": "the JSON of SQuAD 1.1 and 2.0",
    "hub": HUB,
}
"""Kinds of `task.train` and `task.eval`; columns are named by other keys."""
BUILTINS = ("python-docs",)
_WITH_FIELD = ("jsonl", "parquet", "hub")
_KIND_BY_ENDING = {"tsv": "tsv", "csv": "csv", "jsonl": "jsonl", "json": "squad", "conll": "conll", "txt": "conll"}
_ENDINGS = {"text": "txt", "lines": "txt", "files": "txt", "squad": "json"}
_UNREADABLE = (".zst", ".xz", ".bz2", ".zip", ".tar", ".tgz", ".tar.gz", ".7z")
_FIELD = re.compile(r"#(\w[\w-]*)$")
_WEIGHT = re.compile(r"@([+-]?(?:(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|nan|inf(?:inity)?))$", re.IGNORECASE)
_JSON_LINES = re.compile(r"\.(?:jsonl|ndjson)(?:\.gz)?$")
_HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")


@dataclasses.dataclass(frozen=True)
class Source:
    """One source of a corpus or of labelled examples.

    Attributes:
        kind: A key of `CORPUS_SOURCES` or `TASK_SOURCES`.
        where: Path, pattern, builtin name, or NAME[:CONFIG[:SPLIT]].
        field: Field or column of the document.
        weight: Weight in a mixture; None leaves its share to its size.
        text: The source as it was written.
        key: The config key or flag that messages name.
        kinds: The kinds that this key may have.
    """

    kind: str
    where: str
    field: str | None
    weight: float | None
    text: str
    key: str = dataclasses.field(default="data.sources", compare=False)
    kinds: tuple[str, ...] = dataclasses.field(default=tuple(CORPUS_SOURCES), compare=False)

    @property
    def hub_parts(self) -> tuple[str, str | None, str]:
        """(name, config or None, split) of a hub source; an empty CONFIG is the default one, no SPLIT is train."""
        parts = self.where.split(":", 2)
        name, config, split = [*parts, "", ""][:3]
        if not _HUB_NAME.fullmatch(name) or re.search(r":(?![^\[]*\])", split):
            raise self.error("write hub:NAME[:CONFIG[:SPLIT]], NAME as owner/name")
        return name, config or None, split or "train"

    def error(self, message: str) -> UserError:
        """Returns an error that names the key and the source."""
        return UserError(f"{self.key}: {self.text!r}: {message}")


def parse_source(text: str, key: str = "data.sources", kinds: Mapping[str, str] = CORPUS_SOURCES) -> Source:
    """Parses a source; the field and the weight of a corpus are the last `#WORD` and `@FLOAT`, in either order.

    Args:
        text: The source as it was written.
        key: The config key or flag that messages name.
        kinds: The kinds that it may have, with a description.

    Raises:
        UserError: The text is not such a source. No file is looked for.
    """
    kind, colon, where = text.strip().partition(":")
    if not colon or kind not in kinds:
        raise UserError(
            f"{key}: {text!r} must begin with one of {', '.join(f'{k}:' for k in kinds)}{_hint(text, kinds)}"
        )
    field = weight = None
    for _ in range(2 if kinds is CORPUS_SOURCES else 0):
        if weight is None and (match := _WEIGHT.search(where)):
            weight, where = match[1], where[: match.start()]
        if field is None and kind in _WITH_FIELD and (match := _FIELD.search(where)):
            field, where = match[1], where[: match.start()]
    if weight is not None and not (math.isfinite(float(weight)) and float(weight) > 0):
        raise UserError(f"{key}: {text!r}: the weight after @ must be a finite number above 0, not {weight}")
    if not where.strip():
        raise UserError(f"{key}: {text!r} names nothing after '{kind}:' ({kinds[kind]})")
    if kinds is CORPUS_SOURCES and kind in _WITH_FIELD:
        field = field or "text"
    source = Source(kind, where, field, None if weight is None else float(weight), text, key, tuple(kinds))
    if kind == "hub":
        _ = source.hub_parts  # raises for another form
    return source


def parse_task_source(text: str, key: str) -> Source:
    """Parses a source of labelled examples; see `parse_source`."""
    return parse_source(text, key, TASK_SOURCES)


def check_source(source: Source) -> None:
    """Raises `UserError` for what cannot work, by a few calls to the file system; reads no text."""
    if source.kind == "builtin":
        if source.where not in BUILTINS:
            raise source.error(f"no such builtin; there is {', '.join(BUILTINS)}")
    elif source.kind != "hub":
        path = next(_matches(source), None)
        if path is None:
            raise _missing_file(source)
        _check_file(source, path)


def source_files(source: Source) -> list[str]:
    """Returns the files of a source, sorted, none of builtin and hub; raises `UserError` where none can be read."""
    if source.kind in ("builtin", "hub"):
        return []
    files: dict[tuple[int, int], str] = {}
    for path in sorted(set(_matches(source)), key=lambda path: (os.path.islink(path), path)):
        _check_file(source, path)
        files.setdefault(_identity(path), path)
    if not files:
        raise _missing_file(source)
    return sorted(files.values())


def _matches(source: Source) -> Iterator[str]:
    where = os.path.expanduser(source.where)
    if os.path.exists(where):  # also a real name that looks like a pattern, such as a[1].txt
        yield where
    elif glob.has_magic(where):
        root = "/" if where.startswith("/") else ""
        parts = [part for part in where.split("/") if part not in ("", ".")]
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
        if (identity := _identity(folder or ".")) in entered:
            return
        entered.add(identity)
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


def _identity(path: str) -> tuple[int, int]:
    """Returns what two names of one file or folder have in common."""
    result = os.stat(path)
    return result.st_dev, result.st_ino


def _check_file(source: Source, path: str) -> None:
    name = path.lower()
    require_regular_file(path, f"{source.key}: {source.text!r}")
    if os.path.isdir(path):
        ending = _ENDINGS.get(source.kind, source.kind)
        raise source.error(f"is a directory; name its files: {source.kind}:{path.rstrip('/')}/**/*.{ending}")
    if not os.access(path, os.R_OK):
        raise source.error(f"{path} may not be read; check its permissions")
    if name.endswith(_UNREADABLE):
        raise source.error(f"{path} is an archive; unpack it, or compress its text with gzip")
    actual = "parquet" if name.endswith(".parquet") else "jsonl" if _JSON_LINES.search(name) else ""
    if actual != source.kind and (
        actual == "parquet" or source.kind == "parquet" or (actual and "text" in source.kinds)
    ):
        advice = f"write {actual}:{path}#FIELD" if actual in source.kinds else f"write {', '.join(source.kinds)}"
        raise source.error(f"{path} is not a {source.kind} file; {advice}")


def _hint(text: str, kinds: Mapping[str, str]) -> str:
    is_corpus = "text" in kinds
    ending = os.path.splitext(text.removesuffix(".gz"))[1].lstrip(".").lower()
    kind = "text" if is_corpus else _KIND_BY_ENDING.get(ending)
    near = difflib.get_close_matches(text.strip().partition(":")[0], kinds, n=1)
    if near and ":" in text:
        return f"; did you mean {near[0]}:?"
    is_path = os.path.exists(os.path.expanduser(text)) if is_corpus else ":" not in text
    return f"; for this path write {kind}:{text}" if kind and is_path else ""


def _missing_file(source: Source) -> UserError:
    if glob.has_magic(source.where):
        return source.error(f"no file matches {source.where}; ** searches subdirectories")
    hint = ""
    cut = re.sub(r"[#@][\w.]+$", "", source.where)
    if cut != source.where and os.path.exists(os.path.expanduser(cut)):
        hint = f" ({cut} exists: {source.kind}: takes no #FIELD, and a weight is a number, @2.5)"
    return source.error(f"no such file: {source.where}{hint}; relative to {os.getcwd()}")
