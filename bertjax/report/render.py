"""`report.html` of a work folder: everything that there is to see of a run, in one file."""

from __future__ import annotations

from pathlib import Path

from bertjax.report import about, figures, seen, tasks
from bertjax.report.page import Section, page, write_page
from bertjax.report.records import RunRecord, read_run

FILE = "report.html"


def render(workdir: Path) -> Path:
    """Replaces the report of a work folder, in one go; returns where it lies. Raises `UserError` for other folders."""
    path = workdir / FILE
    write_page(path, report_page(read_run(workdir)))
    return path


def report_page(run: RunRecord) -> str:
    """The page of a run; sections for which there is nothing are left out."""
    sections = [
        Section("loss", "Loss", figures.losses(run)),
        Section("task", "Task", tasks.task(run)),
        Section("scores", "Accuracy", figures.scores(run)),
        Section("fillings", "What it fills in", seen.fillings(run)),
        Section("attention", "Attention", seen.attention(run)),
        Section("neighbours", "Nearest pieces", seen.neighbours(run)),
        Section("sets", "Held-out sets", figures.sets(run)),
        Section("optimization", "Optimization", figures.optimization(run)),
        Section("speed", "Speed and memory", figures.speed(run)),
        Section("config", "Config", about.config(run)),
    ]
    foot = (
        "<p>Written by bertjax from <code>config.json</code>, <code>metrics.jsonl</code> and <code>probes.jsonl</code> "
        "of the work folder; <code>bertjax report</code> writes it anew. Besides figures it holds the sentences and "
        "pieces that the config names, and the config itself, with the places of its data.</p>"
    )
    return page(run.name, about.head(run), sections, foot)
