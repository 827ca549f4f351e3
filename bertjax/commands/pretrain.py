"""Pretraining, and runs over seeds and a grid: a wrong config or work directory is an error before jax is imported."""

from __future__ import annotations

import functools
import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from ml_collections import ConfigDict

from bertjax.commands.arguments import Config, Flag, Grid, Minutes, NewWorkdir, Overrides, Seeds
from bertjax.commands.signatures import command
from bertjax.config.distributed import DistributedConfig
from bertjax.config.fields import Reader
from bertjax.config.objectives import objective_class
from bertjax.errors import UserError, named
from bertjax.experiment.config import load_config
from bertjax.experiment.hub_names import recall_commits
from bertjax.experiment.workdir import changed_keys, check_start, has_checkpoints
from bertjax.io.staging import display_path, local_copy
from bertjax.io.stderr import note
from bertjax.report.render import FILE as REPORT
from bertjax.runtime.cluster import find_process_info
from bertjax.runtime.process_group import join_processes

if TYPE_CHECKING:
    from bertjax.experiment.run import Run
    from bertjax.experiment.sweep import SweepResult


@command
def pretrain(config: Config, workdir: NewWorkdir, overrides: Overrides = None, *, minutes: Minutes = None) -> Run:
    """Train a model on raw text; the same command resumes a run.

    Args:
        workdir: directory for checkpoints, metrics and the export
        minutes: train so long instead of train.num_steps; with the config bertjax, its size is chosen as well, as by
            `bertjax plan`

    Returns:
        The run.

    Raises:
        UserError: config or data are unsuitable, or `workdir` holds another run.
        KeyboardInterrupt: after Ctrl-C, when the state is saved; the same call resumes.

    Example:
        bertjax pretrain --config bert:base --workdir runs/base --config.data.sources='text:corpus/*.txt.gz'
    """
    folder = local_copy(workdir)
    if minutes is None:
        train(training_config(config, overrides), folder)
    else:
        train_minutes(config, overrides or {}, folder, minutes)
    from bertjax.experiment.run import open_run

    return open_run(folder)


@command
def sweep(
    config: Config,
    workdir: NewWorkdir,
    overrides: Overrides = None,
    *,
    seeds: Sequence[int] = (),
    grid: Mapping[str, Sequence[Any]] | None = None,
) -> list[SweepResult]:
    """Train with every seed and all combinations of values: `bertjax pretrain` or `finetune` with --seeds and --grid.

    Args:
        config: that of pretraining or of a task
        workdir: directory of all runs, which are in `workdir`/POINT/seed-N
        overrides: values by dotted key
        seeds: that of the config if there are none
        grid: values to try by dotted key

    Returns:
        One result per combination, with `metrics` and `workdirs` by seed, `mean(metric)` and `stdev(metric)`.

    Raises:
        UserError: nothing is held out, or a combination is not a valid config.
        KeyboardInterrupt: after Ctrl-C, when the state is saved; the same call resumes.
    """
    return train_all(training_config(config, overrides), local_copy(workdir), seeds, grid or {})


def main(
    config: Config | None = None,
    workdir: NewWorkdir | None = None,
    overrides: Overrides = None,
    *,
    continue_from: Annotated[str | None, Flag("--continue", metavar="MODEL", reads_config=True)] = None,
    minutes: Minutes = None,
    seeds: Seeds = None,
    grid: Grid = None,
) -> None:
    """Trains, once or over seeds and a grid, or estimates what that costs with `dry_run=true`.

    Args:
        continue_from: a Hugging Face folder, a run or hub:NAME whose architecture, tokenizer, weights and objective
            are taken; with a config its recipe and objective; needs --config.data.sources
    """
    overrides = overrides or {}
    if overrides.get("platform") == "cpu":  # jax reads this on import
        os.environ["JAX_PLATFORMS"] = "cpu"
    if continue_from is not None:
        config, overrides = _continued(continue_from, overrides, config), {}
    elif config is None:
        raise UserError(f"give a config with {named('config')}, or a model with {named('continue_from')}")
    cfg = load_config(config, overrides)
    if cfg.dry_run:
        from bertjax.experiment.dry_run import dry_run

        dry_run(cfg)
    elif workdir is None:
        raise UserError(f"{named('workdir')} is missing: the directory for checkpoints, metrics and the export")
    elif (seeds or grid) and minutes is not None:
        raise UserError(
            f"{named('minutes')} is for one run: set config.train.num_steps for {named('seeds')} and a grid"
        )
    elif seeds or grid:
        train_all(cfg, local_copy(workdir), read_seeds(seeds), read_grid(grid))
    elif minutes is not None:
        train_minutes(config, overrides, local_copy(workdir), minutes)
    else:
        train(cfg, local_copy(workdir))


def _continued(model: str, overrides: Mapping[str, Any], config: Config | None) -> ConfigDict:
    from bertjax.experiment.continued import continue_config, describe_recipe

    if config is None and "data.sources" not in overrides:
        raise UserError(f"{named('config.data.sources')} is missing: the text to continue with")
    cfg = continue_config(model, overrides, config=config)
    print(describe_recipe(cfg))
    return cfg


def train(cfg: ConfigDict, workdir: Path) -> None:
    """Trains and exports a model and writes its report."""
    recall_commits(cfg, workdir)
    changed_keys(workdir, cfg)  # refuses the directory of another run before any text is read
    check_start(cfg, workdir)
    from bertjax.experiment.pretrain import pretrain

    train_together(pretrain, cfg, workdir)


