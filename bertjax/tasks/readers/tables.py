"""Rows of tsv, csv, JSON Lines and parallel files and of hub data sets: the values of chosen columns."""

from __future__ import annotations

import csv
import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from bertjax.config.registry import import_object
from bertjax.config.source_files import parallel_files, source_files
from bertjax.config.sources import Source, parse_task_source
from bertjax.data.columns import read_columns, read_schema
from bertjax.data.readers import REPLACE_ERRORS
from bertjax.data.sources import open_hub_data
from bertjax.errors import UserError, comma_list, named, one_line
from bertjax.io.jsonl import get_nested, read_jsonl, read_lines

Columns = Sequence[tuple[str, str]]
"""(config key, name) of the columns to read, in order."""
Rows = Iterator[tuple[str, list[Any]]]
"""Location of every example ("train.tsv:17"), and the values of the columns."""
_MAX_FIELD = 1 << 30
_TEXT = ("task.text_column", "text")
_NO_TEXT = ("", "id", "idx", "index", "guid", "label", "labels", "target")
"""Names of columns that are not taken for the only text of a table."""


def read_rows(source: Source, columns: Columns, header: bool | None = None, errors: str = "strict") -> Rows:
    """Yields location and values of every row of a tsv, csv, jsonl or hub source.

    Args:
        source: where the rows are.
        columns: the columns to read.
        header: whether the first line of tsv and csv files names the columns; None: it does where a column of
            `columns` is not a number.
        errors: "strict", or "replace" for invalid UTF-8.

    Raises:
        UserError: a file, row or column cannot be read; names file and line.
    """
    read = import_object(source.spec.rows, f"{named(source.key)}: {source.text!r}")
    for path in source_files(source) if source.spec.is_file else [source.where]:
        yield from read(path, columns, header, errors)


def tsv_rows(path: str, columns: Columns, header: bool | None = None, errors: str = "strict") -> Rows:
    """Yields the rows of a file with tabs. Args: as of `read_rows`, with the path of a file."""
    yield from _separated_rows(path, _tsv_fields(path, errors), columns, header)


def csv_rows(path: str, columns: Columns, header: bool | None = None, errors: str = "strict") -> Rows:
    """Yields the rows of a file with commas. Args: as of `tsv_rows`."""
    yield from _separated_rows(path, _csv_fields(path, errors), columns, header)


def jsonl_rows(path: str, columns: Columns, header: bool | None = None, errors: str = "strict") -> Rows:
    """Yields the objects of a JSON Lines file. Args: as of `tsv_rows`."""
    chosen: Columns | None = None
    for number, record in read_jsonl(path, errors, advice=REPLACE_ERRORS):
        where = f"{path}:{number}"
        if chosen is None:  # by the first record, for all
            texts = [name for name, value in record.items() if isinstance(value, str)]
            chosen = with_text_column(columns, record, texts)
        yield where, [get_field(record, name, key, where) for key, name in chosen]


def parallel_rows(where: str, columns: Columns, header: bool | None = None, errors: str = "strict") -> Rows:
    """Yields the pairs of lines of two files, as the columns source and target.

    Args: as of `tsv_rows`, with SOURCE:TARGET or PREFIX:en-de; `header` is not read.

    Raises:
        UserError: the files have different numbers of lines.
    """
    paths = parallel_files(where)
    chosen = [find_column(name, ["source", "target"], key, f"parallel:{where}") for key, name in columns]
    files = [read_lines(path, errors, advice=REPLACE_ERRORS) for path in paths]
    for number, pair in enumerate(itertools.zip_longest(*files), 1):
        if None in pair:  # one file has ended: count the rest of the other
            total = number + sum(1 for file in files for _ in file)
            counts = [number - 1 if line is None else total for line in pair]
            raise UserError(
                f"{paths[0]} has {counts[0]:,} lines, {paths[1]} has {counts[1]:,}; line i of one belongs to line i "
                "of the other: complete them"
            )
        yield f"{paths[0]}:{number}", [pair[column][1].rstrip("\r\n") for column in chosen]


