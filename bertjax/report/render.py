"""`report.html` of a work directory: everything there is to see of a run, in one file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertjax.io.atomic import write_json
from bertjax.report import analyses, model_views, run_header, sections, tasks
from bertjax.report.page import Section, page, write_page
from bertjax.report.run_record import ANALYSES_FOLDER, RunRecord, read_analysis, read_run
from bertjax.storage import is_url

FILE = "report.html"


def render(workdir: Path) -> Path:
    """Writes the report of a work directory atomically and returns its path; raises `UserError` without a config."""
    path = workdir / FILE
    write_page(path, report_page(read_run(workdir)))
    return path


def store_analysis(source: Any, kind: str, values: Mapping[str, Any], *, merge: bool = False) -> None:
    """Stores what a command measured of a run for its report, in place of an earlier result, and rewrites the report.

    Args:
        source: what the command was given as its model; nothing happens unless it is the work directory of a run.
        kind: key of `analyses.SECTIONS`.
        values: what the section shows.
        merge: keep earlier values under other names.
    """
    path = getattr(source, "workdir", source)
    if not isinstance(path, str | os.PathLike) or is_url(path) or not (Path(path) / "checkpoints").is_dir():
        return
    folder = Path(path) / ANALYSES_FOLDER
    folder.mkdir(exist_ok=True)
    earlier = read_analysis(Path(path), kind) if merge else {}
    write_json(folder / f"{kind}.json", {**earlier, **values})
    if (Path(path) / FILE).is_file():
        render(Path(path))


def report_page(run: RunRecord) -> str:
    """Returns the page of a run; sections without content are omitted."""
    shown = [
        Section("loss", "Loss", sections.losses(run)),
        Section("task", "Task", tasks.task(run)),
        Section("scores", "Scores", sections.scores(run)),
        Section("predictions", "Mask predictions", model_views.mask_predictions(run)),
        Section("attention", "Attention", model_views.attention(run)),
        Section("neighbors", "Nearest tokens", model_views.neighbors(run)),
        *analyses.sections(run),
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
