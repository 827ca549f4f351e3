"""Files to documents, one reader for each kind of source; holds one document at a time, whatever the size of the file.

Plain text and JSON lines are read with Python's own files: the text builder of `datasets` copies the whole corpus into
a cache first, and reports invalid UTF-8 without the file and the line, which is what a user needs to fix it. Tar files
are shards of `webdataset`, or any archive of text files, read a member at a time.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import tarfile
from collections.abc import Iterator, Mapping
from typing import IO, Any

from bertjax.compression import DamagedFileError, bare_name
from bertjax.data.columns import read_columns
from bertjax.errors import UserError, comma_list, one_line
from bertjax.io import jsonl
from bertjax.io.store import open_decompressed
from bertjax.storage import size_of

LONGEST_DOCUMENT = 1 << 24  # characters, for files bytes; longer ones are cut at a blank or the end of a line
REPLACE_ERRORS = ", or set data.encoding_errors='replace'"
# All but whitespace: they say nothing, and no two families of tokenizers do the same with them.
CONTROLS = re.compile("[\x00-\x08\x0e-\x1b\x7f]")


@dataclasses.dataclass
class DocumentStats(jsonl.ReadStats):
    """Counts of what reading a source encountered; `bytes` are those of its files on disk."""

    documents: int = 0
    empty: int = 0
    cut: int = 0
    control_characters: int = 0

    def facts(self) -> dict[str, int]:
        """Returns the counts to store when everything is read."""
        return {name: value for name, value in vars(self).items() if name != "bytes"}


def clean_documents(results: Iterator[str], reading: DocumentStats) -> Iterator[str]:
    """The documents without trailing whitespace on any line and without control characters; none empty, none gigantic.

    Newlines stay: a line is a paragraph or a sentence.
    """
    for document in results:
        if CONTROLS.search(document):
            document, count = CONTROLS.subn("", document)
            reading.control_characters += count
        cleaned = "\n".join(map(str.rstrip, document.split("\n"))).strip("\n")
        if not cleaned:
            reading.empty += 1
            continue
        while len(cleaned) > LONGEST_DOCUMENT:
            end = max(cleaned.rfind(blank, 1, LONGEST_DOCUMENT) for blank in " \n")
            end = LONGEST_DOCUMENT if end < 0 else end
            yield cleaned[:end]
            cleaned = cleaned[end:].lstrip()
            reading.cut += 1
            reading.documents += 1
        if cleaned:
            reading.documents += 1
            yield cleaned


def text_lines(
    path: str, errors: str, reading: DocumentStats, file: IO[bytes] | None = None
) -> Iterator[tuple[int, str]]:
    """Yields numbered lines of plain text, splitting long ones. Args: those of `jsonl.read_lines`."""
    return jsonl.read_lines(
        path, errors, reading, max_bytes=LONGEST_DOCUMENT, split_long=True, advice=REPLACE_ERRORS, file=file
    )


def read_blocks(path: str, field: str | None, errors: str, reading: DocumentStats) -> Iterator[str]:
    """Yields documents separated by blank lines.

    Args:
        path: File to read.
        field: Field of the document; None for plain text.
        errors: `strict` or `replace`.
        reading: Counts, updated.
    """
    block: list[str] = []
    size = 0
    for _, line in text_lines(path, errors, reading):
        if line.isspace() or size + len(line) > LONGEST_DOCUMENT:
            if block:
                yield "".join(block)
            reading.cut += bool(block) and not line.isspace()
            block, size = [], 0
        if not line.isspace():
            block.append(line)
            size += len(line)
    if block:
        yield "".join(block)


def read_lines(path: str, field: str | None, errors: str, reading: DocumentStats) -> Iterator[str]:
    """Yields one document per line. Args: those of `read_blocks`."""
    last = 0
    for number, line in text_lines(path, errors, reading):
        reading.cut += number == last
        last = number
        yield line


def read_whole(path: str, field: str | None, errors: str, reading: DocumentStats) -> Iterator[str]:
    """Yields one document per file, split if it is too long. Args: those of `read_blocks`."""
    yield from whole_document(text_lines(path, errors, reading), reading)


def whole_document(lines: Iterator[tuple[int, str]], reading: DocumentStats) -> Iterator[str]:
    """Yields all numbered lines as one document, split if it is too long."""
    parts: list[str] = []
    size = 0
    for _, line in lines:
        if parts and size + len(line) > LONGEST_DOCUMENT:
            yield "".join(parts)
            reading.cut += 1
            parts, size = [], 0
        parts.append(line)
        size += len(line)
    yield "".join(parts)


def read_jsonl(path: str, field: str | None, errors: str, reading: DocumentStats) -> Iterator[str]:
    """Yields a field of every JSON object. Args: those of `read_blocks`."""
    for number, record in jsonl.read_jsonl(path, errors, reading, advice=REPLACE_ERRORS):
        yield field_text(record, f"{path}:{number}", field, errors, reading)


def field_text(record: Mapping[str, Any], position: str, field: str | None, errors: str, reading: DocumentStats) -> str:
    """Returns a field of a record as a document; raises `UserError` as `checked`, and where it is missing.

    Args:
        record: JSON object or row.
        position, field, errors, reading: those of `checked`.
    """
    try:
        value = jsonl.get_nested(record, field or "")
    except KeyError as error:
        missing, names = error.args
        keys = one_line(", ".join(map(str, names[:8])))
        raise UserError(f"{position}: no field {missing!r} (it has {keys}); name yours with #FIELD") from None
    return checked(value, position, field, errors, reading)


def read_column(path: str, field: str | None, errors: str, reading: DocumentStats) -> Iterator[str]:
    """Yields the column `field` of every row of a parquet or Arrow file. Args: those of `read_blocks`."""
    before = reading.bytes
    for row in read_columns(path, [field or ""], "name yours with #FIELD"):
        reading.bytes = before + row.bytes
        yield checked(row.values[0], f"{path}: row {row.number}", field, errors, reading)
    reading.bytes = before + size_of(path)


def checked(value: Any, position: str, field: str | None, errors: str, reading: DocumentStats) -> str:
    """Returns a document as valid text: JSON may contain half a surrogate pair, which no tokenizer accepts.

    Args:
        value: Value of the field.
        position: File and line or row, for messages.
        field: Name of the field.
        errors: `strict` or `replace`.
        reading: Counts, updated.

    Raises:
        UserError: The value is not text or not valid.
    """
    if not isinstance(value, str):
        kind = "nothing" if value is None else type(value).__name__
        raise UserError(f"{position}: field {field!r} holds {kind} where text is expected; name another with #FIELD")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            if errors == "strict":
                advice = "fix the file, or set data.encoding_errors='replace'"
                raise UserError(f"{position}: half a surrogate pair (invalid Unicode); {advice}") from error
            reading.invalid_lines += 1
            return value.encode(errors="replace").decode()
    return value


_TAR_ENDINGS = (".txt", ".text")
_TAR_BLOCK_BYTES = 1 << 17


def read_tar(path: str, field: str | None, errors: str, reading: DocumentStats) -> Iterator[str]:
    """Yields one document per member whose name ends in `.ENDING`, plain or compressed; hidden files are left out.

    Args:
        path: Archive, plain or compressed.
        field: ENDING, or ENDING.FIELD for members with JSON objects (json: one, jsonl: one per line); text stands for
            txt and text.
        errors: `strict` or `replace`.
        reading: Counts, updated.

    Raises:
        UserError: The archive is damaged, or no member has this ending.
    """
    ending, _, name = (field or "text").partition(".")
    endings = _TAR_ENDINGS if ending == "text" else (f".{ending}",)
    others, chosen, last = set[str](), 0, ["the start"]
    with _tar_errors(path, last):
        for member, file in _tar_members(path, reading):
            if not bare_name(member).endswith(endings):
                others |= {f".{os.path.basename(member).partition('.')[2]}"} if len(others) < 8 else set()
                continue
            chosen += 1
            yield from _tar_documents(f"{path}/{member}", file, (ending, name or "text"), errors, reading)
            last[0] = member
    if others and not chosen:
        raise UserError(
            f"{path}: no member ends in {' or '.join(endings)} (some end in {comma_list(sorted(others))}); name yours "
            "with #ENDING"
        )


def _tar_documents(
    where: str, file: IO[bytes], field: tuple[str, str], errors: str, reading: DocumentStats
) -> Iterator[str]:
    ending, name = field
    if ending == "json":
        lines = jsonl.read_lines(where, errors, reading, advice=REPLACE_ERRORS, file=file)
        record = jsonl.parse_object("".join(line for _, line in lines), where)
        yield field_text(record, where, name, errors, reading)
    elif ending == "jsonl":
        for number, record in jsonl.read_jsonl(where, errors, reading, advice=REPLACE_ERRORS, file=file):
            yield field_text(record, f"{where}:{number}", name, errors, reading)
    else:
        yield from whole_document(text_lines(where, errors, reading, file), reading)


@contextlib.contextmanager
def _tar_errors(path: str, last: list[str]) -> Iterator[None]:
    try:
        yield
    except DamagedFileError as error:
        raise UserError(error.explain(path, f"after {last[0]}")) from error
    except tarfile.TarError as error:
        raise UserError(f"{path}: broken tar after {last[0]} ({one_line(error)}); copy or pack it again") from error
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from error


def _tar_members(path: str, reading: DocumentStats) -> Iterator[tuple[str, Any]]:
    """Yields name and content of every regular file; each must be read before the next."""
    before = reading.bytes
    with open_decompressed(path) as (raw, stream):
        with tarfile.open(fileobj=stream, mode="r|", bufsize=_TAR_BLOCK_BYTES, tarinfo=_TarMember) as archive:
            for info in archive:
                if info.isfile() and not os.path.basename(info.name).startswith("."):
                    yield info.name, archive.extractfile(info)
                archive.members = []  # type: ignore[attr-defined]  # else it keeps every header
                reading.bytes = before + raw.tell()
            _require_zeros(archive.fileobj)
        reading.bytes = before + raw.tell()


def _require_zeros(stream: Any) -> None:
    """Reads what follows the end of an archive, which also verifies the checksum of a compressed one."""
    while block := stream.read(_TAR_BLOCK_BYTES):
        if block.strip(b"\0"):
            raise tarfile.ReadError("bytes after its end: a second archive, or damage")


class _TarMember(tarfile.TarInfo):
    """Header of a member; a damaged or missing one, which `tarfile` takes for the end of the archive, is an error."""

    @classmethod
    def fromtarfile(cls, archive: tarfile.TarFile) -> _TarMember:
        """Reads the next header."""
        try:
            return super().fromtarfile(archive)
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]  # a block of zeros
            raise
        except tarfile.HeaderError as error:
            raise tarfile.ReadError(one_line(error)) from error
