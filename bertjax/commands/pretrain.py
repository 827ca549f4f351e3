"""Train a model on raw text; the same command resumes a run."""

from __future__ import annotations

import argparse
from pathlib import Path

from bertjax.config.distributed import DistributedConfig
from bertjax.config.fields import read_group
from bertjax.errors import UserError

REQUIRES_CONFIG = True
SUPPORTS_DRY_RUN = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the flags of the command."""
    parser.add_argument("--workdir", type=Path, help="directory for checkpoints, metrics and the export")


def run(options: argparse.Namespace) -> None:
    """Trains, or estimates the cost of the run with `--config.dry_run=true`."""
    cfg, workdir = options.config, options.workdir
    if cfg.dry_run:
        from bertjax.experiment.dry_run import dry_run

        dry_run(cfg)
        return
    if workdir is None:
        raise UserError("--workdir is missing: the directory for checkpoints, metrics and the export")
    from bertjax.experiment.hub_names import recall_commits
    from bertjax.experiment.workdir import changed_keys, check_start

    recall_commits(cfg, workdir)
    changed_keys(workdir, cfg)  # refuses the directory of another run before jax is imported and text is read
    check_start(cfg, workdir)
    from bertjax.experiment.pretrain import pretrain
    from bertjax.report.training_callbacks import ReportWriter
    from bertjax.runtime.process_group import join_processes

    with join_processes(read_group(cfg, DistributedConfig)) as processes:
        pretrain(cfg, workdir, processes, ReportWriter())
