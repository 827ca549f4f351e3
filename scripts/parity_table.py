"""Compares the outputs of every family with those of `transformers`, in both directions, in one table.

    python scripts/parity_table.py [--family bert] [--out docs/parity.md]

Exits with 1 if a quantity differs.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import jax
from parity.cases import Case
from parity.compare import DIRECTIONS, Measurement, compare, library_versions
from parity.families import CASES
from parity.report import render

from bertjax.errors import UserError
from bertjax.io import atomic


def parity(families: Sequence[str], out: Path | None) -> bool:
    """Measures, prints the table and writes it to `out`; returns True if everything agrees.

    Raises:
        UserError: a family is unknown, a library is not installed, or `out` cannot be written.
    """
    cases = select_cases(families)
    versions = {"jax": jax.__version__, **library_versions(), "on": jax.devices()[0].device_kind}
    measurements = [each for case in cases for each in _measure(case)]
    text = render(measurements, versions)
    print(text, end="")
    if out is not None:
        try:
            out.parent.mkdir(parents=True, exist_ok=True)
            atomic.write_text(out, text)
        except OSError as error:
            raise UserError(f"cannot write {out}: {error.strerror or error}") from error
    return all(each.agrees for each in measurements)


def select_cases(families: Sequence[str]) -> list[Case]:
    """Returns the cases of these families, of all without names; raises `UserError` for an unknown name."""
    known = list(dict.fromkeys(case.family for case in CASES))
    for family in families:
        if family not in known:
            raise UserError(f"--family {family}: no such family; there are {', '.join(known)}")
    return [case for case in CASES if not families or case.family in families]


def _measure(case: Case) -> list[Measurement]:
    pairs = [(model_class, direction) for model_class in case.classes for direction in DIRECTIONS]
    measurements = [each for pair in pairs for each in compare(case, *pair)]
    misses = sum(not each.agrees for each in measurements)
    verdict = f"DIFFERS in {misses} of {len(measurements)} quantities" if misses else "agrees"
    print(f"{case.family}: {case.name}: {verdict}", file=sys.stderr, flush=True)
    return measurements


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the table; returns 1 if a quantity differs, 2 for an error that the user can correct."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", action="append", default=[], help="family to compare (repeatable; default: all)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="a Markdown file for the table")
    options = parser.parse_args(arguments)
    try:
        return 0 if parity(options.family, options.out) else 1
    except UserError as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
