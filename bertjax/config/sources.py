"""The grammar of sources, `KIND:WHERE[:CONFIG[:SPLIT]][#FIELD][@WEIGHT]`, and the files that they name."""

from __future__ import annotations

import dataclasses
import difflib
import fnmatch
import glob
import math
import os
import re
from collections.abc import Iterator, Sequence

from bertjax.config.extensions import SOURCES
from bertjax.config.registry import import_object
from bertjax.errors import UserError, require_regular_file


@dataclasses.dataclass(frozen=True)
class SourceKind:
    """A kind of source, `KIND:WHERE`, with the functions that read it, imported only when they are used.

    Attributes:
        where: What WHERE names, in words.
        documents: `package.module:function` for `data.sources`, called with (path, field, errors, stats): yields the
            documents of a file. "": it holds no corpus. `errors` is strict or replace; `stats` are `DocumentStats`,
            counts that it may update.
        rows: `package.module:function` for `task.train`, called with (path, columns, header, errors): yields (location,
            values of the columns) of the examples in a file. "": it holds no labelled examples. `columns` are (config
            key, name); `header` is `task.header`.
        has_field: Whether the document of a corpus is in #FIELD, by default text.
        is_file: Whether WHERE is the path or the pattern of files; the functions get WHERE itself where it is not.
        digest: Where WHERE names no files, `package.module:function`, called with (WHERE): bytes that change whenever
            the documents do.
        files: Where WHERE names several files that are read together, `package.module:function`, called with (WHERE):
            their paths; `rows` gets WHERE itself, so `is_file` is False.
    """

    where: str = ""
    documents: str = ""
    rows: str = ""
    has_field: bool = False
    is_file: bool = True
    digest: str = ""
    files: str = ""

    def __post_init__(self) -> None:
        if not (self.documents or self.rows):
            raise UserError("a SourceKind needs documents or rows, the paths of the functions that read it")
        if self.documents and not (self.is_file or self.digest):
            raise UserError("a SourceKind with documents and without files needs a digest")


_TEXTS, _TABLES, _TASKS = "bertjax.data.readers", "bertjax.finetuning.readers.tables", "bertjax.finetuning.readers"
HUB = "a Hugging Face data set, NAME[:CONFIG[:SPLIT]]"
KINDS = {
    "builtin": SourceKind(
        "an embedded corpus, by name",
        "bertjax.data.sources:read_builtin",
        is_file=False,
        digest="bertjax.data.sources:builtin_digest",
    ),
    "text": SourceKind("documents separated by blank lines", f"{_TEXTS}:read_blocks"),
    "lines": SourceKind("one document per line", f"{_TEXTS}:read_lines"),
    "files": SourceKind("one document per file", f"{_TEXTS}:read_whole"),
    "tsv": SourceKind("columns between tabs, without quoting", rows=f"{_TABLES}:tsv_rows"),
    "csv": SourceKind("columns between commas, quoted with double quotes", rows=f"{_TABLES}:csv_rows"),
    "jsonl": SourceKind(
        "one JSON object per line, the document in #FIELD",
        f"{_TEXTS}:read_jsonl",
        f"{_TABLES}:jsonl_rows",
        has_field=True,
    ),
    "parquet": SourceKind("one row per document, in the column #FIELD", f"{_TEXTS}:read_parquet", has_field=True),
    "parallel": SourceKind(
        "two files with an example per line, SOURCE:TARGET, or PREFIX:en-de for PREFIX.en and PREFIX.de",
        rows=f"{_TABLES}:parallel_rows",
        is_file=False,
        files="bertjax.config.sources:parallel_files",
    ),
    "conll": SourceKind(
        "one word per line, columns between blanks, a blank line after every sentence",
        rows=f"{_TASKS}.token_classification:read_words",
    ),
    "squad": SourceKind("the JSON of SQuAD 1.1 and 2.0", rows=f"{_TASKS}.squad:read_questions"),
    "hub": SourceKind(
        HUB,
        "bertjax.data.sources:read_hub",
        f"{_TABLES}:hub_rows",
        has_field=True,
        is_file=False,
        digest="bertjax.data.sources:hub_digest",
    ),
}
"""Kinds of bertjax, in the order in which errors list them."""
BUILTINS = ("python-docs",)
_PATH = re.compile(r"([A-Za-z_]\w*(?:\.\w+)+:[A-Za-z_]\w*):")
_KIND_BY_ENDING = {"tsv": "tsv", "csv": "csv", "jsonl": "jsonl", "json": "squad", "conll": "conll", "txt": "conll"}
_ENDINGS = {"text": "txt", "lines": "txt", "files": "txt", "squad": "json"}
_UNREADABLE = (".zst", ".xz", ".bz2", ".zip", ".tar", ".tgz", ".tar.gz", ".7z")
_FIELD = re.compile(r"#(\w[\w-]*)$")
_WEIGHT = re.compile(r"@([+-]?(?:(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|nan|inf(?:inity)?))$", re.IGNORECASE)
_JSON_LINES = re.compile(r"\.(?:jsonl|ndjson)(?:\.gz)?$")
_LANGUAGES = re.compile(r"(\w+)-(\w+)")
_HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")


