"""`bertjax parity`: the numbers of every family beside those of `transformers`, in one table."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import jax

from bertjax.errors import UserError
from bertjax.io import atomic
from bertjax.parity.cases import Case
from bertjax.parity.compare import DIRECTIONS, Measurement, compare, library_versions
from bertjax.parity.families import CASES
from bertjax.parity.report import render


def parity(families: Sequence[str], out: Path | None) -> bool:
    """Measures, prints the table, writes it to `out`; True when everything agrees."""
    cases = select_cases(families)
    device = jax.devices()[0]
    versions = {"jax": jax.__version__, **library_versions(), "on": device.device_kind}
    found: list[Measurement] = []
    for case in cases:
        found += _measured(case)
    text = render(found, cases, versions)
    print(text, end="")
    if out is not None:
        try:
            out.parent.mkdir(parents=True, exist_ok=True)
            atomic.write_text(out, text)
        except OSError as error:
            raise UserError(f"cannot write {out}: {error.strerror or error}") from error
    return all(each.agrees for each in found)


def select_cases(families: Sequence[str]) -> list[Case]:
    """The cases of the families that were named, of all where none was; raises `UserError` for an unknown name."""
    known = list(dict.fromkeys(case.family for case in CASES))
    for family in families:
        if family not in known:
            raise UserError(f"--family {family}: no such family; there are {', '.join(known)}")
    return [case for case in CASES if not families or case.family in families]


def _measured(case: Case) -> list[Measurement]:
    found: list[Measurement] = []
    for model_class in case.classes:
        for direction in DIRECTIONS:
            found += compare(case, model_class, direction)
    misses = [each for each in found if not each.agrees]
    verdict = "agrees" if not misses else f"DIFFERS in {len(misses)} of {len(found)} quantities"
    print(f"{case.family}: {case.name}: {verdict}", file=sys.stderr, flush=True)
    return found
