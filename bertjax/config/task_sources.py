"""Where labelled data comes from: `KIND:WHERE` strings, their files, and hub data sets. Loads nothing heavy."""

from __future__ import annotations

import dataclasses
import difflib
import glob
import os
import re
from collections.abc import Iterable, Mapping
from typing import Any

from bertjax.errors import UserError, comma_list, one_line

KINDS = {
    "tsv": "columns between tabs, without quoting",
    "csv": "columns between commas, quoted with double quotes",
    "jsonl": "one JSON object a line",
    "conll": "one word a line, columns between blanks, a blank line behind every sentence",
    "squad": "the JSON of SQuAD 1.1 and 2.0",
    "hub": "a Hugging Face data set, NAME[:CONFIG]@SPLIT",
}
_HUB = re.compile(r"(?P<name>[\w.-]+(/[\w.-]+)?)(:(?P<config>[^:@]+))?@(?P<split>.+)")
_UNREADABLE = (".zst", ".xz", ".bz2", ".zip", ".tar", ".tgz", ".tar.gz", ".7z", ".parquet")


@dataclasses.dataclass(frozen=True)
class TaskSource:
    """One source of examples: `where` is a path, a pattern, or NAME[:CONFIG]@SPLIT; `text` is what the user wrote."""

    kind: str
    where: str
    text: str
    key: str

    @property
    def hub_parts(self) -> tuple[str, str | None, str]:
        """(name, config or None, split) of a hub source; raises `UserError`."""
        found = _HUB.fullmatch(self.where)
        if found is None:
            raise UserError(
                f"{self.key}: {self.text!r} must be hub:NAME[:CONFIG]@SPLIT, such as hub:nyu-mll/glue:sst2@validation"
            )
        return found["name"], found["config"], found["split"]


def parse_task_source(text: str, key: str) -> TaskSource:
    """Read `KIND:WHERE`; `key` is the config key that messages name. Raises `UserError`, looks for no file."""
    kind, colon, where = text.strip().partition(":")
    if not colon or kind not in KINDS:
        near = difflib.get_close_matches(kind, KINDS, n=1)
        hint = f"; did you mean {near[0]}:?" if near else ""
        if not hint and (guess := _guessed_kind(text)):
            hint = f"; for this path write {guess}:{text}"
        raise UserError(f"{key}: {text!r} must begin with one of {', '.join(f'{name}:' for name in KINDS)}{hint}")
    if not where.strip():
        raise UserError(f"{key}: {text!r} names nothing after '{kind}:' ({KINDS[kind]})")
    source = TaskSource(kind, where, text, key)
    if kind == "hub":
        _ = source.hub_parts
    return source


def _guessed_kind(text: str) -> str:
    ending = os.path.splitext(text.removesuffix(".gz"))[1].lstrip(".").lower()
    return {"tsv": "tsv", "csv": "csv", "jsonl": "jsonl", "json": "squad", "conll": "conll", "txt": "conll"}.get(
        ending, ""
    )


def source_paths(source: TaskSource) -> list[str]:
    """The files of a source, sorted, and [] for a hub data set; raises `UserError` where there are none to read."""
    if source.kind == "hub":
        return []
    where = os.path.expanduser(source.where)
    if os.path.exists(where):  # also a real name that looks like a pattern, such as a[1].tsv
        paths = [where]
    else:
        paths = sorted(path for path in glob.glob(where, recursive=True) if os.path.isfile(path))
    if not paths:
        what = f"no file matches {source.where}" if glob.has_magic(where) else f"no such file: {source.where}"
        raise UserError(f"{source.key}: {source.text!r}: {what}; it is looked for from {os.getcwd()}")
    for path in paths:
        if os.path.isdir(path):
            raise UserError(f"{source.key}: {source.text!r} is a directory; name its files, {source.kind}:{path}/*")
        if path.lower().endswith(_UNREADABLE):
            raise UserError(f"{source.key}: {path} is no plain text; unpack it, or compress it with gzip")
        if not os.access(path, os.R_OK):
            raise UserError(f"{source.key}: {path} may not be read; check its permissions")
    return paths


class Places:
    """Where every example stands, for messages: "train.tsv:17"."""

    def __init__(self) -> None:
        self._prefixes: list[str] = []
        self._numbers: list[int] = []

    def add(self, prefix: str, number: int) -> None:
        """The next example stands at `prefix` + `number`: "train.tsv:" and 17."""
        self._prefixes.append(prefix)
        self._numbers.append(number)

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, index: int) -> str:
        return f"{self._prefixes[index]}{self._numbers[index]}"


def hub_rows(source: TaskSource) -> Any:
    """The `datasets.Dataset` of a hub source; raises `UserError` whatever the library or the network says."""
    import datasets

    name, config, split = source.hub_parts
    try:
        found = datasets.load_dataset(name, config, split=split)
    except Exception as error:  # every layer below has its own errors: network, unknown name, broken file
        raise UserError(
            f"{source.key}: hub data set {name!r} (config {config or 'default'}, split {split}) failed: "
            f"{one_line(error)}; check name, config, split and network, or give local files"
        ) from error
    return found


def hub_prefix(source: TaskSource) -> str:
    return f"hub data set {source.where}, row "


def class_names(feature: Any) -> list[str] | None:
    """The names of a hub column of classes, or of lists of classes; None for other columns."""
    for _ in range(2):
        names = getattr(feature, "names", None)
        if names:
            return list(names)
        feature = getattr(feature, "feature", None)
    return None


def column_of(name: str, header: list[str], key: str, where: str) -> int:
    """The number of a column by its name, else by its number, negative ones from the end; raises `UserError`."""
    if name in header:
        if header.count(name) > 1:
            raise UserError(f"{where}: two columns are named {name!r}; name one by its number (0 = the first)")
        return header.index(name)
    try:
        number = int(name)
    except ValueError:
        number = len(header)
    if not -len(header) <= number < len(header):
        raise UserError(f"{where}: no column {name!r} (it has {_columns(header)}); set {key} to one of them")
    return number % len(header)


def field_of(record: Mapping[str, Any], name: str, key: str, where: str) -> Any:
    """A field of a JSON object or of a row of the hub; raises `UserError`, naming those that there are."""
    if name not in record:
        raise UserError(f"{where}: no field {name!r} (it has {_columns(record)}); set {key} to one")
    return record[name]


def text_of(value: Any, name: str, where: str, errors: str = "strict") -> str:
    """The value as valid text: JSON can carry half a surrogate pair, which no tokenizer accepts."""
    if not isinstance(value, str):
        kind = "nothing" if value is None else type(value).__name__
        raise UserError(f"{where}: field {name!r} holds {kind} where text is expected")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            if errors == "strict":
                raise UserError(f"{where}: half a surrogate pair in {name!r} (invalid Unicode); mend it") from error
            return value.encode(errors="replace").decode()
    return value


def _columns(names: Iterable[object]) -> str:
    return one_line(comma_list(names, 12))