def find_column(name: str, header: list[str], key: str, where: str) -> int:
    """Returns the index of a column by its name, else by its number; negative numbers count from the end.

    Args:
        name: name or number of the column.
        header: names of all columns.
        key: config key of the column, for messages.
        where: location of the header, for messages.

    Raises:
        UserError: the column is missing, or two columns have this name.
    """
    if name in header:
        if header.count(name) > 1:
            raise UserError(f"{where}: two columns are named {name!r}; name one by its number (0 = the first)")
        return header.index(name)
    try:
        number = int(name)
    except ValueError:
        number = len(header)
    if not -len(header) <= number < len(header):
        raise UserError(
            f"{where}: no column {name!r} (it has {_names(header)}); set {named(key)} to one of them, or to a "
            "number (0 = the first)"
        )
    return number % len(header)


def with_text_column(columns: Columns, names: Collection[str], texts: Collection[str]) -> Columns:
    """Returns the columns with the only column of texts in place of a missing column "text".

    Args:
        columns: the columns to read.
        names: names of all columns.
        texts: names of those that hold text.
    """
    others = set(texts).difference(_NO_TEXT, (name for _, name in columns))
    if (_TEXT not in columns) or _TEXT[1] in names or len(others) != 1:
        return columns
    return [(key, others.pop()) if (key, name) == _TEXT else (key, name) for key, name in columns]


def get_field(record: Mapping[str, Any], name: str, key: str, where: str) -> Any:
    """Returns a field of a JSON object or of a hub row.

    Args:
        record: the object or row.
        name: name of the field; `translation.en` is the field en of the object translation.
        key: config key of the column, for messages.
        where: location of the record, for messages.

    Raises:
        UserError: the field is missing.
    """
    try:
        return get_nested(record, name)
    except KeyError as error:
        missing, names = error.args
        raise UserError(f"{where}: no field {missing!r} (it has {_names(names)}); set {named(key)} to one") from None


def require_field_text(value: Any, name: str, where: str, errors: str = "strict") -> str:
    """Returns a value that must be valid text: JSON can hold half a surrogate pair, which no tokenizer accepts.

    Args:
        value: the value.
        name: name of its field, for messages.
        where: its location, for messages.
        errors: "strict", or "replace" for half a surrogate pair.

    Raises:
        UserError: the value is not text, or not valid.
    """
    if not isinstance(value, str):
        kind = "nothing" if value is None else type(value).__name__
        raise UserError(f"{where}: field {name!r} holds {kind} where text is expected")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            if errors == "strict":
                raise UserError(f"{where}: half a surrogate pair in {name!r} (invalid Unicode); fix it") from error
            return value.encode(errors="replace").decode()
    return value


def require_distinct(ids: list[str], locations: list[str]) -> None:
    """Raises `UserError` naming both examples if an id occurs twice."""
    if len(set(ids)) == len(ids):
        return
    first: dict[str, str] = {}
    for name, location in zip(ids, locations, strict=True):
        if name in first:
            raise UserError(f"{location}: id {name!r} again, it is that of {first[name]} already")
        first[name] = location


def _names(names: Any) -> str:
    return one_line(comma_list(names, 12))


def _tsv_fields(path: str, errors: str) -> Iterator[tuple[int, list[str]]]:
    """Reads lines without quoting: GLUE's files hold unpaired double quotes."""
    for number, line in read_lines(path, errors, advice=REPLACE_ERRORS):
        yield number, line.rstrip("\r\n").split("\t")


def _csv_fields(path: str, errors: str) -> Iterator[tuple[int, list[str]]]:
    """Reads quoted fields, which may span several lines; the number is that of the first line."""
    csv.field_size_limit(_MAX_FIELD)
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


