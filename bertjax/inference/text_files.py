"""Texts and records from files of lines and of JSON lines, plain or gzipped, or from the standard input."""

from __future__ import annotations

import contextlib
import gzip
import json
import sys
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from bertjax.errors import UserError

STDIN = "-"


class Record(NamedTuple):
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
            raise UserError(f"{self.place}: field {field!r} holds {_kind(value)} where text is expected{advice}")
        try:
            value.encode()
        except UnicodeEncodeError:
            raise UserError(f"{self.place}: half a surrogate pair in {field!r} (invalid Unicode)") from None
        return value


def is_jsonl(path: str) -> bool:
    return path.lower().removesuffix(".gz").endswith((".jsonl", ".ndjson"))


def read_records(path: str) -> Iterator[Record]:
    """The object of every line but blank ones; raises `UserError` naming file and line."""
    return records_of(read_lines(path), _name(path))


def records_of(lines: Iterable[tuple[int, str]], name: str) -> Iterator[Record]:
    """`read_records` of numbered lines that were read already, from a file of this name."""
    for number, line in lines:
        if not line or line.isspace():
            continue
        place = f"{name}:{number}"
        try:
            values = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{place}: broken JSON ({error}); one object a line is expected") from None
        if not isinstance(values, dict):
            raise UserError(f"{place}: {_kind(values)} where a JSON object is expected")
        yield Record(place, values)


def read_lines(path: str) -> Iterator[tuple[int, str]]:
    """(number from 1, line without its end) of a UTF-8 file; `-` is the standard input. Raises `UserError`."""
    number = 0
    try:
        with _opened(path) as file:
            for number, line in enumerate(file, 1):
                text = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
                yield number, text.decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError as error:
        raise UserError(
            f"{_name(path)}:{number}: invalid UTF-8 (byte 0x{error.object[error.start]:02x} at column "
            f"{error.start + 1}); convert the file to UTF-8"
        ) from None
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UserError(f"{path}: broken gzip after line {number} ({error}); copy or compress it again") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from None


def _opened(path: str) -> contextlib.AbstractContextManager[Iterable[bytes]]:
    if path == STDIN:
        return contextlib.nullcontext(sys.stdin.buffer)
    return gzip.open(path, "rb") if path.lower().endswith(".gz") else Path(path).expanduser().open("rb")


def _name(path: str) -> str:
    return "the standard input" if path == STDIN else path


def _kind(value: Any) -> str:
    """What JSON calls it."""
    names = {dict: "an object", list: "a list", str: "text", bool: "true or false", type(None): "nothing"}
    return names.get(type(value), "a number")
