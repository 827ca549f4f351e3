"""Texts and JSON records from files of lines, plain or compressed, or from standard input."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from bertjax.compression import bare_name
from bertjax.errors import UserError
from bertjax.io.jsonl import display_name, json_type, parse_lines, read_lines


class JsonRecord(NamedTuple):
    """The JSON object of a line; `location` names the line in messages: "pairs.jsonl:17"."""

    location: str
    values: dict[str, Any]

    def text(self, field: str, option: str | None = None) -> str:
        """Returns the text of a field; raises `UserError`, which names the `option` that selects another field."""
        advice = f"; name yours with {option}" if option else ""
        if field not in self.values:
            keys = ", ".join(map(str, list(self.values)[:8]))
            raise UserError(f"{self.location}: no field {field!r} (it has {keys or 'none'}){advice}")
        value = self.values[field]
        if not isinstance(value, str):
            raise UserError(f"{self.location}: field {field!r} holds {json_type(value)} where text is expected{advice}")
        try:
            value.encode()
        except UnicodeEncodeError:
            raise UserError(f"{self.location}: half a surrogate pair in {field!r} (invalid Unicode)") from None
        return value


def as_list(name: str, values: Any) -> list[Any]:
    """Returns the items of an argument, a path as one; raises `UserError` where it is not a list, but a single text."""
    if isinstance(values, os.PathLike):
        return [values]
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
        what = "a single text" if isinstance(values, str) else json_type(values)
        raise UserError(f"{name} is {what}: give a list of texts, or a file as pathlib.Path")
    return list(values)


def as_texts(name: str, values: Any) -> list[str]:
    """Returns the texts of an argument; raises `UserError`, which names the first item that is not valid text."""
    return [require_input_text(f"{name}[{index}]", each) for index, each in enumerate(as_list(name, values))]


def require_input_text(where: str, value: Any) -> str:
    """Returns a value that must be valid text; raises `UserError` that begins with `where`."""
    return JsonRecord(where, {"text": value}).text("text")


def is_jsonl(path: str) -> bool:
    """Returns whether the ending is that of JSON Lines."""
    return bare_name(path).endswith((".jsonl", ".ndjson"))


def read_records(path: str) -> Iterator[JsonRecord]:
    """Yields the object of every line that is not blank; raises `UserError` naming file and line."""
    return parse_records(read_lines(path), display_name(path))


def parse_records(lines: Iterable[tuple[int, str]], name: str) -> Iterator[JsonRecord]:
    """Yields the objects of numbered lines of the file `name`; raises `UserError` naming file and line."""
    return (JsonRecord(f"{name}:{number}", values) for number, values in parse_lines(lines, name))


def read_texts(path: str) -> Iterator[tuple[int, str]]:
    """Yields (number from 1, line without its end); `-` is standard input; raises `UserError` naming file and line."""
    return ((number, line.removesuffix("\n").removesuffix("\r")) for number, line in read_lines(path))
