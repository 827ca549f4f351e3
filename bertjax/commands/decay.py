"""Decay the learning rate from several checkpoints of a run, each in a run of its own; the same call resumes them."""

from __future__ import annotations

import argparse
from pathlib import Path

from bertjax.report.runs import decay

TAKES_OVERRIDES = True
EXAMPLE = "bertjax decay --run runs/stable --at 40000 80000 --steps 5000 --workdir runs/decays"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the flags of the command."""
    parser.add_argument("--run", required=True, help="work directory of the run that the decays start from")
    parser.add_argument("--at", type=int, nargs="+", required=True, metavar="STEP", help="steps of its checkpoints")
    parser.add_argument("--steps", type=int, required=True, help="steps of a decay")
    parser.add_argument("--workdir", type=Path, required=True, help="directory of the decays, each in step-STEP")


def run(options: argparse.Namespace) -> None:
    """Trains the decays, one after the other, and prints their held-out losses."""
    decay(options.run, options.at, options.steps, options.workdir, options.overrides)
