"""Compressed files by their endings: names, decompression as a stream, and damage as one error."""

from __future__ import annotations

import importlib
import io
import os
from collections.abc import Callable
from typing import IO, Any, NamedTuple


class _Format(NamedTuple):
    """Name of a format, the library that reads it, and how that opens a file; pyarrow is imported for zstd only."""

    name: str
    library: str
    open: Callable[[Any, IO[bytes]], Any]


_FORMATS = {
    ".gz": _Format("gzip", "gzip", lambda gzip, raw: gzip.GzipFile(fileobj=raw)),
    ".bz2": _Format("bzip2", "bz2", lambda bz2, raw: _Streams(bz2.BZ2Decompressor, raw)),
    ".xz": _Format("xz", "lzma", lambda lzma, raw: _Streams(lzma.LZMADecompressor, raw)),
    ".zst": _Format("zstd", "pyarrow", lambda pyarrow, raw: pyarrow.CompressedInputStream(raw, "zstd")),
}
ENDINGS = tuple(_FORMATS)
_SHORT_ENDINGS = {".tgz": ".tar.gz", ".tbz2": ".tar.bz2", ".txz": ".tar.xz", ".tzst": ".tar.zst"}
_BLOCK_BYTES = 1 << 17


class DamagedFileError(Exception):
    """Compressed file that is broken or cut short: the name of its format, and the reason on one line."""

    def explain(self, path: str, position: str = "") -> str:
        """Returns a message with the path, a position such as "after line 3", and advice."""
        name, reason = self.args
        return f"{path}: broken {' '.join(filter(None, (name, position)))} ({reason}); copy or compress it again"


def split_ending(path: str) -> tuple[str, str]:
    """Returns a path in lower case without the ending of its compression, and that ending, "" for none."""
    name = path.lower()
    short = os.path.splitext(name)[1]
    name = name.removesuffix(short) + _SHORT_ENDINGS.get(short, short)
    bare, ending = os.path.splitext(name)
    return (bare, ending) if ending in _FORMATS else (name, "")


def bare_name(path: str) -> str:
    """Returns a path in lower case without the ending of its compression: `a.jsonl` for `A.jsonl.zst`."""
    return split_ending(path)[0]


def decompressed(raw: Any, path: str) -> Any:
    """Returns a buffered file as its decompressed stream, by the ending of `path`; the same file for another ending.

    Raises:
        DamagedFileError: Also on every read, where the file is broken or cut short.
    """
    _, ending = split_ending(path)
    return io.BufferedReader(_Decompressor(raw, _FORMATS[ending]), _BLOCK_BYTES) if ending else raw


class _Decompressor(io.RawIOBase):
    def __init__(self, raw: Any, form: _Format) -> None:
        self._name = form.name
        if not raw.peek(1):
            raise DamagedFileError(form.name, "the file is empty")
        try:
            self._file = form.open(importlib.import_module(form.library), raw)
        except ImportError:
            raise DamagedFileError(form.name, f"this Python has no module {form.library}") from None

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Fills the buffer; returns the number of bytes, 0 at the end of the file."""
        try:
            return int(self._file.readinto(buffer))
        except Exception as error:  # every library has its own: EOFError, zlib.error, LZMAError, OSError of pyarrow
            if isinstance(error, OSError) and error.errno is not None:
                raise
            raise DamagedFileError(self._name, " ".join(str(error).split())) from error


class _Streams:
    """Streams one after another, zeros between them left out; Python's classes take one with damage for the end."""

    def __init__(self, new: Callable[[], Any], raw: IO[bytes]) -> None:
        self._new, self._raw, self._stream = new, raw, new()

    def readinto(self, buffer: Any) -> int:
        content = b""
        while not content and (block := self._next_block()) is not None:
            content = self._stream.decompress(block, len(buffer))
        buffer[: len(content)] = content
        return len(content)

    def _next_block(self) -> bytes | None:
        """Returns what the stream needs next, or the beginning of another one, None after the last."""
        if not self._stream.eof:
            block = self._raw.read(_BLOCK_BYTES) if self._stream.needs_input else b""
            if self._stream.needs_input and not block:
                raise EOFError("it ends within a stream")
            return block
        block = self._stream.unused_data.lstrip(b"\0")
        while not block and (more := self._raw.read(_BLOCK_BYTES)):
            block = more.lstrip(b"\0")
        self._stream = self._new() if block else self._stream
        return block or None
