"""Compare runs in a table and a page of charts."""

from __future__ import annotations

import argparse
from pathlib import Path

EXAMPLE = "bertjax compare runs/* --out compare.html"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the flags of the command."""
    parser.add_argument("runs", type=Path, nargs="+", metavar="WORKDIR", help="work directories of runs")
    parser.add_argument("--out", type=Path, metavar="FILE", help="an .html file with charts")


def run(options: argparse.Namespace) -> None:
    """Prints the table and writes the page."""
    from bertjax.report.workdirs import compare

    compare(options.runs, options.out)
