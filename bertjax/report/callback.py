"""Callback that probes the model after every evaluation and rewrites `report.html`; it never stops the run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from bertjax.report.probe_log import Probe, ProbeLog
from bertjax.report.render import render
from bertjax.types import Params

FAILED = "warning: {what} failed ({error}); training continues without it (printed once)"


class ReportCallback:
    """Writes probes and the report after every evaluation. A failure is printed once as a warning."""

    def __init__(
        self,
        workdir: Path,
        step: int,
        facts: Callable[[], Mapping[str, Any]],
        probe: Callable[[int, Params], Iterable[Probe]],
        log: Callable[[str], None] = print,
    ):
        """Opens the probe log and writes the first page.

        Args:
            workdir: Work directory of the run.
            step: Step at which the run starts or resumes.
            facts: Returns the fields of the `run` record (see `probe_log`).
            probe: Returns the probes of the parameters at a step.
            log: Prints a line for the user.
        """
        self.workdir, self.probe, self.log = workdir, probe, log
        self._failed: set[str] = set()
        self._probe_log: ProbeLog | None = None
        self._guard("writing probes.jsonl", lambda: self._begin(step, facts))
        self.render()

    def __call__(self, step: int, params: Params, metrics: Mapping[str, float]) -> None:
        """Probes the model and rewrites the page.

        Args:
            step: Step that was evaluated.
            params: Parameters that were evaluated.
            metrics: Evaluation metrics; metrics.jsonl already holds them.
        """
        if "probing the model" not in self._failed:
            self._guard("probing the model", lambda: self._write(step, params))
        self.render()

    def render(self) -> None:
        """Rewrites the page. Call it at the end as well, for metrics written after the last evaluation."""
        self._guard("writing report.html", lambda: render(self.workdir))

    def _begin(self, step: int, facts: Callable[[], Mapping[str, Any]]) -> None:
        self._probe_log = ProbeLog(self.workdir, step)
        self._probe_log.describe(facts())

    def _write(self, step: int, params: Params) -> None:
        if self._probe_log is None:
            return
        probes = list(self.probe(step, params))
        self._probe_log.forget(step)  # a run that was rolled back reaches this step again
        for kind, fields in probes:
            self._probe_log.write(step, kind, **fields)

    def _guard(self, what: str, work: Callable[[], Any]) -> None:
        try:
            work()
        except Exception as error:  # no error in the report may stop training
            if what not in self._failed:
                self._failed.add(what)
                reason = f"{type(error).__name__}: {error}".splitlines()[0]
                self.log(FAILED.format(what=what, error=reason[:300]))
