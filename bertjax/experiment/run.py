"""A run, as its work directory holds it: step, metrics, model, report."""

from __future__ import annotations

import contextlib
import dataclasses
import html
import os
from pathlib import Path

from bertjax.config.objectives import objective_class
from bertjax.errors import UserError
from bertjax.experiment import build
from bertjax.experiment.finetune import exported_step
from bertjax.experiment.load import load_model
from bertjax.experiment.workdir import read_config
from bertjax.hf.pretrained import PretrainedModel, load_single
from bertjax.io.jsonl import read_log
from bertjax.io.staging import display_path, local_copy
from bertjax.metrics import Metrics

_SHOWN = 4  # metrics in a repr


class HtmlView:
    """An HTML page that a notebook shows in a frame."""

    def __init__(self, page: str, height: int):
        self._page, self._height = page, height

    def _repr_html_(self) -> str:
        style = f"width:100%;height:{self._height}px;border:1px solid #ccc"
        return f'<iframe srcdoc="{html.escape(self._page)}" style="{style}"></iframe>'


@dataclasses.dataclass(frozen=True, repr=False)
class Run:
    """A run as its work directory holds it. It can be given wherever a model or an `init_from` is expected.

    Attributes:
        workdir: The work directory.
        step: Step of the weights: the last one, or the best with `task.export_checkpoint=best`.
        metrics: Metrics of the last held-out evaluation up to that step, such as `eval/loss`.
        export: Folder for `transformers`; None if `export.at_end` is off or the run is not finished.
        report: HTML report; None if `report.enabled` is off.
    """

    workdir: Path
    step: int
    metrics: Metrics
    export: Path | None
    report: Path | None

    def history(self) -> list[dict[str, float]]:
        """Returns one record per logged step with all metrics of it: `pandas.DataFrame(run.history())`."""
        records: dict[int, dict[str, float]] = {}
        for record in read_log(self.workdir / "metrics.jsonl"):
            records.setdefault(record["step"], {}).update(record)
        return [records[step] for step in sorted(records)]

    def curve(self, metric: str) -> tuple[list[int], list[float]]:
        """Returns the steps and values of a metric: `pyplot.plot(*run.curve("train/loss"))`.

        Raises:
            UserError: The metric was never logged; names those that were.
        """
        history = self.history()
        logged = [record for record in history if record.get(metric) is not None]
        if not logged:
            names = sorted({name for record in history for name in record} - {"step"})
            raise UserError(f"{self.workdir} has no metric {metric!r}; there are {', '.join(names) or 'none'}")
        return [int(record["step"]) for record in logged], [record[metric] for record in logged]

    def load(self) -> PretrainedModel:
        """Returns the model: that of `export`, otherwise that of the checkpoint of `step`."""
        if self.export is not None:
            return load_single(self.export)
        model, tokenizer, _ = load_model(self.workdir, step=self.step)
        files = tokenizer.huggingface_files(model.config.max_position_embeddings)
        return dataclasses.replace(model, tokenizer_files=files)

    def show_report(self, height: int = 700) -> HtmlView:
        """Returns the report, which a notebook shows in a frame.

        Raises:
            UserError: The run has no report.
        """
        if self.report is None:
            raise UserError(f"{self.workdir} has no report: report.enabled was off")
        return HtmlView(self.report.read_text(encoding="utf-8"), height)

    def __fspath__(self) -> str:
        return os.fspath(self.workdir if self.export is None else self.export)

    def __repr__(self) -> str:
        shown = [f"{name}={value:.4f}" for name, value in list(self.metrics.items())[:_SHOWN]]
        more = [f"{len(self.metrics) - _SHOWN} more"] if len(self.metrics) > _SHOWN else []
        return f"Run({display_path(self.workdir)!r}, step {self.step}; {', '.join(shown + more) or 'not evaluated'})"

    def _repr_html_(self) -> str:
        files = {"work directory": self.workdir, "export": self.export, "report": self.report}
        rows = [("step", f"{self.step:,}")]
        rows += [(name, f"<code>{html.escape(str(path))}</code>") for name, path in files.items() if path is not None]
        rows += [(html.escape(name), f"{value:.4f}") for name, value in self.metrics.items()]
        cells = "".join(f"<tr><th style='text-align:left'>{name}</th><td>{value}</td></tr>" for name, value in rows)
        return f"<table>{cells}</table>"


def open_run(workdir: str | os.PathLike[str]) -> Run:
    """Opens a run that was trained before, by `bertjax pretrain` or `finetune` or in Python.

    Raises:
        UserError: The directory is not a work directory.
    """
    folder = local_copy(workdir)
    cfg = read_config(folder)
    log = read_log(folder / "metrics.jsonl")
    with contextlib.closing(build.open_checkpoints(cfg, folder, read_only=True)) as checkpoints:
        step = checkpoints.latest_step() or 0
        if objective_class(cfg.objective.name).is_finetuning:
            step = exported_step(cfg, checkpoints, step)
    metrics: dict[str, float] = {}
    for record in log:
        evaluated = {name: value for name, value in record.items() if name.startswith("eval/")}
        if evaluated and record["step"] <= step:
            metrics = evaluated
    export, report = folder / "export", folder / "report.html"
    return Run(folder, step, metrics, export if export.is_dir() else None, report if report.is_file() else None)
