"""The grammar of sources, `KIND:WHERE[:CONFIG[:SPLIT]][#FIELD][@WEIGHT][@MIN..MAX]`, and the files that they name.

A file of sources is `@FILE`.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import os
import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from bertjax.compression import bare_name
from bertjax.config.extensions import SOURCES
from bertjax.errors import UserError, named, require_regular_file
from bertjax.storage import is_url, local_path, open_binary


@dataclasses.dataclass(frozen=True)
class SourceKind:
    """A kind of source, `KIND:WHERE`, with the functions that read it, imported only when they are used.

    Attributes:
        where: What WHERE names, in words.
        documents: `package.module:function` for `data.sources`, called with (path, field, errors, stats): yields the
            documents of a file. "": it holds no corpus. `errors` is strict or replace; `stats` are `DocumentStats`,
            counts that it may update.
        rows: `package.module:function` for `task.train`, called with (path, columns, header, errors): yields (location,
            values of the columns) of the examples in a file. "": it holds no labeled examples. `columns` are (config
            key, name); `header` is `task.header`.
        has_field: Whether the document of a corpus is in #FIELD, by default text.
        field_key: Key of `data` that holds the default of #FIELD instead.
        is_file: Whether WHERE is the path or the pattern of files; the functions get WHERE itself where it is not.
        digest: Where WHERE names no files, `package.module:function`, called with (WHERE): bytes that change whenever
            the documents do.
        files: Where WHERE names its files in another way, `package.module:function`, called with (WHERE): their paths.
            With `is_file` they are read one by one, and no path leaves WHERE to be a path or pattern; without, they are
            read together, by functions that get WHERE itself.
    """

    where: str = ""
    documents: str = ""
    rows: str = ""
    has_field: bool = False
    field_key: str = ""
    is_file: bool = True
    digest: str = ""
    files: str = ""

    def __post_init__(self) -> None:
        if not (self.documents or self.rows):
            raise UserError("a SourceKind needs documents or rows, the paths of the functions that read it")
        if self.documents and not (self.is_file or self.digest):
            raise UserError("a SourceKind with documents and without files needs a digest")


_TEXTS, _TABLES = "bertjax.data.readers", "bertjax.tasks.readers.tables"
HUB = "a Hugging Face data set, NAME[:CONFIG[:SPLIT]], CONFIG or data_files=PATTERN"
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
    "parquet": SourceKind(
        "one row per document, in the column #FIELD", f"{_TEXTS}:read_column", f"{_TABLES}:table_rows", has_field=True
    ),
    "arrow": SourceKind(
        "a folder of datasets.save_to_disk, or its Arrow files, the document in the column #FIELD",
        f"{_TEXTS}:read_column",
        f"{_TABLES}:table_rows",
        has_field=True,
        files="bertjax.config.source_files:saved_files",
    ),
    "tar": SourceKind(
        "one document per member that ends in .FIELD (txt), or in .json with the document in #json.FIELD",
        "bertjax.data.readers:read_tar",
        has_field=True,
    ),
    "fasta": SourceKind(
        "FASTA, one document per record, in the form #FIELD",
        "bertjax.data.fasta:read_fasta",
        has_field=True,
        field_key="fasta",
    ),
    "parallel": SourceKind(
        "two files with an example per line, SOURCE:TARGET, or PREFIX:en-de for PREFIX.en and PREFIX.de",
        rows=f"{_TABLES}:parallel_rows",
        is_file=False,
        files="bertjax.config.source_files:parallel_files",
    ),
    "conll": SourceKind(
        "one word per line, columns between blanks, a blank line after every sentence",
        rows="bertjax.tasks.tokens:read_words",
    ),
    "squad": SourceKind("the JSON of SQuAD 1.1 and 2.0", rows="bertjax.tasks.qa:read_questions"),
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
_KIND_BY_ENDING |= {"parquet": "parquet", "arrow": "arrow"}
_FASTA_ENDINGS = ("fasta", "fa", "faa", "fna", "ffn", "frn")
_FIELD = re.compile(r"#(?![^#]*\.(?:jsonl|ndjson|parquet|arrow|tar|tgz|gz|bz2|xz|zst)$)(\w[\w.-]*)$")
_MIN_MAX = r"(\d+(?:\.\d+)?)?\.\.(\d+(?:\.\d+)?)?"
Limits = tuple[float, float]
_EPOCHS = re.compile(f"@({_MIN_MAX})$")
_WEIGHT = re.compile(r"@([+-]?(?:(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|nan|inf(?:inity)?))$", re.IGNORECASE)
_HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")


class HubData(NamedTuple):
    """A data set of the Hub: its name, a config or a pattern of files of the repository, and a split."""

    name: str
    config: str | None
    split: str

    @property
    def arguments(self) -> dict[str, Any]:
        """Arguments of `datasets.load_dataset` that select the files."""
        key, is_pattern, pattern = (self.config or "").partition("data_files=")
        return {"data_files": pattern} if is_pattern and not key else {"name": self.config}

    def __str__(self) -> str:
        return f"hub data set {self.name!r} (config {self.config or 'default'}, split {self.split})"


@dataclasses.dataclass(frozen=True)
class Source:
    """One source of a corpus or of labeled examples.

    Attributes:
        kind: A name in `SOURCES`, or the path of a `SourceKind`.
        where: Path, pattern, builtin name, or NAME[:CONFIG[:SPLIT]].
        field: Field or column of the document.
        weight: Weight in a mixture; None leaves its share to its size.
        epochs: Fewest and most epochs in a mixture; None: those of `data.mixture_epochs`.
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
    epochs: Limits | None = None

    @property
    def spec(self) -> SourceKind:
        """Facts about the kind."""
        return SOURCES.load(self.kind)

    @property
    def origin(self) -> tuple[str, str, str | None]:
        """Kind, WHERE and field: the text itself, without its share."""
        return self.kind, self.where, self.field

    @property
    def hub_parts(self) -> HubData:
        """Name, config and split of a source of the Hub; an empty CONFIG is the default one, no SPLIT is train.

        Raises:
            UserError: the name has another form.
        """
        name, config, split = [*self.where.split(":", 2), "", ""][:3]
        if not _HUB_NAME.fullmatch(name) or re.search(r":(?![^\[]*\])", split):
            raise self.error("write hub:NAME[:CONFIG[:SPLIT]], NAME as owner/name, CONFIG or data_files=PATTERN")
        return HubData(name, config or None, split or "train")

    def error(self, message: str) -> UserError:
        """Returns an error that names the key and the source."""
        return UserError(f"{named(self.key)}: {self.text!r}: {message}")


