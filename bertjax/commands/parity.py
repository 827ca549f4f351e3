"""Compare every model family with transformers, in both directions."""

from __future__ import annotations

import argparse
from pathlib import Path

EXAMPLE = "bertjax parity"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the flags of the command."""
    parser.add_argument("--family", action="append", default=[], help="family to compare (repeatable; default: all)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="a Markdown file for the table")


def run(options: argparse.Namespace) -> int:
    """Prints the table; returns 1 if a quantity differs."""
    from bertjax.parity.run import parity

    return 0 if parity(options.family, options.out) else 1
