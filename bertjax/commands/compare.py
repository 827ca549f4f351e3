"""Compare runs in one table."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the flags of the command."""
    parser.add_argument("runs", type=Path, nargs="+", metavar="WORKDIR", help="work directories of runs")
    parser.add_argument("--out", type=Path, metavar="FILE", help="an .html file with charts")


def run(options: argparse.Namespace) -> None:
    """Prints the table and writes the page."""
    from bertjax.report.workdirs import compare

    compare(options.runs, options.out)