def _has_header(columns: Columns, where: str) -> bool:
    """Returns True if a column is given by name; raises `UserError` if all are numbers, which leaves it open."""
    if all(name.removeprefix("-").isdecimal() for _, name in columns):
        numbers = ", ".join(named(key, name) for key, name in columns)
        raise UserError(
            f"{where}: columns are given by number ({numbers}), which does not tell whether this line names them: set "
            f"{named('task.header', True)} or {named('task.header', False)}"
        )
    return True


def _separated_rows(path: str, lines: Iterator[tuple[int, list[str]]], columns: Columns, header: bool | None) -> Rows:
    names: list[str] | None = None
    chosen: list[int] = []
    for number, fields in lines:
        if fields == [""]:
            continue  # an empty line, mostly the last
        where = f"{path}:{number}"
        if names is None:
            if header is None:
                header = _has_header(columns, where)
            names = [field.strip() for field in fields] if header else list(map(str, range(len(fields))))
            named_columns = with_text_column(columns, names, names) if header else columns
            chosen = [find_column(name, names, key, where) for key, name in named_columns]
            if header:
                continue
        if len(fields) != len(names):
            raise UserError(f"{where}: {len(fields)} columns, but line 1 has {len(names)}; fix or remove this line")
        yield where, [fields[column] for column in chosen]


def hub_rows(where: str, columns: Columns, header: bool | None = None, errors: str = "strict") -> Rows:
    """Yields the rows of a hub data set; ids of classes become names, and -1, an unknown class on the hub, None.

    Args: as of `tsv_rows`, with NAME[:CONFIG[:SPLIT]]; `header` and `errors` are not read.

    Raises:
        UserError: the Hub has no such data, or cannot be reached.
    """
    data = open_hub_data(parse_task_source(f"hub:{where}", "hub").hub_parts)
    where = f"hub data set {where}"
    columns = with_text_column(columns, data.features, _texts(data.features))
    classes = _classes(data.features, columns, where)
    roots = dict.fromkeys(column if column in data.features else column.partition(".")[0] for _, column in columns)
    for number, row in enumerate(data.select_columns(list(roots)), 1):
        location = f"{where}, row {number}"
        yield location, _name_classes((get_field(row, column, key, location) for key, column in columns), classes)


def table_rows(path: str, columns: Columns, header: bool | None = None, errors: str = "strict") -> Rows:
    """Yields the rows of a parquet or Arrow file, with names of classes as of `hub_rows`. Args: as of `tsv_rows`."""
    import datasets

    features = datasets.Features.from_arrow_schema(read_schema(path))
    columns = with_text_column(columns, features, _texts(features))
    classes = _classes(features, columns, path)
    for row in read_columns(path, [column for _, column in columns], "set its key to one of them"):
        yield f"{path}: row {row.number}", _name_classes(row.values, classes)


def _texts(features: Mapping[str, Any]) -> list[str]:
    return [name for name, each in features.items() if getattr(each, "dtype", "") in ("string", "large_string")]


def _classes(features: Mapping[str, Any], columns: Columns, where: str) -> list[list[str] | None]:
    """Returns the names of the classes of every column that has such."""
    import datasets

    flat = {name: each.flatten() if isinstance(each, datasets.Translation) else each for name, each in features.items()}
    return [_class_names(get_field(flat, column, key, where)) for key, column in columns]


def _class_names(feature: Any) -> list[str] | None:
    """Returns the names of a column of classes, or of lists of classes; None for other columns."""
    for _ in range(2):
        names = getattr(feature, "names", None)
        if names:
            return list(names)
        feature = getattr(feature, "feature", None)
    return None


def _name_classes(values: Iterable[Any], classes: list[list[str] | None]) -> list[Any]:
    return [_name_class(value, names) for value, names in zip(values, classes, strict=True)]


def _name_class(value: Any, names: list[str] | None) -> Any:
    if names is None or value is None:
        return value
    if isinstance(value, list):
        return [_name_class(each, names) for each in value]
    return names[value] if value >= 0 else None
