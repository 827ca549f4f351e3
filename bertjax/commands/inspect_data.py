"""Show the batches of a config as the model sees them."""

from __future__ import annotations

import argparse
from pathlib import Path

REQUIRES_CONFIG = True
EXAMPLE = "bertjax inspect-data --config quickstart --batches 2"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the flags of the command."""
    parser.add_argument("--batches", type=int, default=1, help="number of batches (default 1)")
    parser.add_argument("--first", type=int, default=0, help="number of the first batch (default 0)")
    parser.add_argument("--sequences", type=int, default=4, help="sequences printed per batch (default 4)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="an .npz file for the arrays")


def run(options: argparse.Namespace) -> None:
    """Prints sequences of the batches and writes the arrays."""
    from bertjax.experiment.inspect_data import inspect_data

    inspect_data(options.config, options.batches, options.sequences, options.out, options.first)
