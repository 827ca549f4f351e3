"""Collects the cases of every family: each module of this package defines `CASES`."""

from __future__ import annotations

import importlib
import pkgutil

from parity.cases import Case

CASES: tuple[Case, ...] = tuple(
    case
    for module in sorted(pkgutil.iter_modules(__path__), key=lambda module: module.name)
    for case in importlib.import_module(f"{__name__}.{module.name}").CASES
)
