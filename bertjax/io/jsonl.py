"""Lines of text and JSON Lines: reading with file and line in every error, and logs that are rewound on resume."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import io
import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from bertjax.compression import DamagedFileError, decompressed
from bertjax.errors import UserError
from bertjax.io import atomic
from bertjax.io.store import open_decompressed

STDIN = "-"
MAX_LINE_BYTES = 1 << 30
_LARGEST_METRIC = 1e100  # computed in float32; charts multiply them
_LINES_BETWEEN_UPDATES = 256  # of the number of bytes read


@dataclasses.dataclass
class ReadStats:
    """Counts of what was read: bytes of the files as stored on disk, and lines with replaced bytes."""

    bytes: int = 0
    invalid_lines: int = 0


def read_lines(
    path: str,
    errors: str = "strict",
    stats: ReadStats | None = None,
    *,
    max_bytes: int | None = None,
    split_long: bool = False,
    advice: str = "",
    file: IO[bytes] | None = None,
) -> Iterator[tuple[int, str]]:
    """Yields (line number from 1, line with its newline) of a UTF-8 file, plain or compressed; `-` is standard input.

    Lines end in LF, CR LF or CR, and with LF here. A byte order mark at the beginning is dropped.

    Args:
        path: the file.
        errors: "strict", or "replace" to write U+FFFD for invalid bytes.
        stats: updated while reading.
        max_bytes: longest line that is read as a whole; `MAX_LINE_BYTES` by default.
        split_long: yield a longer line in parts with the same number, instead of raising an error.
        advice: what to do about invalid UTF-8 apart from converting the file, for the message.
        file: an open, buffered file, such as a member of an archive; `path` then merely names it.

    Raises:
        UserError: the file cannot be read; names file and line.
    """
    stats, max_bytes = stats or ReadStats(), max_bytes or MAX_LINE_BYTES
    number, before, rest, begins = 0, stats.bytes, b"", True
    try:
        with _open(path, file) as (tell, content):
            for part in iter(functools.partial(content.readline, max_bytes), b""):
                number += begins
                begins, line, rest = part.endswith(b"\n"), rest + part, b""
                if number == 1 and line.startswith(b"\xef\xbb\xbf"):
                    line = line[3:]
                if not begins and len(part) == max_bytes:
                    if not split_long:
                        raise UserError(
                            f"{path}:{number}: a line of more than {max_bytes:,} bytes; is it one per line?"
                        )
                    line, rest = _split_line(line)
                if tell is not None and not number % _LINES_BETWEEN_UPDATES:
                    stats.bytes = before + tell()
                yield number, _decode(line, errors, stats)
            if rest:
                yield number, _decode(rest, errors, stats)
            if tell is not None:
                stats.bytes = before + tell()
    except UnicodeDecodeError as error:
        raise UserError(
            f"{display_name(path)}:{number}: invalid UTF-8 (byte 0x{error.object[error.start]:02x} at column "
            f"{error.start + 1}); convert the file to UTF-8{advice}"
        ) from error
    except DamagedFileError as error:
        raise UserError(error.explain(path, f"after line {number}")) from error
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from error


def display_name(path: str) -> str:
    """Returns the path, or words for standard input."""
    return "the standard input" if path == STDIN else path


def read_jsonl(
    path: str,
    errors: str = "strict",
    stats: ReadStats | None = None,
    *,
    advice: str = "",
    file: IO[bytes] | None = None,
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields (line number from 1, object) of a file of JSON Lines; blank lines are skipped.

    Args:
        path, errors, stats, advice, file: those of `read_lines`.

    Raises:
        UserError: the file cannot be read, or a line is not a JSON object; names file and line.
    """
    return parse_lines(read_lines(path, errors, stats, advice=advice, file=file), display_name(path))


def parse_lines(lines: Iterable[tuple[int, str]], name: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields (number, object) of numbered lines of the file `name`, as `read_jsonl`."""
    for number, line in lines:
        if line and not line.isspace():
            yield number, parse_object(line, f"{name}:{number}")


def parse_object(line: str, where: str) -> dict[str, Any]:
    """Returns the JSON object of a line; raises `UserError` that begins with `where` if there is none."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where}: broken JSON ({error}); one object per line is expected") from error
    if not isinstance(record, dict):
        raise UserError(f"{where}: {json_type(record)} where a JSON object is expected")
    return record


