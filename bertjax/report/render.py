"""`report.html` of a work folder: everything that there is to see of a run, in one file."""

from __future__ import annotations

from pathlib import Path

from bertjax.report import model_views, run_header, sections, tasks
from bertjax.report.page import Section, page, write_page
from bertjax.report.run_record import RunRecord, read_run

FILE = "report.html"


def render(workdir: Path) -> Path:
    """Replaces the report of a work folder, in one go; returns where it lies. Raises `UserError` for other folders."""
    path = workdir / FILE
    write_page(path, report_page(read_run(workdir)))
    return path


def report_page(run: RunRecord) -> str:
    """The page of a run; sections for which there is nothing are left out."""
    shown = [
        Section("loss", "Loss", sections.losses(run)),
        Section("task", "Task", tasks.task(run)),
        Section("scores", "Accuracy", sections.scores(run)),
        Section("fillings", "What it fills in", model_views.fillings(run)),
        Section("attention", "Attention", model_views.attention(run)),
        Section("neighbours", "Nearest pieces", model_views.neighbours(run)),
        Section("sets", "Held-out sets", sections.sets(run)),
        Section("optimization", "Optimization", sections.optimization(run)),
        Section("speed", "Speed and memory", sections.speed(run)),
        Section("config", "Config", run_header.config(run)),
    ]
    foot = (
        "<p>Written by bertjax from <code>config.json</code>, <code>metrics.jsonl</code> and <code>probes.jsonl</code> "
        "of the work folder; <code>bertjax report</code> writes it anew. Besides figures it holds the sentences and "
        "pieces that the config names, and the config itself, with the places of its data.</p>"
    )
    return page(run.name, run_header.head(run), shown, foot)
