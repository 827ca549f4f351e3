"""Finetune pretrained weights on a labelled task, score and export them."""

from __future__ import annotations

import argparse
from pathlib import Path

from bertjax.errors import UserError
from bertjax.report.runs import finetune, sweep

REQUIRES_CONFIG = True
SUPPORTS_DRY_RUN = True
EXAMPLE = """bertjax finetune --config finetune/classification --workdir runs/reviews \\
    --config.init_from=runs/base --config.task.train=tsv:train.tsv --config.task.eval=tsv:dev.tsv"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the flags of the command."""
    parser.add_argument("--workdir", type=Path, required=True, help="directory for checkpoints, metrics and the export")
    parser.add_argument("--seeds", help="0,1,2: one run per seed in WORKDIR/seed-N, with mean and standard deviation")
    parser.add_argument(
        "--grid",
        action="append",
        default=[],
        metavar="KEY=VALUE,VALUE",
        help="runs for all combinations of these values (repeatable)",
    )


def run(options: argparse.Namespace) -> None:
    """Finetunes once, or once per seed and grid point, or estimates the cost with `--config.dry_run=true`.

    Raises:
        UserError: `--seeds` is not a list of whole numbers.
    """
    cfg, workdir = options.config, options.workdir
    if cfg.dry_run:
        from bertjax.experiment.dry_run import dry_run_task

        dry_run_task(cfg, workdir)
        return
    seeds = options.seeds.split(",") if options.seeds else []
    if not all(seed.strip().isdecimal() for seed in seeds):
        raise UserError(f"--seeds {options.seeds} is not a list of whole numbers such as 0,1,2")
    if seeds or options.grid:
        sweep(cfg, workdir, [int(seed) for seed in seeds], options.grid)
    else:
        finetune(cfg, workdir)
