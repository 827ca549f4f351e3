"""Texts and records from files of lines and of JSON lines, plain or gzipped, or from the standard input."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from bertjax.errors import UserError
from bertjax.io.jsonl import display_name, json_type, parse_object, read_lines


class JsonRecord(NamedTuple):
    """What stands in a line of a file; `place` names it in messages: "pairs.jsonl:17"."""

    place: str
    values: dict[str, Any]

    def text(self, field: str, option: str | None = None) -> str:
        """The text of a field; raises `UserError` where there is none. `option` is what names another field."""
        advice = f"; name yours with {option}" if option else ""
        if field not in self.values:
            keys = ", ".join(map(str, list(self.values)[:8]))
            raise UserError(f"{self.place}: no field {field!r} (it has {keys or 'none'}){advice}")
        value = self.values[field]
        if not isinstance(value, str):
            raise UserError(f"{self.place}: field {field!r} holds {json_type(value)} where text is expected{advice}")
        try:
            value.encode()
        except UnicodeEncodeError:
            raise UserError(f"{self.place}: half a surrogate pair in {field!r} (invalid Unicode)") from None
        return value


def is_jsonl(path: str) -> bool:
    return path.lower().removesuffix(".gz").endswith((".jsonl", ".ndjson"))


def read_records(path: str) -> Iterator[JsonRecord]:
    """The object of every line but blank ones; raises `UserError` naming file and line."""
    return records_of(read_lines(path), display_name(path))


def records_of(lines: Iterable[tuple[int, str]], name: str) -> Iterator[JsonRecord]:
    """`read_records` of numbered lines that were read already, from a file of this name."""
    for number, line in lines:
        if line and not line.isspace():
            where = f"{name}:{number}"
            yield JsonRecord(where, parse_object(line, where))


def read_texts(path: str) -> Iterator[tuple[int, str]]:
    """(number from 1, line without its end) of a UTF-8 file; `-` is the standard input. Raises `UserError`."""
    return ((number, line.removesuffix("\n").removesuffix("\r")) for number, line in read_lines(path))
