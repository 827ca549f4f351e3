"""Train a model on raw text; the same command resumes a run."""

from __future__ import annotations

import argparse
from pathlib import Path

from bertjax.errors import UserError
from bertjax.report.runs import pretrain

REQUIRES_CONFIG = True
SUPPORTS_DRY_RUN = True
EXAMPLE = "bertjax pretrain --config bert:base --workdir runs/base --config.data.sources='text:corpus/*.txt.gz'"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the flags of the command."""
    parser.add_argument("--workdir", type=Path, help="directory for checkpoints, metrics and the export")


def run(options: argparse.Namespace) -> None:
    """Trains, or estimates the cost of the run with `--config.dry_run=true`.

    Raises:
        UserError: there is no work directory.
    """
    cfg, workdir = options.config, options.workdir
    if cfg.dry_run:
        from bertjax.experiment.dry_run import dry_run

        dry_run(cfg)
        return
    if workdir is None:
        raise UserError("--workdir is missing: the directory for checkpoints, metrics and the export")
    pretrain(cfg, workdir)
