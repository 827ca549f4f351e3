"""`report.html` of a work directory: everything there is to see of a run, in one file."""

from __future__ import annotations

from pathlib import Path

from bertjax.report import model_views, run_header, sections, tasks
from bertjax.report.page import Section, page, write_page
from bertjax.report.run_record import RunRecord, read_run

FILE = "report.html"


def render(workdir: Path) -> Path:
    """Writes the report of a work directory atomically and returns its path; raises `UserError` without a config."""
    path = workdir / FILE
    write_page(path, report_page(read_run(workdir)))
    return path


def report_page(run: RunRecord) -> str:
    """Returns the page of a run; sections without content are omitted."""
    shown = [
        Section("loss", "Loss", sections.losses(run)),
        Section("task", "Task", tasks.task(run)),
        Section("scores", "Scores", sections.scores(run)),
        Section("predictions", "Mask predictions", model_views.mask_predictions(run)),
        Section("attention", "Attention", model_views.attention(run)),
        Section("neighbors", "Nearest tokens", model_views.neighbors(run)),
        Section("sets", "Held-out sets", sections.sets(run)),
        Section("optimization", "Optimization", sections.optimization(run)),
        Section("speed", "Speed and memory", sections.speed(run)),
        Section("config", "Config", run_header.config(run)),
    ]
    foot = (
        "<p>Written by bertjax from <code>config.json</code>, <code>metrics.jsonl</code> and <code>probes.jsonl</code> "
        "of the work directory; <code>bertjax report</code> rewrites it. Besides metrics it contains the sentences and "
        "tokens that the config names, and the config itself, with the paths of its data.</p>"
    )
    return page(run.name, run_header.head(run), shown, foot)
