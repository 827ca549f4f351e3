"""Decays of the learning rate from several checkpoints of a run."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from ml_collections import ConfigDict

from bertjax.commands.arguments import Flag, Folder, NewWorkdir, Overrides
from bertjax.commands.pretrain import train
from bertjax.commands.signatures import command
from bertjax.config.data import TOKENIZER_MODELS
from bertjax.config.overrides import copy_config, differences, set_values
from bertjax.config.phases import phase_before, phases_of_first_steps
from bertjax.errors import UserError, comma_list, named, require_at_least
from bertjax.experiment.config import parse
from bertjax.experiment.workdir import (
    changed_keys,
    checkpoint_steps,
    has_checkpoints,
    hold_workdir,
    metrics_at,
    read_config,
)
from bertjax.io.output import Results, align
from bertjax.io.staging import local_copy, stored_folder


@command
def decay(
    run: Folder,
    at: Annotated[Sequence[int], Flag(type=int, nargs="+", metavar="STEP")],
    steps: int,
    workdir: NewWorkdir,
    overrides: Overrides = None,
) -> Results:
    """Decay the learning rate from several checkpoints of a run, each in a run of its own; the same call resumes them.

    Args:
        run: work directory of the run that the decays start from
        at: steps of its checkpoints
        steps: steps of a decay
        workdir: directory of the decays, each in step-STEP

    Returns:
        The held-out losses before and after every decay, by the name of its directory.

    Raises:
        UserError: a checkpoint is missing, or a config or a directory is unsuitable.
        KeyboardInterrupt: after Ctrl-C, when the state is saved; the same call resumes.

    Example:
        bertjax decay --run runs/stable --at 40000 80000 --steps 5000 --workdir runs/decays
    """
    source, folder = os.fspath(getattr(run, "workdir", run)), local_copy(workdir)
    runs = _decay_runs(source, at, steps, folder, overrides or {})
    with hold_workdir(folder):
        for step, (step_folder, cfg) in runs.items():
            print(f"--- from step {step}")
            train(cfg, step_folder)
    print(f"held-out losses of decays of {steps:,} steps")
    return _compare_decays(source, runs)


FIXED = ("resume_from", "train.num_steps", "train.phases", "schedule.name", "schedule.decay_steps")
"""Keys that follow from the run, the checkpoint and the length of the decay."""


def _decay_runs(
    run: str, at: Sequence[int], steps: int, workdir: Path, overrides: Mapping[str, Any]
) -> dict[int, tuple[Path, ConfigDict]]:
    """Returns {step: (work directory, config)}, a decay per checkpoint; raises if a config is invalid."""
    require_at_least(1, steps=steps)
    if stored_folder(workdir) is not None:
        raise UserError("the decays need a directory on a disk: they are compared; copy it afterwards")
    for key in overrides:
        if key in FIXED:
            raise UserError(f"{key} follows from {named('run')}, {named('at')} and {named('steps')}; remove it")
    folders = {step: workdir / f"step-{step}" for step in sorted(at)}
    _require_checkpoints(run, [step for step, folder in folders.items() if not has_checkpoints(folder)])
    parent = read_config(local_copy(run))
    runs = {step: (folder, _decay(run, parent, step, steps, overrides)) for step, folder in folders.items()}
    for folder, cfg in runs.values():
        parse(cfg)
        changed_keys(folder, cfg)
    return runs


def _require_checkpoints(run: str, steps: Sequence[int]) -> None:
    there = checkpoint_steps(local_copy(run))
    if missing := [step for step in steps if step not in there]:
        raise UserError(
            f"{named('at')}: {run} has no checkpoint of step {comma_list(missing)}; it has {comma_list(there)}"
        )


def _decay(run: str, parent: ConfigDict, step: int, length: int, overrides: Mapping[str, Any]) -> ConfigDict:
    """Returns the config of the phase that a checkpoint was trained in, with a decay; its past is that of the run."""
    cfg = copy_config(phase_before(parent, step).cfg)
    values = {
        "resume_from": f"{run}@{step}",
        "train.num_steps": step + length,
        "train.phases": (),
        "train.initial_batch_size": None,  # the phases have its sizes
        "train.batch_ramp_steps": None,
        "schedule.name": "wsd",
        "schedule.decay_steps": length,
    }
    if parent.data.tokenizer in TOKENIZER_MODELS:
        values["data.tokenizer"] = str(local_copy(run) / "tokenizer")
    set_values(set_values(cfg, values), overrides)
    cfg.train.phases = phases_of_first_steps(parent, step, cfg)
    return cfg


def _evaluates_as(one: ConfigDict, other: ConfigDict) -> bool:
    """Returns whether two configs make the same held-out batches of the same text."""
    changed = {key for key, *_ in differences(one, other) if key.startswith(("data.", "objective."))}
    return changed <= {"data.sources", "data.tokenizer"}


def _compare_decays(run: str, runs: Mapping[int, tuple[Path, ConfigDict]]) -> Results:
    """Returns the held-out losses before and after every decay, and a table of them.

    Those before are of the run, where it was evaluated at that step on the same text with the same masks.
    """
    parent = read_config(local_copy(run))
    rows: list[tuple[str, ...]] = [("from step", "to step", "loss before", "loss after", "work directory")]
    losses = {}
    for step, (workdir, cfg) in runs.items():
        before, after = metrics_at(local_copy(run), step), metrics_at(workdir, cfg.train.num_steps)
        is_same = before.keys() == after.keys() and _evaluates_as(phase_before(parent, step).cfg, cfg)
        values = [each.get("eval/loss") for each in (before if is_same else {}, after)]
        losses[workdir.name] = dict(zip(("before", "after"), values, strict=True))
        shown = ("-" if each is None else f"{each:.4f}" for each in values)
        rows.append((f"{step:,}", f"{cfg.train.num_steps:,}", *shown, str(workdir)))
    return Results(losses, align(rows, right=range(len(rows[0]))))
