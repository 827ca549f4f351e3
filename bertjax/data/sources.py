"""Where text comes from: `KIND:WHERE[#FIELD][@WEIGHT]` strings become streams of documents.

Hub data sets stream through `datasets` and parquet files through its `pyarrow`. Plain text and JSON lines are read with
Python's own files: the text builder of `datasets` copies the whole corpus into a cache first, and reports invalid UTF-8
without the file and the line, which is what a user needs to mend it.
"""

from __future__ import annotations

import dataclasses
import difflib
import glob
import gzip
import hashlib
import json
import math
import os
import re
import zlib
from collections.abc import Callable, Iterator
from typing import Any

from bertjax.types import UserError

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
_BLOCK_BYTES = 1 << 20
_FIELD = re.compile(r"#(\w[\w-]*)$")
_WEIGHT = re.compile(r"@([+-]?(?:(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|nan|inf(?:inity)?))$", re.IGNORECASE)
_JSON_LINES = re.compile(r"\.(?:jsonl|ndjson)(?:\.gz)?$")
_HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")
_LINE_TAIL = re.compile(r"[^\S\n]+$", re.MULTILINE)


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
        _hub_parts(source)
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


def iter_documents(source: Source, errors: str = "strict") -> Iterator[str]:
    """Stream the non-empty documents of a source, in order, holding one document at a time.

    Trailing whitespace of every line is dropped; newlines stay, because a line is a paragraph or a sentence.
    `errors` is "strict" (invalid UTF-8 raises) or "replace". Raises `UserError` naming file and line.
    """
    readers: dict[str, Callable[[str, Source, str], Iterator[str]]] = {
        "text": _read_blocks,
        "lines": _read_lines,
        "files": _read_whole,
        "jsonl": _read_jsonl,
        "parquet": _read_parquet,
    }
    if errors not in ("strict", "replace"):
        raise UserError(f"data.errors must be strict or replace, not {errors!r}")
    if source.kind in readers:
        found: Iterator[str] = (
            text for path in source_files(source) for text in readers[source.kind](path, source, errors)
        )
    elif source.kind == "hub":
        found = _read_hub(source, errors)
    else:
        check_source(source)
        from bertjax.data.builtin import python_docs

        found = iter(python_docs())
    for document in found:
        cleaned = _LINE_TAIL.sub("", document.replace("\r\n", "\n")).rstrip().lstrip("\n")
        if cleaned:
            yield cleaned


def _text_lines(path: str, errors: str) -> Iterator[tuple[int, str]]:
    """(line number from 1, line with its newline) of a plain or gzipped UTF-8 file."""
    opener: Any = gzip.open if path.lower().endswith(".gz") else open
    number = 0
    try:
        with opener(path, "rb") as file:
            for number, raw in enumerate(file, 1):
                if number == 1:
                    raw = raw.removeprefix(b"\xef\xbb\xbf")  # the mark that some editors write in front of UTF-8
                yield number, raw.decode("utf-8", errors)
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path}:{number}: invalid UTF-8 (byte 0x{error.object[error.start]:02x} at column {error.start + 1}); "
            "convert the file to UTF-8, or set data.errors='replace'"
        ) from error
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UserError(f"{path}: broken gzip after line {number} ({error}); copy or compress it again") from error
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from error


def _read_blocks(path: str, source: Source, errors: str) -> Iterator[str]:
    block: list[str] = []
    for _, line in _text_lines(path, errors):
        if line.isspace():
            if block:
                yield "".join(block)
            block = []
        else:
            block.append(line)
    if block:
        yield "".join(block)


def _read_lines(path: str, source: Source, errors: str) -> Iterator[str]:
    for _, line in _text_lines(path, errors):
        yield line


def _read_whole(path: str, source: Source, errors: str) -> Iterator[str]:
    yield "".join(line for _, line in _text_lines(path, errors))


def _read_jsonl(path: str, source: Source, errors: str) -> Iterator[str]:
    for number, line in _text_lines(path, errors):
        if line.isspace():
            continue
        place = f"{path}:{number}"
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{place}: broken JSON ({error}); one object per line is expected") from error
        if not isinstance(record, dict):
            raise UserError(f"{place}: a JSON {type(record).__name__} where an object is expected")
        if source.field not in record:
            keys = ", ".join(map(str, list(record)[:8]))
            raise UserError(f"{place}: no field {source.field!r} (it has {keys}); name yours with #FIELD")
        yield _checked(record[source.field], place, source, errors)


