"""Progress bar on a terminal or in a notebook."""

from __future__ import annotations

import html
import importlib
import sys
import time
from collections.abc import Iterator
from typing import IO, Any

_SECONDS_BETWEEN_DRAWINGS = 0.2  # in a notebook, where every drawing is a message to the browser


def is_notebook(file: object) -> bool:
    """Returns whether a file is the output of a notebook's cell, which shows HTML."""
    return type(file).__module__.startswith("ipykernel.")


class ProgressBar:
    """Progress bar with an optional line of text below it; does nothing where there is neither terminal nor notebook.

    It is drawn at the first `update`, so that work which turns out to be done already draws none.
    """

    def __init__(
        self,
        title: str = "",
        total: int | None = None,
        *,
        file: IO[str] | None = None,
        percent: bool = False,
        keep: bool = False,
        interactive: bool | None = None,
    ) -> None:
        """Configures the bar.

        Args:
            title: shown before the bar.
            total: number that means 100 %; None if unknown.
            file: where the bar is drawn; standard error by default.
            percent: show a percentage instead of "done/total".
            keep: leave the bar on the screen at the end.
            interactive: draw the bar; by default when `file` is a terminal or belongs to a notebook.
        """
        self._file = sys.stderr if file is None else file
        self.interactive = (self._file.isatty() or is_notebook(self._file)) if interactive is None else interactive
        self._title, self._total, self._percent, self._keep = title, total, percent, keep
        self.text = ""
        self._bar: Any = None

    def update(self, done: int, total: int | None = None, text: str | None = None) -> None:
        """Moves the bar.

        Args:
            done: how much is done by now.
            total: a new total, once it is known.
            text: new text below the bar.
        """
        self.text = self.text if text is None else text
        if not self.interactive:
            return
        if self._bar is None:
            self._bar = self._start()
        if isinstance(self._bar, _NotebookBar):
            self._total = self._total if total is None else total
            self._bar.update(done, self._total, self.text)
        else:
            self._bar.update(self._bar.tasks[0].id, completed=done, **({} if total is None else {"total": total}))

    def print(self, text: str) -> None:
        """Prints a line above the bar."""
        if self._bar is None or isinstance(self._bar, _NotebookBar):
            print(text, file=self._file, flush=True)
        else:
            self._bar.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def close(self) -> None:
        """Ends the drawing."""
        if isinstance(self._bar, _NotebookBar):
            self._bar.close(self._keep, self.text)
        elif self._bar is not None:
            self._bar.stop()

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self) -> Any:
        if is_notebook(self._file):
            return _NotebookBar(self._title)
        from rich import progress
        from rich.console import Console
        from rich.markup import escape
        from rich.text import Text

        bar, screen = self, Console(file=self._file)

        class WithText(progress.Progress):
            def get_renderables(self) -> Iterator[Any]:
                yield self.make_tasks_table(self.tasks)
                if bar.text:
                    yield Text(fold(bar.text, screen.width), style="dim")

        drawn = WithText(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(bar_width=30),
            progress.TaskProgressColumn() if self._percent else progress.MofNCompleteColumn(),
            progress.TimeElapsedColumn(),
            progress.TimeRemainingColumn(),
            console=screen,
            transient=not self._keep,
        )
        drawn.start()
        drawn.add_task(escape(self._title), total=self._total)
        return drawn


def fold(text: str, width: int) -> str:
    """Breaks a line such as "loss 7.250  lr 1.00e-04" at a width, between its parts, which two spaces separate."""
    lines = [""]
    for part in text.split("  "):
        if lines[-1] and len(lines[-1]) + 2 + len(part) > width:
            lines.append("")
        lines[-1] += f"  {part}" if lines[-1] else part
    return "\n".join(lines)


class _NotebookBar:
    """One output of a cell, which is drawn again in place; as text where HTML is not shown."""

    def __init__(self, title: str) -> None:
        self._title, self._began, self._drawn, self._handle = title, time.monotonic(), -1.0, None
        self._state: tuple[int, int | None] = (0, None)

    def update(self, done: int, total: int | None, text: str) -> None:
        self._state = (done, total)
        if time.monotonic() - self._drawn >= _SECONDS_BETWEEN_DRAWINGS:
            self._draw(text)

    def close(self, keep: bool, text: str) -> None:
        if keep:
            self._draw(text)
        elif self._handle is not None:
            self._handle.update({"text/plain": "", "text/html": ""}, raw=True)

    def _draw(self, text: str) -> None:
        self._drawn = time.monotonic()
        done, total = self._state
        minutes, seconds = divmod(round(self._drawn - self._began), 60)
        count = f"{done:,}" if total is None else f"{done:,}/{total:,}"
        line = "  ".join(filter(None, (self._title, count, f"{minutes}:{seconds:02d}", text)))
        bar = (
            ""
            if total is None
            else f"<progress value='{done}' max='{total}' style='vertical-align:middle'></progress> "
        )
        content = {
            "text/plain": line,
            "text/html": f"<div style='font-family:monospace'>{bar}{html.escape(line)}</div>",
        }
        if self._handle is None:
            display = importlib.import_module("IPython.display").display  # a notebook brings it along
            self._handle = display(content, raw=True, display_id=True)
        else:
            self._handle.update(content, raw=True)
