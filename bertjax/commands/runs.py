"""A run read back from its work folder: its experiment, its tokenizer and its parameters."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from bertjax import build
from bertjax.commands.workdir import read_config
from bertjax.data.tokenizer import Tokenizer, load_tokenizer
from bertjax.types import Params, UserError


class StoredRun(NamedTuple):
    """Parameters at the true vocabulary size on the host, of checkpoint `step`."""

    experiment: build.Experiment
    tokenizer: Tokenizer
    params: Params
    step: int
    meta: dict


def load_run(workdir: Path, step: int | None = None) -> StoredRun:
    """The newest undamaged checkpoint of a work folder, or that of `step`; changes nothing there."""
    cfg = read_config(workdir)
    cfg.platform = "any"
    cfg.mesh.data, cfg.mesh.fsdp, cfg.mesh.tensor = 1, 1, 1
    tokenizer = load_tokenizer(workdir / "tokenizer")
    experiment = build.experiment(cfg, tokenizer.vocabulary())
    checkpoints = build.open_checkpoints(cfg, workdir, read_only=True)
    try:
        restored = checkpoints.restore(experiment.abstract_state(), step)
    finally:
        checkpoints.close()
    if restored is None:
        raise UserError(f"{workdir} holds no checkpoint yet")
    params = build.true_size_params(restored.state.params, experiment.model)
    return StoredRun(experiment, tokenizer, params, restored.step, restored.meta)
