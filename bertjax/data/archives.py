"""Tar files to documents, a member at a time: shards of `webdataset`, or any archive of text files."""

from __future__ import annotations

import contextlib
import os
import tarfile
from collections.abc import Iterator
from typing import IO, Any

from bertjax.compression import DamagedFileError, bare_name
from bertjax.data.readers import REPLACE_ERRORS, DocumentStats, field_text, text_lines, whole_document
from bertjax.errors import UserError, comma_list, one_line
from bertjax.io import jsonl
from bertjax.io.store import open_decompressed

_DEFAULT_ENDINGS = (".txt", ".text")
_BLOCK_BYTES = 1 << 17


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
    endings = _DEFAULT_ENDINGS if ending == "text" else (f".{ending}",)
    others, chosen, last = set[str](), 0, ["the start"]
    with _errors(path, last):
        for member, file in _members(path, reading):
            if not bare_name(member).endswith(endings):
                others |= {f".{os.path.basename(member).partition('.')[2]}"} if len(others) < 8 else set()
                continue
            chosen += 1
            yield from _documents(f"{path}/{member}", file, (ending, name or "text"), errors, reading)
            last[0] = member
    if others and not chosen:
        raise UserError(
            f"{path}: no member ends in {' or '.join(endings)} (some end in {comma_list(sorted(others))}); name yours "
            "with #ENDING"
        )


def _documents(
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
def _errors(path: str, last: list[str]) -> Iterator[None]:
    try:
        yield
    except DamagedFileError as error:
        raise UserError(error.explain(path, f"after {last[0]}")) from error
    except tarfile.TarError as error:
        raise UserError(f"{path}: broken tar after {last[0]} ({one_line(error)}); copy or pack it again") from error
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from error


def _members(path: str, reading: DocumentStats) -> Iterator[tuple[str, Any]]:
    """Yields name and content of every regular file; each must be read before the next."""
    before = reading.bytes
    with open_decompressed(path) as (raw, stream):
        with tarfile.open(fileobj=stream, mode="r|", bufsize=_BLOCK_BYTES, tarinfo=_Member) as archive:
            for info in archive:
                if info.isfile() and not os.path.basename(info.name).startswith("."):
                    yield info.name, archive.extractfile(info)
                archive.members = []  # type: ignore[attr-defined]  # else it keeps every header
                reading.bytes = before + raw.tell()
            _require_zeros(archive.fileobj)
        reading.bytes = before + raw.tell()


def _require_zeros(stream: Any) -> None:
    """Reads what follows the end of an archive, which also verifies the checksum of a compressed one."""
    while block := stream.read(_BLOCK_BYTES):
        if block.strip(b"\0"):
            raise tarfile.ReadError("bytes after its end: a second archive, or damage")


class _Member(tarfile.TarInfo):
    """Header of a member; a damaged or missing one, which `tarfile` takes for the end of the archive, is an error."""

    @classmethod
    def fromtarfile(cls, archive: tarfile.TarFile) -> _Member:
        """Reads the next header."""
        try:
            return super().fromtarfile(archive)
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]  # a block of zeros
            raise
        except tarfile.HeaderError as error:
            raise tarfile.ReadError(one_line(error)) from error
