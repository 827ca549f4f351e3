"""How far a long preparation has come: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

from bertjax.config.sources import Source, source_files
from bertjax.data.readers import Reading

_SECONDS_BETWEEN_LINES = 15.0
_SECONDS_BETWEEN_LOOKS = 0.2


class Progress:
    """Called with (documents, bytes of text) done; how much of the files is read, `reading` tells. Use it in a `with`.

    The bar appears when there is something to show, so that a corpus from the cache draws none.
    """

    def __init__(
        self, source: Source, reading: Reading, say: Callable[[str], None], interactive: bool | None = None
    ) -> None:
        self._source, self._reading, self._say = source, reading, say
        self._interactive = say is print and sys.stdout.isatty() if interactive is None else interactive
        self._bar: Any = None
        self._began = self._last = time.monotonic()

    def __call__(self, documents: int, size: int) -> None:
        now = time.monotonic()
        if now - self._last < (_SECONDS_BETWEEN_LOOKS if self._interactive else _SECONDS_BETWEEN_LINES):
            return
        self._last = now
        figures = f"{documents:,} documents, {size / 2**20:,.0f} MiB"
        if not self._interactive:
            share = f" ({100 * self._reading.bytes / total:.0f} % of the files)" if (total := self._total()) else ""
            self._say(f"tokenising {self._source.text}: {figures} so far{share}")
            return
        if self._bar is None:
            self._bar = _bar(self._source.text, self._total() or None)
        task = self._bar.tasks[0].id
        self._bar.update(task, completed=self._reading.bytes, figures=figures)

    def _total(self) -> int:
        return sum(os.path.getsize(path) for path in source_files(self._source))

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()


def _bar(title: str, total: int | None) -> Any:
    from rich.markup import escape
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (
        TextColumn("tokenising {task.description}"),
        BarColumn(bar_width=30),
        TextColumn("{task.percentage:>3.0f} %"),
        TextColumn("{task.fields[figures]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    bar = Progress(*columns, transient=True)
    bar.start()
    bar.add_task(escape(title), total=total, figures="")
    return bar
