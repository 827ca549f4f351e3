"""Runs over seeds and the points of a grid: their means, standard deviations, and the best point."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from bertjax.config.objectives import objective_class
from bertjax.config.overrides import set_values
from bertjax.errors import UserError, named
from bertjax.experiment import build
from bertjax.experiment.callbacks import Callback
from bertjax.experiment.config import parse
from bertjax.experiment.finetune import train_task
from bertjax.experiment.hub_names import recall_commits
from bertjax.experiment.pretrain import pretrain
from bertjax.experiment.run import open_run
from bertjax.experiment.task import Task, read_task, require_task
from bertjax.experiment.task_feed import task_batches
from bertjax.experiment.workdir import changed_keys, has_checkpoints, hold_workdir, read_config
from bertjax.io import atomic
from bertjax.io.staging import stored_folder
from bertjax.metrics import best_of, plus_minus, sample_stdev
from bertjax.tasks.batch_layout import choose_batch_sizes, choose_shapes


@dataclasses.dataclass(frozen=True)
class SweepPoint:
    """One combination of the values of a grid."""

    settings: tuple[tuple[str, str], ...]

    @property
    def name(self) -> str:
        """Name of its directory, such as learning_rate=1e-5,batch_size=16; keys are as short as they are unique."""
        keys = [key.rpartition(".")[2] for key, _ in self.settings]
        keys = keys if len(set(keys)) == len(keys) else [key for key, _ in self.settings]
        return ",".join(f"{key}={value}" for key, (_, value) in zip(keys, self.settings, strict=True)).replace("/", "_")

    def title(self, seed: int) -> str:
        """Line that is printed before the run of a seed."""
        return f"--- {self.name + ', ' if self.settings else ''}seed {seed}"


@dataclasses.dataclass(frozen=True)
class SweepResult:
    """Held-out metrics and work directories of a point by seed."""

    point: SweepPoint
    metrics: Mapping[int, Mapping[str, float]]
    workdirs: Mapping[int, Path]

    def values(self, name: str) -> list[float]:
        """Returns a metric of every seed."""
        return [metrics[name] for metrics in self.metrics.values()]

    def mean(self, name: str) -> float:
        """Returns the mean of a metric over the seeds."""
        return statistics.fmean(self.values(name))

    def stdev(self, name: str) -> float:
        """Returns the sample standard deviation of a metric over the seeds; nan for a single seed."""
        stdev = sample_stdev(self.values(name))
        return math.nan if stdev is None else stdev


def sweep(
    cfg: ConfigDict,
    workdir: Path,
    seeds: Sequence[int] = (),
    grid: Mapping[str, Sequence[Any]] = MappingProxyType({}),
    make_callback: Callable[[], Callback] = Callback,
) -> Iterator[SweepResult]:
    """Trains every point of a grid with every seed, one after the other; the same call resumes a stopped sweep.

    Runs are in `workdir`/POINT/seed-N; `workdir`/sweep.json has the metrics of all of them.

    Args:
        cfg: Config of pretraining or of a task.
        workdir: Directory of all runs.
        seeds: Seeds; that of the config if there are none.
        grid: Values by dotted key; the points are all combinations.
        make_callback: Called once per run.

    Yields:
        The result of every point, when all of its seeds are trained.

    Raises:
        UserError: Nothing is held out, a seed or key is given twice, or a point of the grid is not a valid config.
    """
    is_task = objective_class(cfg.objective.name).is_finetuning
    if is_task:
        require_task(cfg)
        if not cfg.task.eval:
            raise UserError("task.eval is empty: seeds and grids are compared by held-out scores")
    train_seeds = _finetune_seeds if is_task else _pretrain_seeds
    seeds = list(seeds) or [cfg.seed]
    if len(set(seeds)) < len(seeds):
        raise UserError(f"{named('seeds')} names a seed twice: {', '.join(map(str, seeds))}")
    configs = {point: _with_settings(cfg, point.settings) for point in grid_points(grid)}
    for point_cfg in configs.values():
        parse(point_cfg)
    build.check_devices(cfg)
    if stored_folder(workdir) is not None:
        raise UserError(
            f"{named('seeds')} and {named('grid')} need a directory on a disk: they compare many runs; copy it "
            "afterwards"
        )
    results: list[SweepResult] = []
    with hold_workdir(workdir):
        for point, point_cfg in configs.items():
            folder = workdir / point.name if point.settings else workdir
            workdirs = {seed: folder / f"seed-{seed}" for seed in seeds}
            results.append(SweepResult(point, train_seeds(point_cfg, point, workdirs, make_callback), workdirs))
            atomic.write_json(workdir / "sweep.json", [_to_json(result) for result in results])
            yield results[-1]


def _with_settings(cfg: ConfigDict, settings: Sequence[tuple[str, Any]]) -> ConfigDict:
    return set_values(copy.deepcopy(cfg), dict(settings))


def grid_points(grid: Mapping[str, Sequence[Any]]) -> Iterator[SweepPoint]:
    """Yields all combinations of the values; one point without settings for an empty grid.

    Raises:
        UserError: a key has no values, or is the seed.
    """
    axes = []
    for key, values in grid.items():
        if not key or not values or key == "seed":
            text = f"{key}={','.join(map(str, values))}"
            raise UserError(
                f"{named('grid')} {text!r} is not KEY=VALUE,VALUE,..., such as optimizer.learning_rate=1e-5,3e-5"
            )
        axes.append([(key, str(value)) for value in values])
    yield from (SweepPoint(settings) for settings in itertools.product(*axes))


def _pretrain_seeds(
    cfg: ConfigDict, point: SweepPoint, workdirs: Mapping[int, Path], make_callback: Callable[[], Callback]
) -> dict[int, dict[str, float]]:
    """Pretrains a point with every seed, but for finished runs; returns the metrics of the last evaluation."""
    metrics: dict[int, dict[str, float]] = {}
    for seed, workdir in workdirs.items():
        seed_cfg = _with_settings(cfg, [("seed", seed)])
        recall_commits(seed_cfg, workdir)
        print(point.title(seed))
        if not _is_finished(seed_cfg, workdir):
            pretrain(seed_cfg, workdir, callback=make_callback())
            jax.clear_caches()  # the programs of one run are not those of the next
        metrics[seed] = dict(open_run(workdir).metrics)
    return metrics


def _is_finished(cfg: ConfigDict, workdir: Path) -> bool:
    if changed_keys(workdir, cfg) or not has_checkpoints(workdir):
        return False
    run = open_run(workdir)
    return run.step >= cfg.train.num_steps and (run.export is not None or not cfg.export.at_end)


def _finetune_seeds(
    cfg: ConfigDict, point: SweepPoint, workdirs: Mapping[int, Path], make_callback: Callable[[], Callback]
) -> dict[int, dict[str, float]]:
    """Finetunes a point with every seed on data that are read once; returns the held-out metrics."""
    metrics: dict[int, dict[str, float]] = {}
    first_seed, first_workdir = next(iter(workdirs.items()))
    first = read_task(cfg, first_workdir)
    shapes = _batch_shapes(cfg, first, list(workdirs))
    for seed, workdir in workdirs.items():
        seed_cfg = _with_settings(cfg, [("seed", seed)])
        print(point.title(seed))
        # A task that was read for a resumed run has no initial weights.
        shared = seed == first_seed or first.source is not None or cfg.task.from_scratch or has_checkpoints(workdir)
        task = first if shared else read_task(seed_cfg, workdir)
        with hold_workdir(workdir):
            metrics[seed] = train_task(seed_cfg, task, workdir, callback=make_callback(), **shapes)
    return metrics


def _batch_shapes(cfg: ConfigDict, task: Task, seeds: Sequence[int]) -> dict[str, Any]:
    """Returns batch shapes that suffice for every seed, so that all seeds share their compiled steps."""
    batches = [task_batches(_with_settings(cfg, [("seed", seed)]), task) for seed in seeds]
    return {
        "sizes": choose_batch_sizes(
            np.concatenate([each.needed_sequences for each in batches]), batches[0].num_batch_shapes
        ),
        "lengths": choose_shapes(
            np.concatenate([each.needed_lengths for each in batches]), batches[0].num_batch_shapes
        ),
        "min_examples": max(each.max_examples for each in batches),
    }


def summarize(results: Sequence[SweepResult]) -> list[str]:
    """Returns a table of means and standard deviations, with the point of the best `checkpoint.best_metric` marked."""
    best_metric = read_config(next(iter(results[0].workdirs.values()))).checkpoint.best_metric or "eval/loss"
    seeds = list(results[0].metrics)
    best = best_of(best_metric, results, lambda result: result.mean(best_metric))
    lines = [f"means of {len(seeds)} seeds, +- sample standard deviation" if len(seeds) > 1 else "one seed"]
    for result in results:
        cells = []
        scores = [name for name in result.metrics[seeds[0]] if not name.endswith("loss")]
        for name in dict.fromkeys([best_metric, *scores]) if best_metric.endswith("loss") else scores:
            cells.append(f"{name.removeprefix('eval/')} {plus_minus(result.mean(name), result.values(name))}")
        mark = "* " if result is best and len(results) > 1 else "  "
        lines.append(f"{mark}{result.point.name or 'as configured'}: {', '.join(cells)}")
    return lines


def _to_json(result: SweepResult) -> dict[str, Any]:
    return {
        "settings": dict(result.point.settings),
        "seeds": {str(seed): dict(metrics) for seed, metrics in result.metrics.items()},
    }