def get_nested(record: Mapping[str, Any], name: str) -> Any:
    """Returns a field, `translation.en` from an object in a field; raises `KeyError` (name, names of the fields)."""
    if name in record:
        return record[name]
    first, _, rest = name.partition(".")
    if rest and isinstance(inside := record.get(first), Mapping):
        return get_nested(inside, rest)
    raise KeyError(name, list(record))


def json_type(value: Any) -> str:
    """Returns the JSON name of a value's type, with its article."""
    names = {dict: "an object", list: "a list", str: "text", bool: "true or false", type(None): "nothing"}
    return names.get(type(value), "a number" if isinstance(value, int | float) else type(value).__name__)


def to_line(record: Any) -> str:
    """Returns a line of JSON; non-finite numbers become null, because JSON has none."""
    return json.dumps(_finite(record), allow_nan=False) + "\n"


def read_log(path: Path) -> list[dict[str, Any]]:
    """Returns the records of a log that have an integer `step`, in order; none if there is no file.

    Skips lines that cannot be parsed, such as one that a killed process left unfinished. Numbers that are
    not finite, or larger than any metric, are None.
    """
    records = []
    for line in path.read_text(encoding="utf-8", errors="replace").split("\n") if path.is_file() else ():
        with contextlib.suppress(ValueError, RecursionError):
            record = json.loads(line, parse_int=_int_or_none, parse_float=_float_or_none, parse_constant=_float_or_none)
            if isinstance(record, dict) and type(record.get("step")) is int:
                records.append(record)
    return records


def _float_or_none(text: str) -> float | None:
    return number if abs(number := float(text)) < _LARGEST_METRIC else None


def _int_or_none(text: str) -> int | None:
    return int(text) if len(text) < 20 else None


class JsonlLog:
    """Append-only JSON Lines file of a run, one record with its `step` per line.

    A resumed run first drops the records of the steps after `step`, which it is about to compute again.
    """

    def __init__(self, path: Path, step: int) -> None:
        self._path = path
        self._file = self._open(step)

    def rewind(self, step: int) -> None:
        """Drops the records of later steps than `step`."""
        self._file.close()
        self._file = self._open(step)

    def write(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Appends a record and flushes it."""
        self._file.write(to_line({"step": step, **metrics}))
        self._file.flush()

    def close(self) -> None:
        """Closes the file."""
        with contextlib.suppress(OSError):  # a full disk was already reported by `write`
            self._file.close()

    def _open(self, step: int) -> IO[str]:
        atomic.write_text(self._path, "".join(to_line(r) for r in read_log(self._path) if r["step"] <= step))
        return self._path.open("a", encoding="utf-8")


@contextlib.contextmanager
def _open(path: str, file: IO[bytes] | None) -> Iterator[tuple[Callable[[], int] | None, IO[bytes]]]:
    """Returns the position in the file as stored, for one that has it, and its content, decompressed."""
    with contextlib.ExitStack() as stack:
        tell = None
        if path == STDIN:
            content: Any = sys.stdin.buffer
            tell = content.tell if content.seekable() else None
        elif file is None:
            raw, content = stack.enter_context(open_decompressed(path))
            tell = raw.tell
        else:
            content = decompressed(file, path)
        yield tell, io.BufferedReader(_Newlines(content), 1 << 17)  # its `readline` is in C


class _Newlines(io.RawIOBase):
    """Bytes with line ends of every system, CR and CR LF too, as LF: what Python's own text files read."""

    def __init__(self, file: Any) -> None:
        self._file, self._after_cr = file, False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Fills the buffer; returns the number of bytes, 0 at the end of the file."""
        block = b""
        while not block and (block := self._file.read1(len(buffer))):
            ends_in_cr = block.endswith(b"\r")
            block = block[self._after_cr and block.startswith(b"\n") :]
            self._after_cr = ends_in_cr
        if b"\r" in block:
            block = block.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        buffer[: len(block)] = block
        return len(block)


def _split_line(line: bytes) -> tuple[bytes, bytes]:
    """Splits a line after its last blank, otherwise after its last complete character."""
    end = line.rfind(b" ")
    if end <= 0:
        end = len(line)
        while end > len(line) - 4 and line[end - 1] & 0xC0 == 0x80:
            end -= 1
        end -= end < len(line) or line[-1] >= 0xC0
    return line[:end], line[end:]


def _decode(line: bytes, errors: str, stats: ReadStats) -> str:
    try:
        return line.decode()
    except UnicodeDecodeError:
        if errors == "strict":
            raise
        stats.invalid_lines += 1
        return line.decode(errors="replace")


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
