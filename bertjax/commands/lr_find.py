"""Train briefly with rising learning rates and suggest one."""

from __future__ import annotations

import argparse
from pathlib import Path

REQUIRES_CONFIG = True
EXAMPLE = "bertjax lr-find --config quickstart --workdir runs/lr-find"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the flags of the command."""
    parser.add_argument("--workdir", type=Path, required=True, help="new directory for the chart (report.html)")
    parser.add_argument("--min-lr", type=float, default=1e-7, help="first learning rate (default 1e-7)")
    parser.add_argument("--max-lr", type=float, default=1.0, help="last learning rate (default 1)")
    parser.add_argument("--steps", type=int, default=100, help="training steps (default 100)")
    parser.add_argument("--linear", action="store_true", help="space the learning rates evenly, not by equal factors")


def run(options: argparse.Namespace) -> None:
    """Prints losses and suggestions, and draws them in `WORKDIR/report.html`."""
    from bertjax.experiment.lr_find import LrRange, lr_find
    from bertjax.report.training_callbacks import write_lr_curve

    curve = lr_find(
        options.config, options.workdir, LrRange(options.min_lr, options.max_lr, options.steps, options.linear)
    )
    print(f"chart: {write_lr_curve(options.workdir, curve)}")
