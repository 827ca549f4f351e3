"""A bar on the terminal while something takes long; nothing anywhere else."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def progress_bar(what: str) -> Iterator[Callable[[int, int | None], None]]:
    """A function to be called with (done, of how many; None = not known); the bar is on stderr, and gone at the end."""
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (BarColumn(bar_width=30), MofNCompleteColumn(), TextColumn(what), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
