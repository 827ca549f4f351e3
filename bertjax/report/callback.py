"""Looks on while a run trains: writes down what is seen, and the page anew, and never stands in the run's way."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from bertjax.report.probe_log import Journal
from bertjax.report.render import render
from bertjax.types import Params

Finding = tuple[str, dict[str, Any]]
BROKEN = "warning: {what} failed ({error}); the run goes on without (said once)"


class Watcher:
    """Is told of every evaluation of a run. Whatever fails here is a warning, once, and no more.

    `look` gives what there is to see of parameters, `facts` the `run` line of the journal: see `journal.py`.
    """

    def __init__(
        self,
        workdir: Path,
        step: int,
        facts: Callable[[], Mapping[str, Any]],
        look: Callable[[int, Params], Iterable[Finding]],
        say: Callable[[str], None] = print,
    ):
        self.workdir, self.look, self.say = workdir, look, say
        self._broken: set[str] = set()
        self._journal: Journal | None = None
        self._guarded("the journal of the report", lambda: self._begin(step, facts))
        self.render()

    def __call__(self, step: int, params: Params, figures: Mapping[str, float]) -> None:
        """After the evaluation of `step`: `figures` are in metrics.jsonl already."""
        if "looking into the model" not in self._broken:
            self._guarded("looking into the model", lambda: self._write(step, params))
        self.render()

    def render(self) -> None:
        """The page as of now; call it at the end, too, for figures that came after the last evaluation."""
        self._guarded("writing report.html", lambda: render(self.workdir))

    def _begin(self, step: int, facts: Callable[[], Mapping[str, Any]]) -> None:
        self._journal = Journal(self.workdir, step)
        self._journal.describe(facts())

    def _write(self, step: int, params: Params) -> None:
        if self._journal is None:
            return
        found = list(self.look(step, params))
        self._journal.forget(step)  # of a run that went back, and comes here again
        for kind, fields in found:
            self._journal.write(step, kind, **fields)

    def _guarded(self, what: str, work: Callable[[], Any]) -> None:
        try:
            work()
        except Exception as error:  # whatever it is, the run is worth more
            if what not in self._broken:
                self._broken.add(what)
                reason = f"{type(error).__name__}: {error}".splitlines()[0]
                self.say(BROKEN.format(what=what, error=reason[:300]))
