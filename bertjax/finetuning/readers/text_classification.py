"""Texts with labels: tsv, csv, JSON lines, hub data sets."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from bertjax.config.sources import Source, source_files
from bertjax.config.task import TaskConfig
from bertjax.data.readers import REPLACE_ERRORS
from bertjax.errors import UserError
from bertjax.finetuning.readers.examples import TextExamples
from bertjax.finetuning.readers.records import Places, class_names, column_of, field_of, hub_prefix, hub_rows, text_of
from bertjax.io.jsonl import read_jsonl, read_lines

Columns = Sequence[tuple[str, str]]
"""(config key, name) of the columns to read, in order."""
Rows = Iterator[tuple[str, int, list[Any]]]
"""Of every example what stands before its number in messages, its number, and the values of the columns."""
_LONGEST_FIELD = 1 << 30


def read_texts(config: TaskConfig, sources: Sequence[Source], labelled: bool, errors: str) -> TextExamples:
    """All examples of the sources, in order; raises `UserError` naming file and line."""
    columns = [("task.text_column", config.text_column or "text")]
    columns += [("task.pair_column", config.pair_column)] if config.pair_column is not None else []
    columns += [("task.id_column", config.id_column)] if config.id_column is not None else []
    columns += [("task.label_column", config.label_column or "label")] if labelled else []
    keys = [key for key, _ in columns]
    values: dict[str, list[Any]] = {key: [] for key in keys}
    places = Places()
    for source in sources:
        for prefix, number, found in READERS[source.kind](source, columns, config.header, errors):
            places.add(prefix, number)
            for key, value in zip(keys, found, strict=True):
                values[key].append(value)
    named = dict(columns)
    texts, pairs = (
        _texts(values.get(key), named.get(key, ""), places, errors) for key in ("task.text_column", "task.pair_column")
    )
    assert texts is not None
    ids = _ids(values.get("task.id_column"), places)
    labels = values.get("task.label_column")
    is_score = config.kind == "regression"
    names = None if labels is None or is_score else [_name(value, places, i) for i, value in enumerate(labels)]
    scores = None if labels is None or not is_score else [_score(value, places, i) for i, value in enumerate(labels)]
    examples = TextExamples(texts, pairs, names, scores, ids, places)
    empty = sum(not text.strip() for text in [*texts, *(pairs or [])])
    if empty:
        examples.notes.append(f"{empty:,} texts are empty")
    return examples


def _texts(values: list[Any] | None, name: str, places: Places, errors: str) -> list[str] | None:
    if values is None:
        return None
    return [
        value if type(value) is str and value.isascii() else text_of(value, name, places[i], errors)
        for i, value in enumerate(values)
    ]


def _ids(values: list[Any] | None, places: Places) -> list[str]:
    if values is None:
        return [str(number) for number in range(len(places))]
    ids = [str(value) for value in values]
    require_distinct(ids, places)
    return ids


def require_distinct(ids: list[str], places: Places) -> None:
    """Raises `UserError` naming both examples where an id comes twice."""
    if len(set(ids)) == len(ids):
        return
    first: dict[str, int] = {}
    for index, name in enumerate(ids):
        if name in first:
            raise UserError(f"{places[index]}: id {name!r} again, it is that of {places[first[name]]} already")
        first[name] = index


def _name(value: Any, places: Places, index: int) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    name = "" if value is None else str(value).strip()
    if not name or isinstance(value, list | dict):
        raise UserError(f"{places[index]}: no label in the column of task.label_column; every example needs one")
    return name


def _score(value: Any, places: Places, index: int) -> float:
    try:
        score = float(value)
    except (TypeError, ValueError):
        score = math.nan
    if not math.isfinite(score):
        raise UserError(f"{places[index]}: task.kind=regression needs a finite number as label, not {value!r}")
    return score


def _tsv(source: Source, columns: Columns, header: bool, errors: str) -> Rows:
    """No quoting: a double quote is a character like any other (GLUE's files hold unpaired ones)."""
    for path in source_files(source):
        lines = (
            (number, line.rstrip("\r\n").split("\t"))
            for number, line in read_lines(path, errors, advice=REPLACE_ERRORS)
        )
        yield from _separated(path, lines, columns, header)


def _csv(source: Source, columns: Columns, header: bool, errors: str) -> Rows:
    csv.field_size_limit(_LONGEST_FIELD)
    for path in source_files(source):
        yield from _separated(path, _csv_lines(path, errors), columns, header)


def _csv_lines(path: str, errors: str) -> Iterator[tuple[int, list[str]]]:
    """A quoted field may go on over several lines; the number is that of the first."""
    reader = csv.reader((line for _, line in read_lines(path, errors, advice=REPLACE_ERRORS)), strict=True)
    while True:
        number = reader.line_num + 1
        try:
            fields = next(reader, None)
        except csv.Error as error:
            raise UserError(f"{path}:{number}: broken csv ({error}); quotes inside a field are doubled") from error
        if fields is None:
            return
        yield number, fields or [""]


def _separated(path: str, lines: Iterator[tuple[int, list[str]]], columns: Columns, header: bool) -> Rows:
    names: list[str] | None = None
    chosen: list[int] = []
    prefix = f"{path}:"
    for number, fields in lines:
        if fields == [""]:
            continue  # an empty line, mostly the last
        if names is None:
            names = [field.strip() for field in fields] if header else list(map(str, range(len(fields))))
            chosen = [column_of(name, names, key, f"{prefix}{number}") for key, name in columns]
            if header:
                continue
        if len(fields) != len(names):
            raise UserError(
                f"{prefix}{number}: {len(fields)} columns, but line 1 has {len(names)}; mend or remove this line"
            )
        yield prefix, number, [fields[column] for column in chosen]


def jsonl_rows(source: Source, columns: Columns, header: bool, errors: str) -> Rows:
    for path in source_files(source):
        for number, record in read_jsonl(path, errors, advice=REPLACE_ERRORS):
            yield f"{path}:", number, [field_of(record, name, key, f"{path}:{number}") for key, name in columns]


def hub_columns(source: Source, columns: Columns, header: bool, errors: str) -> Rows:
    """Numbers of classes become their names; -1, which the hub writes for an unknown one, none at all."""
    data, prefix = hub_rows(source), hub_prefix(source)
    for key, name in columns:
        field_of(data.features, name, key, f"hub data set {source.where}")
    named = [class_names(data.features[name]) for _, name in columns]
    for number, row in enumerate(data.select_columns([name for _, name in columns]), 1):
        yield prefix, number, [_named(row[name], names) for (_, name), names in zip(columns, named, strict=True)]


def _named(value: Any, names: list[str] | None) -> Any:
    if names is None or value is None:
        return value
    if isinstance(value, list):
        return [names[each] for each in value]
    return names[value] if value >= 0 else None


READERS: dict[str, Callable[[Source, Columns, bool, str], Rows]] = {
    "tsv": _tsv,
    "csv": _csv,
    "jsonl": jsonl_rows,
    "hub": hub_columns,
}
