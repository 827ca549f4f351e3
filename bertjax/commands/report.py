"""Rewrite the report.html of a run."""

from __future__ import annotations

import argparse
from pathlib import Path

EXAMPLE = "bertjax report runs/quickstart"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the flags of the command."""
    parser.add_argument("workdir", type=Path, metavar="WORKDIR", help="work directory of a run")
    parser.add_argument("--with-probes", action="store_true", help="probe the newest checkpoint first")


def run(options: argparse.Namespace) -> None:
    """Writes the page and prints its path."""
    from bertjax.report.workdirs import report

    report(options.workdir, options.with_probes)