@dataclasses.dataclass(frozen=True)
class Source:
    """One source of a corpus or of labelled examples.

    Attributes:
        kind: A name in `SOURCES`, or the path of a `SourceKind`.
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
    kinds: tuple[str, ...] = dataclasses.field(default=(), compare=False)

    @property
    def spec(self) -> SourceKind:
        """Facts about the kind."""
        return SOURCES.load(self.kind)

    @property
    def hub_parts(self) -> tuple[str, str | None, str]:
        """(name, config or None, split) of a hub source; see `split_hub_name`."""
        if (parts := split_hub_name(self.where)) is None:
            raise self.error("write hub:NAME[:CONFIG[:SPLIT]], NAME as owner/name")
        return parts

    def error(self, message: str) -> UserError:
        """Returns an error that names the key and the source."""
        return UserError(f"{self.key}: {self.text!r}: {message}")


def split_hub_name(where: str) -> tuple[str, str | None, str] | None:
    """Returns (name, config or None, split) of NAME[:CONFIG[:SPLIT]]; None for another form.

    An empty CONFIG is the default one, no SPLIT is train.
    """
    name, config, split = [*where.split(":", 2), "", ""][:3]
    if not _HUB_NAME.fullmatch(name) or re.search(r":(?![^\[]*\])", split):
        return None
    return name, config or None, split or "train"


def parse_source(text: str, key: str = "data.sources", purpose: str = "documents") -> Source:
    """Parses a source; the field and the weight of a corpus are the last `#WORD` and `@FLOAT`, in either order.

    Args:
        text: The source as it was written.
        key: The config key or flag that messages name.
        purpose: "documents" of a corpus, or "rows" of labelled examples: what its kind must be able to read.

    Raises:
        UserError: The text is not such a source. No file is looked for.
    """
    kind, colon, where = _split_kind(text.strip())
    kinds = tuple(name for name, each in KINDS.items() if getattr(each, purpose))
    kinds += tuple(name for name in (SOURCES if kind not in kinds else ()) if SOURCES.is_extension(name))
    is_path = ":" in kind
    spec = SOURCES.load(kind, f"{key}: {text!r}") if colon and (kind in kinds or is_path) else None
    if spec is None or not getattr(spec, purpose):
        raise UserError(
            f"{key}: {text!r} must begin with one of {', '.join(f'{k}:' for k in kinds)}{_hint(text, kinds)}"
        )
    field = weight = None
    is_corpus = purpose == "documents"
    for _ in range(2 if is_corpus else 0):
        if weight is None and (match := _WEIGHT.search(where)):
            weight, where = match[1], where[: match.start()]
        if field is None and spec.has_field and (match := _FIELD.search(where)):
            field, where = match[1], where[: match.start()]
    if weight is not None and not (math.isfinite(float(weight)) and float(weight) > 0):
        raise UserError(f"{key}: {text!r}: the weight after @ must be a finite number above 0, not {weight}")
    if not where.strip():
        raise UserError(f"{key}: {text!r} names nothing after '{kind}:' ({spec.where})")
    if is_corpus and spec.has_field:
        field = field or "text"
    source = Source(kind, where, field, None if weight is None else float(weight), text, key, kinds)
    if kind == "hub":
        _ = source.hub_parts  # raises for another form
    return source


def parse_task_source(text: str, key: str) -> Source:
    """Parses a source of labelled examples; see `parse_source`."""
    return parse_source(text, key, "rows")


def is_task_source(text: str) -> bool:
    """Returns whether a text begins with the kind of a source of labelled examples."""
    kind, _, where = _split_kind(text)
    return bool(where) and (":" in kind or (kind in SOURCES and bool(SOURCES.load(kind).rows)))


def _split_kind(text: str) -> tuple[str, str, str]:
    """Splits at the colon after the kind, which may be `package.module:NAME`."""
    match = _PATH.match(text)
    return (match[1], ":", text[match.end() :]) if match else text.partition(":")


def check_source(source: Source) -> None:
    """Raises `UserError` for what cannot work, by a few calls to the file system; reads no text."""
    if source.kind == "builtin":
        if source.where not in BUILTINS:
            raise source.error(f"no such builtin; there is {', '.join(BUILTINS)}")
    elif source.spec.is_file:
        path = next(_matches(source), None)
        if path is None:
            raise _missing_file(source)
        _check_file(source, path)


def source_files(source: Source) -> list[str]:
    """Returns the files of a source, sorted; raises `UserError` where none can be read."""
    if source.spec.files:
        try:
            paths: list[str] = import_object(source.spec.files, source.text)(source.where)
        except UserError as error:
            raise source.error(str(error)) from None
        for path in paths:
            _check_file(source, path)
        return paths
    if not source.spec.is_file:
        return []
    files: dict[tuple[int, int], str] = {}
    for path in sorted(set(_matches(source)), key=lambda path: (os.path.islink(path), path)):
        _check_file(source, path)
        files.setdefault(_identity(path), path)
    if not files:
        raise _missing_file(source)
    return sorted(files.values())


def parallel_files(where: str) -> list[str]:
    """Returns the two files of a `parallel` source; raises `UserError` where one is missing or more than one fits."""
    first, _, second = where.rpartition(":")
    if not first:
        raise UserError("names one file; write parallel:SOURCE:TARGET, or parallel:PREFIX:en-de")
    names = [os.path.expanduser(each) for each in (first, second)]
    if (languages := _LANGUAGES.fullmatch(second)) and not os.path.exists(names[1]):
        names = [f"{names[0]}.{each}" for each in languages.groups()]
    paths = [next((path for path in (name, f"{name}.gz") if os.path.exists(path)), None) for name in names]
    for name, path in zip(names, paths, strict=True):
        if path is None:
            raise UserError(f"no such file: {name}; relative to {os.getcwd()}")
    return [path for path in paths if path is not None]


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
    if SOURCES.is_extension(source.kind):
        return
    if name.endswith(_UNREADABLE):
        raise source.error(f"{path} is an archive; unpack it, or compress its text with gzip")
    actual = "parquet" if name.endswith(".parquet") else "jsonl" if _JSON_LINES.search(name) else ""
    if actual != source.kind and (
        actual == "parquet" or source.kind == "parquet" or (actual and "text" in source.kinds)
    ):
        advice = f"write {actual}:{path}#FIELD" if actual in source.kinds else f"write {', '.join(source.kinds)}"
        raise source.error(f"{path} is not a {source.kind} file; {advice}")


def _hint(text: str, kinds: Sequence[str]) -> str:
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
