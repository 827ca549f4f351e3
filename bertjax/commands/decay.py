"""Decays of the learning rate from several checkpoints of a run."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Annotated

from bertjax.commands.arguments import Flag, Folder, NewWorkdir, Overrides
from bertjax.commands.pretrain import train
from bertjax.commands.signatures import command
from bertjax.experiment.decay import compare_decays, decay_runs
from bertjax.experiment.workdir import hold_workdir
from bertjax.io.output import Results
from bertjax.io.staging import local_copy


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
    runs = decay_runs(source, at, steps, folder, overrides or {})
    with hold_workdir(folder):
        for step, (step_folder, cfg) in runs.items():
            print(f"--- from step {step}")
            train(cfg, step_folder)
    print(f"held-out losses of decays of {steps:,} steps")
    return compare_decays(source, runs)
