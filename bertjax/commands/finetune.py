"""Finetuning, once or over seeds and a grid; a directory that cannot be written is an error before jax is imported."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ml_collections import ConfigDict

from bertjax.commands.arguments import Config, Grid, NewWorkdir, Overrides, Seeds
from bertjax.commands.pretrain import read_grid, read_seeds, train_all, train_together, training_config
from bertjax.commands.signatures import command
from bertjax.experiment.config import load_config
from bertjax.experiment.workdir import check_start
from bertjax.io.staging import local_copy

if TYPE_CHECKING:
    from bertjax.experiment.run import Run


@command
def finetune(config: Config, workdir: NewWorkdir, overrides: Overrides = None) -> Run:
    """Finetune pretrained weights on a labeled task, score and export them.

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


def main(
    config: Config,
    workdir: NewWorkdir,
    *,
    seeds: Seeds = None,
    grid: Grid = None,
) -> None:
    """Finetunes, sweeps, or estimates what that costs with `dry_run=true`.

    Args:
        workdir: directory for checkpoints, metrics and the export; with a grid or seeds that of all runs
    """
    cfg, folder = load_config(config), local_copy(workdir)
    if cfg.dry_run:
        from bertjax.experiment.dry_run import dry_run_task

        dry_run_task(cfg, folder)
    elif seeds or grid:
        train_all(cfg, folder, read_seeds(seeds), read_grid(grid))
    else:
        _train(cfg, folder)


def _train(cfg: ConfigDict, workdir: Path) -> None:
    check_start(cfg, workdir)
    from bertjax.experiment.finetune import finetune

    train_together(finetune, cfg, workdir)