def train_minutes(config: Config, overrides: Mapping[str, Any], workdir: Path, minutes: float) -> None:
    """Trains for so many minutes; the config bertjax gets the size that `bertjax plan` chooses.

    Args:
        config: config of pretraining.
        overrides: values by dotted key.
        workdir: work directory of the run.
        minutes: minutes of training.
    """
    cfg = training_config(config, overrides)
    check_start(cfg, workdir)
    if find_process_info(Reader(cfg)(DistributedConfig)) is not None:
        raise UserError(f"{named('minutes')} measures one process: set config.train.num_steps instead")
    from bertjax.commands.plan import describe_plan
    from bertjax.report.training_callbacks import ReportWriter
    from bertjax.tools import plan as planning
    from bertjax.tools import time_budget

    time_budget.require_one_length(cfg)
    budget = time_budget.TimeBudget.read(workdir)
    if budget is not None:
        time_budget.require_same_minutes(budget, minutes, workdir)
    elif has_checkpoints(workdir):
        raise UserError(f"{named('workdir')} {workdir} holds a run that was not begun with {named('minutes')}")
    elif config == planning.RECIPE:
        planned = planning.make_plan(minutes, overrides, note)
        print("\n".join(describe_plan(planned)))
        changes = {**planned.changes, **overrides}
        budget = time_budget.new_budget(minutes, planned.best.step, planned.cfg.train.num_steps, planned.name, changes)
    else:
        step, steps = planning.measure_length(cfg, minutes, note)
        budget = time_budget.new_budget(minutes, step, steps, None, {})
    if budget.config is not None:
        cfg = training_config(budget.config, {**budget.changes, **overrides})
    time_budget.require_one_phase(budget, cfg)
    cfg = budget.configure(cfg)
    recall_commits(cfg, workdir)
    changed_keys(workdir, cfg)
    train_together(functools.partial(time_budget.pretrain_for, budget, ReportWriter), cfg, workdir)


def train_together(function: Callable[..., object], cfg: ConfigDict, workdir: Path) -> None:
    """Trains in all processes of a run, writes its report, and prints where that is and how to export the run.

    Args:
        function: `pretrain` or `finetune` of `experiment`.
        cfg: Checked config.
        workdir: Work directory of the run.
    """
    from bertjax.report.training_callbacks import ReportWriter

    with join_processes(Reader(cfg)(DistributedConfig)) as processes:
        function(cfg, workdir, processes, ReportWriter())
        if processes.index != 0:
            return
        if not cfg.export.at_end:
            print("no export (export.at_end=false); write a folder for transformers with")
            print(f"    bertjax export --workdir {shlex.quote(display_path(workdir))} --out FOLDER")
        if cfg.report.enabled and (workdir / REPORT).exists():
            print(f"report: {display_path(workdir / REPORT)}")


def train_all(
    cfg: ConfigDict, workdir: Path, seeds: Sequence[int], grid: Mapping[str, Sequence[Any]]
) -> list[SweepResult]:
    """Trains over seeds and a grid; prints the means, and compares all runs on one page.

    Args:
        cfg: checked config of pretraining or of a task.
        workdir: directory of all runs.
        seeds: seeds; that of the config if there are none.
        grid: values to try by dotted key.
    """
    if find_process_info(Reader(cfg)(DistributedConfig)) is not None:
        raise UserError(f"{named('seeds')} and {named('grid')} train in one process: set distributed.cluster=none")
    from bertjax.experiment.sweep import summarize, sweep
    from bertjax.report.training_callbacks import ReportWriter, write_seed_scores

    results = []
    for result in sweep(cfg, workdir, seeds, grid, ReportWriter):
        results.append(result)
        if cfg.report.enabled and objective_class(cfg.objective.name).is_finetuning and len(result.metrics) > 1:
            write_seed_scores(result.workdirs, result.metrics)
    print("\n".join(summarize(results)))
    runs = [each for result in results for each in result.workdirs.values()]
    if cfg.report.enabled and len(runs) > 1:
        from bertjax.commands.compare import compare

        compare(runs, out=(page := workdir / "compare.html"))
        print(f"charts: {display_path(page)}")
    return results


def read_seeds(text: str | None) -> list[int]:
    """Reads 0,1,2."""
    seeds = text.split(",") if text else []
    if not all(seed.strip().isdecimal() for seed in seeds):
        raise UserError(f"{named('seeds')} {text} is not a list of whole numbers such as 0,1,2")
    return list(map(int, seeds))


def read_grid(texts: Sequence[str] | None) -> dict[str, list[str]]:
    """Reads KEY=VALUE,VALUE of every text."""
    texts = texts or ()
    axes = {key: list(filter(None, joined.split(","))) for key, _, joined in (text.partition("=") for text in texts)}
    if len(axes) < len(texts):
        raise UserError(f"{named('grid')} names a key twice: give all of its values at once")
    return axes


def training_config(config: str | os.PathLike[str] | ConfigDict, overrides: Mapping[str, Any] | None) -> ConfigDict:
    """Returns the checked config of a call that trains."""
    cfg = load_config(config, overrides)
    if cfg.dry_run:
        raise UserError("dry_run=true trains nothing: estimate the cost with `bertjax pretrain --config.dry_run=true`")
    return cfg