def _read_parquet(path: str, source: Source, errors: str) -> Iterator[str]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    row = 0
    try:
        with pq.ParquetFile(path) as file:
            names = file.schema_arrow.names
            if source.field not in names:
                raise UserError(
                    f"{path}: no column {source.field!r} (it has {', '.join(names[:8])}); name yours: #FIELD"
                )
            for batch in file.iter_batches(batch_size=256, columns=[source.field]):
                for value in batch.column(0).to_pylist():
                    row += 1
                    yield _checked(value, f"{path}: row {row}", source, errors)
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"{path}: cannot be read as parquet after row {row}: {_one_line(error)}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: invalid UTF-8 after row {row}; write the column again as text") from error


def _checked(value: Any, place: str, source: Source, errors: str) -> str:
    """The document as valid text: JSON can carry half a surrogate pair, which no tokenizer accepts."""
    if not isinstance(value, str):
        kind = "nothing" if value is None else type(value).__name__
        raise UserError(
            f"{place}: field {source.field!r} holds {kind} where text is expected; name another with #FIELD"
        )
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            if errors == "strict":
                advice = "mend the file, or set data.errors='replace'"
                raise UserError(f"{place}: half a surrogate pair (invalid Unicode); {advice}") from error
            return value.encode(errors="replace").decode()
    return value


def _hub_parts(source: Source) -> tuple[str, str | None, str]:
    """(name, config or None, split) of `NAME[:CONFIG[:SPLIT]]`; an empty CONFIG means the default one."""
    parts = source.where.split(":")
    if len(parts) > 3 or not _HUB_NAME.fullmatch(parts[0]):
        raise UserError(f"data source {source.text!r}: write hub:NAME[:CONFIG[:SPLIT]]#FIELD, NAME as owner/name")
    name, config, split = [*parts, "", ""][:3]
    return name, config or None, split or "train"


def _read_hub(source: Source, errors: str) -> Iterator[str]:
    import datasets

    name, config, split = _hub_parts(source)
    row = 0
    try:
        for row, record in enumerate(datasets.load_dataset(name, config, split=split, streaming=True), 1):
            place = f"hub data set {name}, row {row}"
            if source.field not in record:
                raise UserError(
                    f"{place}: no field {source.field!r} (it has {', '.join(list(record)[:8])}); use #FIELD"
                )
            yield _checked(record[source.field], place, source, errors)
    except (UserError, GeneratorExit):
        raise
    except Exception as error:  # every layer below has its own errors: network, unknown name, broken file
        raise UserError(_hub_fault(name, config, split, row, error)) from error


def _hub_fault(name: str, config: str | None, split: str, row: int, error: Exception) -> str:
    what = f"hub data set {name!r} (config {config or 'default'}, split {split})"
    when = f"after row {row}" if row else "at the start"
    advice = "check the name, the config, the split and the network, or give local files"
    return f"{what} failed {when}: {_one_line(error)}; {advice}"


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 200 else text[:200] + "…"


def source_digest(source: Source) -> str:
    """SHA-256 (hex) of what a source holds: equal for equal bytes wherever they lie, whatever they are called.

    Hub data sets are told apart by name, config, split and the revision that the hub reports, without loading them.
    """
    total = hashlib.sha256(f"{source.kind}\0{source.field or ''}\0".encode())
    if source.kind == "builtin":
        for document in iter_documents(source):
            total.update(hashlib.sha256(document.encode()).digest())
    elif source.kind == "hub":
        total.update(repr((*_hub_parts(source), *_hub_revision(source))).encode())
    for path in source_files(source):
        total.update(_file_digest(path))
    return total.hexdigest()


def _file_digest(path: str) -> bytes:
    digest = hashlib.sha256()
    try:
        with open(path, "rb") as file:
            while block := file.read(_BLOCK_BYTES):
                digest.update(block)
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from error
    return digest.digest()


def _hub_revision(source: Source) -> tuple[str, str]:
    import datasets

    name, config, split = _hub_parts(source)
    try:
        builder = datasets.load_dataset_builder(name, config)
    except Exception as error:
        raise UserError(_hub_fault(name, config, split, 0, error)) from error
    return str(builder.base_path), str(builder.hash)


def is_held_out(document: str, fraction: float) -> bool:
    """Whether a document belongs to the validation split: a property of its text, not of its place."""
    digest = hashlib.blake2b(document.encode(errors="surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") < fraction * 2**64
