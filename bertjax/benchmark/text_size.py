"""The size of a text, and a sample of it: read for some seconds, the rest estimated from the sizes of its files."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from bertjax.config.source_files import source_entries
from bertjax.config.sources import Source
from bertjax.data.readers import DocumentStats
from bertjax.data.sources import held_out_number, iter_documents
from bertjax.errors import UserError

SECONDS = 20.0  # of reading, over all sources
SAMPLE_BYTES = 3_000_000
SECTION = 20_000
"""Characters after which the sample takes another decision: one document may be a whole library."""


class TextSize(NamedTuple):
    """Size of a text.

    Attributes:
        documents: documents; estimated unless `is_exact`.
        bytes: bytes of UTF-8; estimated unless `is_exact`.
        is_exact: whether all was read.
        sample: file of JSON lines (`text`), drawn from what was read.
        sample_bytes: bytes of UTF-8 in it.
    """

    documents: int
    bytes: int
    is_exact: bool
    sample: Path
    sample_bytes: int


def measure_text(sources: Sequence[Source], errors: str, folder: Path, seconds: float = SECONDS) -> TextSize:
    """Reads sources for some seconds and writes a sample of them.

    Args:
        sources: the sources.
        errors: as in `iter_documents`.
        folder: the sample is written here.
        seconds: time for all sources.

    Raises:
        UserError: a source cannot be read, or holds no text.
    """
    sample = _Sample()
    documents = size = 0.0
    is_exact = True
    for source in sources:
        reading = DocumentStats()
        on_disk = sum(entry.size for entry in source_entries(source).values()) if source.spec.is_file else 0
        end = time.monotonic() + seconds / len(sources)
        read, count, complete = 0, 0, True
        for document in iter_documents(source, errors, reading):
            count += 1
            read += len(document.encode())
            sample.add(document)
            if time.monotonic() > end:
                complete = False
                break
        factor = 1.0 if complete or not reading.bytes else max(on_disk / reading.bytes, 1.0)
        is_exact &= complete
        documents, size = documents + factor * count, size + factor * read
    if not size:
        raise UserError(f"{', '.join(source.text for source in sources)}: there is no text in it")
    path = folder / "sample.jsonl"
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps({"text": section}, ensure_ascii=False) + "\n" for section in sample.sections)
    return TextSize(round(documents), round(size), is_exact, path, sample.size)


class _Sample:
    """A sample of at most twice `SAMPLE_BYTES`: every section is as likely as any other, and a text has one sample."""

    def __init__(self) -> None:
        self._drawn: list[tuple[int, str]] = []
        self.size, self._limit, self._count = 0, 2**64, 0

    @property
    def sections(self) -> list[str]:
        return [section for _, section in self._drawn]

    def add(self, document: str) -> None:
        for section in _sections(document):
            self._count += 1
            if (number := held_out_number(str(self._count))) < self._limit:
                self._drawn.append((number, section))
                self.size += len(section.encode())
        while self.size > 2 * SAMPLE_BYTES and len(self._drawn) > 1:
            self._limit //= 2
            self._drawn = [each for each in self._drawn if each[0] < self._limit]
            self.size = sum(len(section.encode()) for _, section in self._drawn)


def _sections(document: str) -> Iterator[str]:
    while len(document) > SECTION:
        end = (
            document.rfind("\n", SECTION // 2, SECTION) + 1 or document.rfind(" ", SECTION // 2, SECTION) + 1 or SECTION
        )
        yield document[:end]
        document = document[end:]
    yield document
