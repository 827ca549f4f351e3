"""Runs with their reports, as the commands and the Python API start them: checked before jax is imported."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ml_collections import ConfigDict

from bertjax.config.distributed import DistributedConfig
from bertjax.config.fields import read_group
from bertjax.experiment.hub_names import recall_commits
from bertjax.experiment.workdir import changed_keys, check_start, hold_workdir
from bertjax.io.staging import display_path
from bertjax.report.render import FILE as REPORT

if TYPE_CHECKING:
    from bertjax.experiment.sweep import SweepResult
    from bertjax.runtime.process_group import ProcessGroup


def pretrain(cfg: ConfigDict, workdir: Path) -> None:
    """Trains and exports a model and writes its report; the same call resumes a run.

    Args:
        cfg: checked config.
        workdir: work directory of the run.

    Raises:
        UserError: config or data are unsuitable, or `workdir` holds another run.
        StoppedBySignal: after SIGTERM or SIGINT, when the state is saved.
    """
    recall_commits(cfg, workdir)
    changed_keys(workdir, cfg)  # refuses the directory of another run before any text is read
    check_start(cfg, workdir)
    from bertjax.experiment.pretrain import pretrain
    from bertjax.report.training_callbacks import ReportWriter
    from bertjax.runtime.process_group import join_processes

    with join_processes(read_group(cfg, DistributedConfig)) as processes:
        pretrain(cfg, workdir, processes, ReportWriter())
        _print_next_steps(cfg, workdir, processes)


def finetune(cfg: ConfigDict, workdir: Path) -> None:
    """Trains, scores and exports a task and writes its report; arguments and errors are those of `pretrain`."""
    check_start(cfg, workdir)
    from bertjax.experiment.finetune import finetune
    from bertjax.report.training_callbacks import ReportWriter
    from bertjax.runtime.process_group import join_processes

    with join_processes(read_group(cfg, DistributedConfig)) as processes:
        finetune(cfg, workdir, processes, ReportWriter())
        _print_next_steps(cfg, workdir, processes)


def _print_next_steps(cfg: ConfigDict, workdir: Path, processes: ProcessGroup) -> None:
    """Prints where the report of a finished run is, and how to export a run that was not."""
    if processes.index != 0:
        return
    if not cfg.export.at_end:
        print(f"no export (export.at_end=false); write a folder for transformers with\n    bertjax export --workdir "
              f"{shlex.quote(display_path(workdir))} --out FOLDER")  # fmt: skip
    if cfg.report.enabled and (workdir / REPORT).exists():
        print(f"report: {display_path(workdir / REPORT)}")


def decay(run: str, steps: Sequence[int], length: int, workdir: Path, overrides: Sequence[str] = ()) -> None:
    """Decays the learning rate from several checkpoints of a run, and compares held-out losses.

    The same call resumes unfinished decays. Args: as of `experiment.decay.decay_runs`.
    """
    from bertjax.experiment.decay import decay_runs, summarize_decays

    runs = decay_runs(run, steps, length, workdir, overrides)
    with hold_workdir(workdir):
        for step, (folder, cfg) in runs.items():
            print(f"--- from step {step}")
            pretrain(cfg, folder)
    print(f"held-out losses of decays of {length:,} steps")
    print("\n".join(summarize_decays(run, runs)))


def sweep(cfg: ConfigDict, workdir: Path, seeds: Sequence[int], grid: Sequence[str]) -> list[SweepResult]:
    """Finetunes every point of a grid with every seed, and prints their means. Args: as of `experiment.sweep.sweep`."""
    from bertjax.experiment.sweep import summarize, sweep
    from bertjax.report.training_callbacks import ReportWriter, write_seed_scores

    results = []
    for result in sweep(cfg, workdir, seeds, grid, ReportWriter):
        results.append(result)
        if cfg.report.enabled and len(result.metrics) > 1:
            write_seed_scores(result.workdirs, result.metrics)
    print("\n".join(summarize(results)))
    return results
