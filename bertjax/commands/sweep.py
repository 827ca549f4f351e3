"""Several runs of a task: seeds, and the points of a small grid; their mean, their spread, and the best point."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from bertjax.commands.finetune import Task, read_task, require_task, task_batches, train_task
from bertjax.config import parse, parse_objective
from bertjax.config.overrides import apply_overrides
from bertjax.config.task import TASK_KINDS
from bertjax.errors import UserError
from bertjax.experiment import build
from bertjax.experiment.workdir import has_checkpoints
from bertjax.finetuning.batch_packing import choose_batch_sizes
from bertjax.io import atomic
from bertjax.metrics import is_better
from bertjax.report.training_callbacks import write_seed_scores
from bertjax.training.sharding import make_mesh


@dataclasses.dataclass(frozen=True)
class SweepPoint:
    """One choice of the values of a grid; `name` is that of its folder."""

    settings: tuple[tuple[str, str], ...]

    @property
    def name(self) -> str:
        """Such as learning_rate=1e-5,batch_size=16; short keys, as long as they differ."""
        keys = [key.rpartition(".")[2] for key, _ in self.settings]
        keys = keys if len(set(keys)) == len(keys) else [key for key, _ in self.settings]
        return ",".join(f"{key}={value}" for key, (_, value) in zip(keys, self.settings, strict=True)).replace("/", "_")


@dataclasses.dataclass(frozen=True)
class SweepResult:
    """Figures of a point, seed by seed."""

    point: SweepPoint
    figures: Mapping[int, Mapping[str, float]]

    def mean(self, name: str) -> float:
        return statistics.fmean(found[name] for found in self.figures.values())

    def spread(self, name: str) -> float:
        """The standard deviation of the sample; nan for a single seed."""
        values = [found[name] for found in self.figures.values()]
        return statistics.stdev(values) if len(values) > 1 else math.nan


def sweep(cfg: ConfigDict, workdir: Path, seeds: Sequence[int], grid: Sequence[str]) -> list[SweepResult]:
    """Finetunes every point with every seed, one after the other; the same command goes on where it was stopped.

    Runs lie in WORKDIR/POINT/seed-N. Prints a table, writes sweep.json. Raises `UserError` for a grid that cannot be.
    """
    require_task(cfg)
    if not cfg.task.eval:
        raise UserError("task.eval is empty: seeds and grids are compared by held-out scores")
    chosen = list(seeds) or [cfg.seed]
    if len(set(chosen)) < len(chosen):
        raise UserError(f"--seeds names a seed twice: {', '.join(map(str, chosen))}")
    points = list(grid_points(grid))
    configs = {point: _with(cfg, point.settings) for point in points}
    for own in configs.values():
        parse.check(own)
    build.check_devices(cfg)
    found: list[SweepResult] = []
    for point, own in configs.items():
        found.append(_of_point(own, workdir / point.name if point.settings else workdir, point, chosen))
        atomic.write_json(workdir / "sweep.json", [_told(each) for each in found])
    for line in table(found, f"eval/{TASK_KINDS[cfg.task.kind].main_metric}"):
        print(line)
    return found


def _with(cfg: ConfigDict, settings: Sequence[tuple[str, Any]]) -> ConfigDict:
    return apply_overrides(copy.deepcopy(cfg), [f"--config.{key}={value}" for key, value in settings])


def grid_points(grid: Sequence[str]) -> Iterator[SweepPoint]:
    """The points of `KEY=VALUE,VALUE,...` texts; one empty point without any."""
    axes = []
    for text in grid:
        key, _, values = text.partition("=")
        listed = [value for value in values.split(",") if value]
        if not key or not listed or key == "seed":
            raise UserError(f"--grid {text!r} is not KEY=VALUE,VALUE,..., such as optimizer.learning_rate=1e-5,3e-5")
        axes.append([(key, value) for value in listed])
    if len({axis[0][0] for axis in axes}) < len(axes):
        raise UserError("--grid names a key twice: give all of its values at once")
    yield from (SweepPoint(tuple(each)) for each in itertools.product(*axes))


def _of_point(cfg: ConfigDict, folder: Path, point: SweepPoint, seeds: Sequence[int]) -> SweepResult:
    figures: dict[int, dict[str, float]] = {}
    first = read_task(cfg, folder / f"seed-{seeds[0]}")
    alike = _alike(cfg, first, seeds)
    for seed in seeds:
        own = _with(cfg, [("seed", seed)])
        print(f"--- {point.name + ', ' if point.settings else ''}seed {seed}")
        where = folder / f"seed-{seed}"
        shared = seed == seeds[0] or first.given is not None or has_checkpoints(where)
        task = first if shared else read_task(own, where)  # the first has no weights to begin with, if it was taken up
        figures[seed] = train_task(own, task, where, **alike)
    if cfg.report.enabled and len(seeds) > 1:
        write_seed_scores({seed: folder / f"seed-{seed}" for seed in seeds}, figures)
    return SweepResult(point, figures)


def _alike(cfg: ConfigDict, task: Task, seeds: Sequence[int]) -> dict[str, Any]:
    """Rows, and examples of a row, that suffice for the batches of every seed: they share their compiled steps."""
    mesh = make_mesh(parse_objective.mesh_config(cfg))
    batches = [task_batches(_with(cfg, [("seed", seed)]), task, mesh) for seed in seeds]
    return {
        "sizes": choose_batch_sizes(
            np.concatenate([each.needed_sequences for each in batches]), batches[0].num_batch_shapes
        ),
        "least_examples": max(each.max_examples for each in batches),
    }


def table(found: Sequence[SweepResult], main: str) -> list[str]:
    """Mean and spread of every point, the best by `main` marked."""
    names = [name for name in found[0].figures[next(iter(found[0].figures))] if not name.endswith("loss")]
    best = found[0]
    for each in found[1:]:
        best = each if is_better(main, each.mean(main), best.mean(main)) else best
    seeds = len(found[0].figures)
    lines = [f"means of {seeds} seeds, +- the standard deviation of the sample" if seeds > 1 else "one seed"]
    for each in found:
        cells = [f"{name.removeprefix('eval/')} {each.mean(name):.4f}" for name in names]
        cells = [
            cell + ("" if math.isnan(each.spread(name)) else f" +- {each.spread(name):.4f}")
            for cell, name in zip(cells, names, strict=True)
        ]
        mark = "* " if each is best and len(found) > 1 else "  "
        lines.append(f"{mark}{each.point.name or 'as configured'}: {', '.join(cells)}")
    return lines


def _told(found: SweepResult) -> dict[str, Any]:
    return {
        "settings": dict(found.point.settings),
        "seeds": {str(seed): dict(figures) for seed, figures in found.figures.items()},
    }
