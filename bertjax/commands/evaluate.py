"""Compute the held-out metrics of a run, or the scores of a finetuned one on other examples."""

from __future__ import annotations

import argparse
from pathlib import Path

EXAMPLE = "bertjax evaluate --workdir runs/quickstart"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the flags of the command."""
    parser.add_argument("--workdir", type=Path, required=True, help="work directory of a run")
    parser.add_argument("--step", type=int, help="step of the checkpoint (default: the newest)")
    parser.add_argument(
        "--in",
        dest="sources",
        nargs="+",
        default=(),
        metavar="KIND:PATH",
        help="labelled examples to score a finetuned run on, as in task.eval (default: those of the run)",
    )


def run(options: argparse.Namespace) -> None:
    """Prints the metrics."""
    from bertjax.experiment.workdir import read_config

    read_config(options.workdir)  # reports a wrong directory before jax is imported
    from bertjax.experiment.evaluate import evaluate

    evaluate(options.workdir, options.step, options.sources)
