"""Reads config, metrics and probes of a work directory, as far as they exist."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bertjax.errors import UserError
from bertjax.io.jsonl import read_log
from bertjax.report.probe_log import FILE, Record

ANALYSES_FOLDER = "analyses"
ANALYSES = ("explanations", "layers", "smaller")
"""Results of commands that a work directory may hold, a JSON file each; `report.analyses` shows them."""


class Series(NamedTuple):
    """A metric over steps: x float64 [n], ascending, and y float64 [n], NaN where it was not finite."""

    x: np.ndarray
    y: np.ndarray

    @property
    def last(self) -> float | None:
        """Last finite value, or None."""
        finite = self.y[np.isfinite(self.y)]
        return float(finite[-1]) if len(finite) else None


class RunRecord(NamedTuple):
    """Contents of a work directory; `written` is the modification time of its metrics in seconds since 1970.

    `analyses` holds the results of commands by their kind; see `analyses.SECTIONS`.
    """

    name: str
    config: Mapping[str, Any]
    metrics: Mapping[str, Series]
    probes: list[Record]
    jumps: list[Mapping[str, Any]]
    written: float | None
    analyses: Mapping[str, Mapping[str, Any]] = {}

    @property
    def step(self) -> int:
        """Last step that has metrics."""
        return int(max((series.x[-1] for series in self.metrics.values() if len(series.x)), default=0))

    @property
    def num_steps(self) -> int | None:
        """`train.num_steps` of the config."""
        steps = self.setting("train.num_steps")
        return steps if isinstance(steps, int) else None

    def setting(self, key: str) -> Any:
        """Returns the value of a dotted config key; None if it is absent."""
        value: Any = self.config
        for part in key.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        return value

    @property
    def facts(self) -> Record:
        """The newest `run` record; {} where the run wrote none."""
        return next(iter(self.of_kind("run")[-1:]), {})

    def of_kind(self, kind: str) -> list[Record]:
        """Returns the probes of a kind."""
        return [record for record in self.probes if record.get("kind") == kind]

    def newest(self, kind: str) -> list[Record]:
        """Returns the probes of a kind at the last step that has any."""
        records = self.of_kind(kind)
        last = max((record["step"] for record in records), default=None)
        return [record for record in records if record["step"] == last]


def read_run(workdir: Path) -> RunRecord:
    """Reads a work directory, also of a run in progress; raises `UserError` if it is not one."""
    stored = workdir / "config.json"
    if not stored.is_file():
        raise UserError(f"{workdir} is not a work directory: it has no config.json")
    config = _json(stored)
    if not isinstance(config, dict):
        raise UserError(f"{stored} does not hold a config; restore the file of this run")
    metrics = workdir / "metrics.jsonl"
    written = metrics.stat().st_mtime if metrics.is_file() else None
    jumps = _json(workdir / "anomalies" / "batch_skips.json")
    return RunRecord(
        name=workdir.resolve().name,
        config=config,
        metrics=columns(read_log(metrics)),
        probes=read_log(workdir / FILE),
        jumps=[each for each in jumps if isinstance(each, dict)] if isinstance(jumps, list) else [],
        written=written,
        analyses={kind: values for kind in ANALYSES if (values := read_analysis(workdir, kind))},
    )


def read_analysis(workdir: Path, kind: str) -> dict[str, Any]:
    """Returns the results of one kind in a work directory; {} if there are none."""
    values = _json(workdir / ANALYSES_FOLDER / f"{kind}.json")
    return values if isinstance(values, dict) else {}


def _json(path: Path) -> Any:
    """Returns the value of a JSON file; None if it is missing or unreadable."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None


def columns(records: Iterable[Record]) -> dict[str, Series]:
    """Returns one series per metric, by ascending step; the later of two values of a step counts."""
    values_by_name: dict[str, dict[int, float]] = {}
    for record in records:
        step = record["step"]
        for name, value in record.items():
            if name != "step" and (value is None or type(value) in (int, float)):
                values_by_name.setdefault(name, {})[step] = np.nan if value is None else value
    return {name: _series(values) for name, values in values_by_name.items()}


def _series(values: Mapping[int, float]) -> Series:
    x = np.fromiter(values.keys(), np.float64, len(values))
    y = np.fromiter(values.values(), np.float64, len(values))
    y[~np.isfinite(y)] = np.nan
    if (np.diff(x) > 0).all():
        return Series(x, y)
    order = np.argsort(x, kind="stable")
    return Series(x[order], y[order])
