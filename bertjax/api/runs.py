"""Runs: pretraining, finetuning, their results, evaluation and export."""

from __future__ import annotations

import contextlib
import dataclasses
import html
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from ml_collections import ConfigDict

from bertjax.api.config import Config
from bertjax.api.errors import python_errors
from bertjax.config.objectives import objective_class
from bertjax.config.parse import checked_config
from bertjax.errors import UserError
from bertjax.experiment import build
from bertjax.experiment.export import Upload
from bertjax.experiment.export import export as export_run
from bertjax.experiment.finetune import exported_step
from bertjax.experiment.load import load_model
from bertjax.experiment.sweep import SweepResult
from bertjax.experiment.workdir import read_config
from bertjax.hf.pretrained import PretrainedModel, load_single
from bertjax.hf.sentence_transformers import Pooling
from bertjax.io.jsonl import read_log
from bertjax.io.staging import display_path, local_copy, output_path
from bertjax.io.units import parse_size
from bertjax.metrics import Metrics
from bertjax.report import runs

Folder: TypeAlias = str | os.PathLike[str]
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
        with python_errors():
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


@python_errors()
def open_run(workdir: Folder) -> Run:
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


@python_errors()
def pretrain(config: Config, workdir: Folder, *, overrides: Mapping[str, Any] | None = None) -> Run:
    """Trains a model on raw text, or resumes the run in `workdir`; what `bertjax pretrain` does.

    Args:
        config: Name, path or value of a config, as for `load_config`.
        workdir: Directory for checkpoints, metrics, report and export.
        overrides: Values by dotted key.

    Returns:
        The run.

    Raises:
        UserError: Config or data are unsuitable, or `workdir` holds another run.
        KeyboardInterrupt: After Ctrl-C, when the state is saved; the same call resumes.
    """
    runs.pretrain(_config(config, overrides), local_copy(workdir))
    return open_run(workdir)


@python_errors()
def finetune(config: Config, workdir: Folder, *, overrides: Mapping[str, Any] | None = None) -> Run:
    """Trains a task on the weights of `init_from`, or resumes it; what `bertjax finetune` does.

    Args:
        config: Name, path or value of a config of a task, such as `finetune/classification`.
        workdir: Directory for checkpoints, metrics, report and export.
        overrides: Values by dotted key, such as `{"init_from": run, "task.train": "tsv:train.tsv"}`.

    Returns:
        The run.

    Raises:
        UserError: Config, model or data are unsuitable, or `workdir` holds another run.
        KeyboardInterrupt: After Ctrl-C, when the state is saved; the same call resumes.
    """
    runs.finetune(_config(config, overrides), local_copy(workdir))
    return open_run(workdir)


@python_errors()
def sweep(
    config: Config,
    workdir: Folder,
    *,
    seeds: Sequence[int] = (),
    grid: Mapping[str, Sequence[Any]] | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> list[SweepResult]:
    """Finetunes with every seed and all combinations of values; what `bertjax finetune --seeds --grid` does.

    Args:
        config: Name, path or value of a config of a task.
        workdir: Directory of all runs, which are in `workdir`/POINT/seed-N.
        seeds: Seeds; that of the config if there are none.
        grid: Values to try by dotted key.
        overrides: Values by dotted key.

    Returns:
        One result per combination, with `metrics` and `workdirs` by seed, `mean(metric)` and `stdev(metric)`.

    Raises:
        UserError: Nothing is held out, or a combination is not a valid config.
    """
    axes = [f"{key}={','.join(map(str, values))}" for key, values in (grid or {}).items()]
    return runs.sweep(_config(config, overrides), local_copy(workdir), seeds, axes)


@python_errors()
def export(
    run: Folder | Run,
    folder: Folder,
    *,
    step: int | None = None,
    average_last: int = 1,
    network: str | None = None,
    dtype: str = "float32",
    max_shard_size: str = "5GB",
    overwrite: bool = False,
    pooling: str | None = None,
    max_length: int | None = None,
    push_to_hub: str | None = None,
    public: bool = False,
) -> Path:
    """Writes a checkpoint as a folder that `transformers` loads, and verifies it; what `bertjax export` does.

    Args:
        run: A run or its work directory.
        folder: Folder to write.
        step: Step of the checkpoint; the newest by default.
        average_last: Averages the weights of so many checkpoints.
        network: Network to export where there are several, such as `generator`; the main one by default.
        dtype: Type of the weights: float32, bfloat16 or float16.
        max_shard_size: Size of a file of weights, such as 500MB.
        overwrite: Replaces an earlier export.
        pooling: `mean` or `cls` writes a folder for sentence-transformers.
        max_length: Tokens per text there; the model's maximum by default.
        push_to_hub: Repository OWNER/NAME to upload to.
        public: Makes a new repository public.

    Returns:
        The folder.

    Raises:
        UserError: Checkpoint or network are missing, or folder or repository exist already.
    """
    if max_length is not None and pooling is None:
        raise UserError("max_length needs pooling: it belongs to sentence-transformers")
    with output_path(Path(folder).expanduser(), overwrite) as local:
        export_run(
            _workdir(run),
            local,
            step=step,
            average_last=average_last,
            network=network,
            pooling=None if pooling is None else Pooling(pooling, max_length=max_length),
            overwrite=overwrite,
            upload=None if push_to_hub is None else Upload(push_to_hub, public),
            dtype=dtype,
            max_shard_bytes=parse_size("max_shard_size", max_shard_size),
        )
    return local_copy(folder)


def _config(config: Config, overrides: Mapping[str, Any] | None) -> ConfigDict:
    cfg = checked_config(config, overrides)
    if cfg.dry_run:
        raise UserError("dry_run=true trains nothing: estimate the cost with `bertjax pretrain --config.dry_run=true`")
    return cfg


def _workdir(run: Folder | Run) -> Path:
    return run.workdir if isinstance(run, Run) else local_copy(run)
