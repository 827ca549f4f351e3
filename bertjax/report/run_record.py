"""A work folder as the report reads it: config, figures and probes, whatever of them is there."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bertjax.errors import UserError
from bertjax.io.jsonl import read_log
from bertjax.report.probe_log import FILE, Record


class Series(NamedTuple):
    """A figure over the run: x float64 [n], ascending, and y float64 [n], NaN where it was no finite number."""

    x: np.ndarray
    y: np.ndarray

    @property
    def last(self) -> float | None:
        """The last finite value."""
        finite = self.y[np.isfinite(self.y)]
        return float(finite[-1]) if len(finite) else None


class RunRecord(NamedTuple):
    """What a work folder holds; `written` is when its figures were last written, in seconds since 1970."""

    name: str
    config: Mapping[str, Any]
    figures: Mapping[str, Series]
    probes: list[Record]
    jumps: list[Mapping[str, Any]]
    written: float | None

    @property
    def step(self) -> int:
        """The last update that figures tell of."""
        return int(max((series.x[-1] for series in self.figures.values() if len(series.x)), default=0))

    @property
    def num_steps(self) -> int | None:
        steps = self.setting("train.num_steps")
        return steps if isinstance(steps, int) else None

    def setting(self, key: str) -> Any:
        """A key of the config by its dotted name; None where it is not there."""
        value: Any = self.config
        for part in key.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        return value

    def of_kind(self, kind: str) -> list[Record]:
        return [record for record in self.probes if record.get("kind") == kind]

    def newest(self, kind: str) -> list[Record]:
        """The records of a kind of the last step that has any."""
        found = self.of_kind(kind)
        last = max((record["step"] for record in found), default=None)
        return [record for record in found if record["step"] == last]


def read_run(workdir: Path) -> RunRecord:
    """Reads a work folder, also of a run that goes on; raises `UserError` when it is none."""
    stored = workdir / "config.json"
    if not stored.is_file():
        raise UserError(f"{workdir} is no work folder: it has no config.json")
    config = _json(stored)
    if not isinstance(config, dict):
        raise UserError(f"{stored} holds no config; bring back the file of this run")
    metrics = workdir / "metrics.jsonl"
    written = metrics.stat().st_mtime if metrics.is_file() else None
    jumps = _json(workdir / "anomalies" / "batch_skips.json")
    return RunRecord(
        name=workdir.resolve().name,
        config=config,
        figures=columns(read_log(metrics)),
        probes=read_log(workdir / FILE),
        jumps=[each for each in jumps if isinstance(each, dict)] if isinstance(jumps, list) else [],
        written=written,
    )


def _json(path: Path) -> Any:
    """What a file holds; None where there is none, or it cannot be read."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None


def columns(records: Iterable[Record]) -> dict[str, Series]:
    """Lines of figures as one series a figure, by ascending step; of two values of a step the later one counts."""
    found: dict[str, dict[int, float]] = {}
    for record in records:
        step = record["step"]
        for name, value in record.items():
            if name != "step" and (value is None or type(value) in (int, float)):
                found.setdefault(name, {})[step] = np.nan if value is None else value
    return {name: _series(values) for name, values in found.items()}


def _series(values: Mapping[int, float]) -> Series:
    x = np.fromiter(values.keys(), np.float64, len(values))
    y = np.fromiter(values.values(), np.float64, len(values))
    y[~np.isfinite(y)] = np.nan
    if (np.diff(x) > 0).all():
        return Series(x, y)
    order = np.argsort(x, kind="stable")
    return Series(x[order], y[order])
