"""Progress of preparing a corpus."""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable

from bertjax.config.source_files import source_entries
from bertjax.config.sources import Source
from bertjax.data.readers import DocumentStats
from bertjax.io.progress_bar import ProgressBar

_SECONDS_BETWEEN_LINES = 15.0
_SECONDS_BETWEEN_UPDATES = 0.2


class TokenizingProgress:
    """Reports the progress of preparing a corpus: a bar on a terminal, a line every 15 seconds elsewhere.

    Call it with (documents, bytes of text) done; `reading` counts how much of the source's files was read.
    """

    def __init__(
        self, source: Source, reading: DocumentStats, say: Callable[[str], None], interactive: bool | None = None
    ) -> None:
        self._source, self._reading, self._say = source, reading, say
        if say is not print and interactive is None:
            interactive = False
        self._bar = ProgressBar(f"tokenizing {source.text}", file=sys.stdout, percent=True, interactive=interactive)
        self._last = time.monotonic()

    @functools.cached_property
    def _total(self) -> int:
        return sum(entry.size for entry in source_entries(self._source).values())

    def __call__(self, documents: int, size: int) -> None:
        now = time.monotonic()
        if now - self._last < (_SECONDS_BETWEEN_UPDATES if self._bar.interactive else _SECONDS_BETWEEN_LINES):
            return
        self._last = now
        text = f"{documents:,} documents, {size / 2**20:,.0f} MiB"
        total = self._total
        if self._bar.interactive:
            self._bar.update(self._reading.bytes, total or None, text)
            return
        share = f" ({100 * self._reading.bytes / total:.0f} % of the files)" if total else ""
        self._say(f"tokenizing {self._source.text}: {text} so far{share}")

    def __enter__(self) -> TokenizingProgress:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()
