"""Checks and facts of a work directory that `bertjax report` and `compare` begin with."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from bertjax.errors import UserError
from bertjax.experiment.load import stored_experiment
from bertjax.experiment.workdir import has_checkpoints, read_config, read_settings
from bertjax.report.training_callbacks import run_facts


def verify(workdir: Path) -> None:
    """Raises `UserError` if config or tokenizer are not those that the run was trained with."""
    try:
        read_config(workdir)
    except UserError:
        return  # not a run, as `read_run` reports, or one of another version, whose metrics can still be drawn
    if has_checkpoints(workdir):
        read_settings(workdir)


def stored_facts(workdir: Path) -> dict[str, Any] | None:
    """Returns parameters and FLOPs of a run without a record of them; None if its work directory is incomplete."""
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    try:
        facts = run_facts(stored_experiment(workdir)[0], None, None)
    except UserError as error:
        print(f"{workdir}: the cost of a step is unknown ({error})")
        return None
    return {name: value for name, value in facts.items() if name not in ("devices", "jax")}