def parse_source(text: str, key: str = "data.sources", purpose: str = "documents") -> Source:
    """Parses a source; field, weight and epochs of a corpus are the last `#WORD`, `@FLOAT` and `@MIN..MAX`.

    Args:
        text: The source as it was written.
        key: The config key or flag that messages name.
        purpose: "documents" of a corpus, or "rows" of labeled examples: what its kind must be able to read.

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
    field = weight = epochs = None
    is_corpus = purpose == "documents"
    for _ in range(3 if is_corpus else 0):
        if epochs is None and (match := _EPOCHS.search(where)):
            epochs, where = parse_epochs(match[1], f"{key}: {text!r}"), where[: match.start()]
        if weight is None and (match := _WEIGHT.search(where)):
            weight, where = match[1], where[: match.start()]
        if field is None and spec.has_field and (match := _FIELD.search(where)):
            field, where = match[1], where[: match.start()]
    if weight is not None and not (math.isfinite(float(weight)) and float(weight) > 0):
        raise UserError(f"{key}: {text!r}: the weight after @ must be a finite number above 0, not {weight}")
    if not where.strip():
        raise UserError(f"{key}: {text!r} names nothing after '{kind}:' ({spec.where})")
    if is_corpus and spec.has_field:
        field = field or (None if spec.field_key else "text")
    source = Source(kind, where, field, None if weight is None else float(weight), text, key, kinds, epochs)
    if kind == "hub":
        _ = source.hub_parts  # raises for another form
    return source


def expand_lists(texts: Iterable[str], key: str = "data.sources") -> list[str]:
    """Replaces every `@FILE` by the sources that the file names, one per line; empty lines and # comments are skipped.

    Messages name `key`, the config key.

    Raises:
        UserError: A file cannot be read, or names no source.
    """
    return [each for text in texts for each in (read_list(text, key) if text.startswith("@") else [text])]


def read_list(text: str, key: str = "data.sources") -> list[str]:
    """Returns the sources of one `@FILE`; see `expand_lists`.

    Raises:
        UserError: the file cannot be read, or names no source.
    """
    path = text.removeprefix("@")
    try:
        require_regular_file(path := local_path(path), f"{key}: {text!r}")
        with open_binary(path) as file:
            lines = [line.strip() for line in file.read().decode("utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"{key}: {text!r}: {path} cannot be read: {reason}; @FILE names a source per line") from None
    if sources := [line for line in lines if line and not line.startswith("#")]:
        return sources
    raise UserError(f"{key}: {text!r}: {path} names no source; write one per line")


def parse_task_source(text: str, key: str) -> Source:
    """Parses a source of labeled examples; see `parse_source`."""
    return parse_source(text, key, "rows")


def is_task_source(text: str) -> bool:
    """Returns whether a text begins with the kind of a source of labeled examples."""
    kind, _, where = _split_kind(text)
    return bool(where) and (":" in kind or (kind in SOURCES and bool(SOURCES.load(kind).rows)))


def _split_kind(text: str) -> tuple[str, str, str]:
    """Splits at the colon after the kind, which may be `package.module:NAME`."""
    match = _PATH.match(text)
    return (match[1], ":", text[match.end() :]) if match else text.partition(":")


def _hint(text: str, kinds: Sequence[str]) -> str:
    is_corpus = "text" in kinds
    ending = os.path.splitext(bare_name(text))[1].lstrip(".")
    kind = _KIND_BY_ENDING.get(ending)
    if is_corpus:
        kind = "fasta" if ending in _FASTA_ENDINGS else "text"
    near = difflib.get_close_matches(text.strip().partition(":")[0], kinds, n=1)
    has_scheme = is_url(text) or text.startswith("file:/")
    if near and ":" in text and not has_scheme:
        return f"; did you mean {near[0]}:?"
    is_path = has_scheme or (os.path.exists(os.path.expanduser(text)) if is_corpus else ":" not in text)
    return f"; for this path write {kind}:{text}" if kind and is_path else ""


def parse_epochs(text: str, where: str) -> Limits:
    """Returns the fewest and most epochs of `MIN..MAX`, 0 and infinity where left out; errors begin with `where`."""
    match = re.fullmatch(_MIN_MAX, text)
    if match is None:
        raise UserError(f"{where}: epochs are MIN..MAX, such as 1..4 or ..4, not {text!r}")
    minimum, maximum = float(match[1] or 0), float(match[2] or math.inf)
    if minimum > maximum or maximum == 0:
        raise UserError(f"{where}: MAX of epochs {text} must be above 0 and at least MIN")
    return minimum, maximum
