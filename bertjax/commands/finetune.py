"""Finetuning, once or over seeds and a grid; a directory that cannot be written is an error before jax is imported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from ml_collections import ConfigDict

from bertjax.commands.arguments import Config, Flag, NewWorkdir, Overrides
from bertjax.commands.pretrain import train_together, training_config
from bertjax.commands.signatures import command
from bertjax.config.parse import load_config
from bertjax.errors import UserError, named
from bertjax.experiment.workdir import check_start
from bertjax.io.staging import local_copy

if TYPE_CHECKING:
    from bertjax.experiment.run import Run
    from bertjax.experiment.sweep import SweepResult


@command
def finetune(config: Config, workdir: NewWorkdir, overrides: Overrides = None) -> Run:
    """Finetune pretrained weights on a labelled task, score and export them.

    Args:
        workdir: directory for checkpoints, metrics and the export

    Returns:
        The run.

    Raises:
        UserError: config, model or data are unsuitable, or `workdir` holds another run.
        KeyboardInterrupt: after Ctrl-C, when the state is saved; the same call resumes.

    Example:
        bertjax finetune --config finetune/classification --workdir runs/reviews \\
            --config.init_from=runs/base --config.task.train=tsv:train.tsv --config.task.eval=tsv:dev.tsv
    """
    cfg, folder = training_config(config, overrides), local_copy(workdir)
    _train(cfg, folder)
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
    """Finetune with every seed and all combinations of values; `bertjax finetune` with --seeds and --grid.

    Args:
        config: that of a task
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
    return _sweep(training_config(config, overrides), local_copy(workdir), seeds, grid or {})


def main(
    config: Config,
    workdir: NewWorkdir,
    *,
    seeds: str | None = None,
    grid: Annotated[Sequence[str] | None, Flag(metavar="KEY=VALUE,VALUE", repeated=True)] = None,
) -> None:
    """Finetunes, sweeps, or estimates what that costs with `dry_run=true`.

    Args:
        seeds: 0,1,2: one run per seed in WORKDIR/seed-N, with mean and standard deviation
        grid: runs for all combinations of these values (repeatable)
    """
    cfg, folder = load_config(config), local_copy(workdir)
    if cfg.dry_run:
        from bertjax.experiment.dry_run import dry_run_task

        dry_run_task(cfg, folder)
    elif seeds or grid:
        _sweep(cfg, folder, _read_seeds(seeds), _read_grid(grid or ()))
    else:
        _train(cfg, folder)


def _train(cfg: ConfigDict, workdir: Path) -> None:
    check_start(cfg, workdir)
    from bertjax.experiment.finetune import finetune

    train_together(finetune, cfg, workdir)


def _sweep(
    cfg: ConfigDict, workdir: Path, seeds: Sequence[int], grid: Mapping[str, Sequence[Any]]
) -> list[SweepResult]:
    """Writes reports with the scores of all seeds, and prints the means."""
    from bertjax.experiment.sweep import summarize, sweep
    from bertjax.report.training_callbacks import ReportWriter, write_seed_scores

    results = []
    for result in sweep(cfg, workdir, seeds, grid, ReportWriter):
        results.append(result)
        if cfg.report.enabled and len(result.metrics) > 1:
            write_seed_scores(result.workdirs, result.metrics)
    print("\n".join(summarize(results)))
    return results


def _read_seeds(text: str | None) -> list[int]:
    seeds = text.split(",") if text else []
    if not all(seed.strip().isdecimal() for seed in seeds):
        raise UserError(f"{named('seeds')} {text} is not a list of whole numbers such as 0,1,2")
    return list(map(int, seeds))


def _read_grid(texts: Sequence[str]) -> dict[str, list[str]]:
    axes = {key: list(filter(None, joined.split(","))) for key, _, joined in (text.partition("=") for text in texts)}
    if len(axes) < len(texts):
        raise UserError(f"{named('grid')} names a key twice: give all of its values at once")
    return axes
