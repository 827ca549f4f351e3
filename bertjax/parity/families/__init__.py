"""The cases of every family: a file beside this one that holds `CASES` is all that a family needs."""

from __future__ import annotations

import importlib
import pkgutil

from bertjax.parity.cases import Case

CASES: tuple[Case, ...] = tuple(
    case
    for found in sorted(pkgutil.iter_modules(__path__), key=lambda found: found.name)
    for case in importlib.import_module(f"{__name__}.{found.name}").CASES
)
