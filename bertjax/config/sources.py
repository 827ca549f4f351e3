"""The grammar of corpus sources, `KIND:WHERE[#FIELD][@WEIGHT]`, and the files that they name."""

from __future__ import annotations

import dataclasses
import difflib
import glob
import math
import os
import re
from collections.abc import Iterator

from bertjax.errors import UserError

KINDS = {
    "builtin": "an embedded corpus, by name",
    "text": "documents split by blank lines",
    "lines": "one document per line",
    "files": "one document per file",
    "jsonl": "one JSON object per line, the document in #FIELD",
    "parquet": "one row per document, in the column #FIELD",
    "hub": "a Hugging Face data set, NAME[:CONFIG[:SPLIT]]#FIELD",
}


BUILTINS = ("python-docs",)


_WITH_FIELD = ("jsonl", "parquet", "hub")


_ENDINGS = {"text": "txt", "lines": "txt", "files": "txt", "jsonl": "jsonl", "parquet": "parquet"}


_UNREADABLE = (".zst", ".xz", ".bz2", ".zip", ".tar", ".tgz", ".tar.gz", ".7z")


_FIELD = re.compile(r"#(\w[\w-]*)$")


_WEIGHT = re.compile(r"@([+-]?(?:(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|nan|inf(?:inity)?))$", re.IGNORECASE)


_JSON_LINES = re.compile(r"\.(?:jsonl|ndjson)(?:\.gz)?$")


_HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")


@dataclasses.dataclass(frozen=True)
class Source:
    """One corpus of a mixture. `weight` None leaves its share to its size; `text` is what the user wrote."""

    kind: str
    where: str
    field: str | None
    weight: float | None
    text: str


def parse_source(text: str) -> Source:
    """Read `KIND:WHERE[#FIELD][@WEIGHT]`; the field and the weight are the last `#WORD` and `@FLOAT`."""
    kind, colon, where = text.strip().partition(":")
    if not colon or kind not in KINDS:
        raise UserError(_unknown_kind(text, kind))
    weight_text = field = None
    for _ in range(2):  # either order is understood
        if weight_text is None and (found := _WEIGHT.search(where)):
            weight_text, where = found[1], where[: found.start()]
        if field is None and kind in _WITH_FIELD and (found := _FIELD.search(where)):
            field, where = found[1], where[: found.start()]
    weight = None if weight_text is None else float(weight_text)
    if weight is not None and not (math.isfinite(weight) and weight > 0):
        raise UserError(f"data source {text!r}: the weight after @ must be a finite number above 0, not {weight_text}")
    if not where:
        raise UserError(f"data source {text!r} names nothing after '{kind}:'; write {kind}:WHERE ({KINDS[kind]})")
    if kind in _WITH_FIELD and field is None:
        field = "text"
    return Source(kind, where, field, weight, text)


def _unknown_kind(text: str, kind: str) -> str:
    message = f"data source {text!r} must begin with one of {', '.join(f'{name}:' for name in KINDS)}"
    if os.path.exists(os.path.expanduser(text)):
        return f"{message}; for this path write text:{text}"
    nearest = difflib.get_close_matches(kind, KINDS, n=1, cutoff=0.0)
    return f"{message}; did you mean {nearest[0]}:?" if nearest else message


def check_source(source: Source) -> None:
    """Find what cannot work without reading any text (a few file-system calls); raises `UserError`."""
    if source.kind == "builtin":
        if source.where not in BUILTINS:
            raise UserError(f"data source {source.text!r}: no such builtin; there is {', '.join(BUILTINS)}")
    elif source.kind == "hub":
        hub_parts(source)
    else:
        for path in _matches(source):
            _check_file(source, path)
            return
        raise UserError(_nothing_found(source))


def source_files(source: Source) -> list[str]:
    """The files of a source, sorted; none for builtin and hub. Globs may hold `**`."""
    if source.kind in ("builtin", "hub"):
        return []
    files = sorted(set(_matches(source)))
    if not files:
        raise UserError(_nothing_found(source))
    for path in files:
        _check_file(source, path)
    return files


def _matches(source: Source) -> Iterator[str]:
    where = os.path.expanduser(source.where)
    if os.path.exists(where):  # also a real name that looks like a pattern, such as a[1].txt
        yield where
    elif glob.has_magic(where):
        yield from (path for path in glob.iglob(where, recursive=True) if os.path.isfile(path))


def _check_file(source: Source, path: str) -> None:
    name = path.lower()
    if os.path.isdir(path):
        raise UserError(
            f"data source {source.text!r} is a directory; name its files, for example "
            f"{source.kind}:{path.rstrip('/')}/**/*.{_ENDINGS[source.kind]}"
        )
    if not os.access(path, os.R_OK):
        raise UserError(f"data source {source.text!r}: {path} may not be read; check its permissions")
    if name.endswith(_UNREADABLE):
        raise UserError(f"data source {source.text!r}: {path} is an archive; unpack it, or compress its text with gzip")
    suited = "parquet" if name.endswith(".parquet") else "jsonl" if _JSON_LINES.search(name) else ""
    if suited != source.kind and (suited or source.kind == "parquet"):
        advice = f"write {suited}:{path}#FIELD" if suited else "write jsonl:, text:, lines: or files: instead"
        raise UserError(f"data source {source.text!r}: {path} is no {source.kind} file; {advice}")


def _nothing_found(source: Source) -> str:
    if glob.has_magic(source.where):
        return f"data source {source.text!r}: no file matches {source.where}; ** searches folders below"
    hint = ""
    cut = re.sub(r"[#@][\w.]+$", "", source.where)
    if cut != source.where and os.path.exists(os.path.expanduser(cut)):
        hint = f" ({cut} exists: {source.kind}: takes no #FIELD, and a weight is a number, @2.5)"
    return f"data source {source.text!r}: no such file: {source.where}{hint}; it is looked for from {os.getcwd()}"


def hub_parts(source: Source) -> tuple[str, str | None, str]:
    """(name, config or None, split) of `NAME[:CONFIG[:SPLIT]]`; an empty CONFIG means the default one."""
    parts = source.where.split(":")
    if len(parts) > 3 or not _HUB_NAME.fullmatch(parts[0]):
        raise UserError(f"data source {source.text!r}: write hub:NAME[:CONFIG[:SPLIT]]#FIELD, NAME as owner/name")
    name, config, split = [*parts, "", ""][:3]
    return name, config or None, split or "train"
