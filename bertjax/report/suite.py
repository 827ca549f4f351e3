"""Table and page of a suite: tasks by models, medians over seeds with their spread."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from bertjax.config.suites import SuiteTask
from bertjax.io import atomic
from bertjax.io.output import align
from bertjax.metrics import best_of, plus_minus, sample_stdev
from bertjax.report.page import Section, page, table, write_page


@dataclasses.dataclass(frozen=True)
class SuiteResult:
    """Result of a task for a model.

    Attributes:
        status: done, missing or failed.
        note: Why there are no scores.
        scores: Values by metric, one per seed.
        settings: What a grid chose.
        runs: Work directories in the order of the seeds.
    """

    status: str
    note: str = ""
    scores: Mapping[str, Sequence[float]] = dataclasses.field(default_factory=dict)
    settings: Mapping[str, str] = dataclasses.field(default_factory=dict)
    runs: Sequence[str] = ()

    def values(self, metrics: Sequence[str]) -> list[float]:
        """Returns the mean of the metrics for every seed."""
        return [statistics.fmean(values) for values in zip(*(self.scores[name] for name in metrics), strict=True)]

    def best_run(self, metrics: Sequence[str]) -> str:
        """Returns the work directory of the run with the best reported score."""
        values = self.values(metrics)
        return self.runs[best_of(f"eval/{metrics[0]}", range(len(values)), values.__getitem__)]


@dataclasses.dataclass
class SuiteScores:
    """Results by (task, model); `str` is the table.

    Attributes:
        tasks: Tasks in order.
        models: Names of the models in order.
        results: Those that there are so far.
        protocol: How the scores came about.
    """

    tasks: Sequence[SuiteTask]
    models: Sequence[str]
    results: dict[tuple[str, str], SuiteResult]
    protocol: str

    @property
    def exit_code(self) -> int:
        """1 if a task failed."""
        return int(any(result.status == "failed" for result in self.results.values()))

    def task(self, name: str) -> SuiteTask:
        """Returns a task by its name."""
        return next(task for task in self.tasks if task.name == name)

    def rows(self) -> list[list[str]]:
        """Returns a row per task and metric and, if every model has all scores, one of the mean."""
        rows: list[list[str]] = []
        for task in self.tasks:
            of_task = [self.results.get((task.name, model)) for model in self.models]
            others = [(name,) for name in (*(task.metric if len(task.metric) > 1 else ()), *task.show)]
            for metrics in [task.metric, *(others if any(each and each.scores for each in of_task) else [])]:
                rows.append([task.name, " + ".join(metrics), *(_cell(each, metrics) for each in of_task)])
        scored = [task for task in self.tasks if all(self._is_scored(task, model) for model in self.models)]
        if len(scored) > 1:
            means = [statistics.fmean(self.median(task, model) for task in scored) for model in self.models]
            name = "mean" if len(scored) == len(self.tasks) else f"mean of {', '.join(each.name for each in scored)}"
            rows.append([name, "", *(f"{mean:.4f}" for mean in means)])
        return rows

    def median(self, task: SuiteTask, model: str) -> float:
        """Returns the median of what counts over the seeds."""
        return statistics.median(self.results[task.name, model].values(task.metric))

    def _is_scored(self, task: SuiteTask, model: str) -> bool:
        result = self.results.get((task.name, model))
        return result is not None and bool(result.scores)

    def notes(self) -> list[str]:
        """Returns a line per task without scores, and per choice of a grid; one line for all models that share it."""
        models: dict[tuple[str, str], list[str]] = {}
        for (task, model), result in self.results.items():
            chosen = ", ".join(f"{key}={each}" for key, each in result.settings.items())
            for text in filter(None, (result.note and f"{result.status}: {result.note}", chosen)):
                models.setdefault((task, text), []).append(model)
        return [
            f"{task}: {text}" if len(those) == len(self.models) else f"{task}, {', '.join(those)}: {text}"
            for (task, text), those in models.items()
        ]

    def __str__(self) -> str:
        heads, rows = ["task", "metric", *self.models], self.rows()
        return "\n".join([*align([heads, *rows]), "", *self.notes(), self.protocol])


def _cell(result: SuiteResult | None, metrics: Sequence[str]) -> str:
    if result is None:
        return ""
    if not result.scores:
        return result.status
    values = result.values(metrics)
    return plus_minus(statistics.median(values), values)


def write_results(folder: Path, scores: SuiteScores) -> None:
    """Writes suite.json, suite.md and suite.html.

    Args:
        folder: Work directory of the suite.
        scores: Results so far.
    """
    folder.mkdir(parents=True, exist_ok=True)
    heads, rows = ["task", "metric", *scores.models], scores.rows()
    atomic.write_json(folder / "suite.json", _to_json(scores), indent=1)
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in [heads, *rows]]
    lines.insert(1, "|" + " --- |" * len(heads))
    notes = [f"- {note}" for note in scores.notes()]
    atomic.write_text(folder / "suite.md", "\n".join([*lines, "", scores.protocol, "", *notes]).rstrip() + "\n")
    listed = "".join(f"<li>{escape(note)}</li>" for note in scores.notes())
    sections = [
        Section("scores", "Scores", f'<div class="card">{table(heads, rows, numeric=range(2, len(heads)))}</div>'),
        Section("notes", "Missing, failed, chosen", f"<ul>{listed}</ul>" if listed else ""),
    ]
    foot = "<p>Written by <code>bertjax suite</code>.</p>"
    write_page(folder / "suite.html", page("Suite of tasks", f"<p>{escape(scores.protocol)}</p>", sections, foot))


def _to_json(scores: SuiteScores) -> dict[str, Any]:
    results = []
    for (task, model), result in scores.results.items():
        counted = {}
        if result.scores:
            values = result.values(scores.task(task).metric)
            counted = {"median": statistics.median(values), "stdev": sample_stdev(values)}
        results.append({"task": task, "model": model, **counted, **vars(result)})
    return {"protocol": scores.protocol, "results": results}
