"""A run read back from its work folder: its experiment, its tokenizer and its parameters."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import jax

from bertjax.checkpoint.manager import Checkpoints, Restored
from bertjax.checkpoint.surgery import average_params
from bertjax.data.tokenizer import Tokenizer, load_tokenizer
from bertjax.errors import UserError
from bertjax.experiment import build
from bertjax.experiment.teacher_file import stored_teacher
from bertjax.experiment.workdir import read_config, require_same_run
from bertjax.runtime import platform
from bertjax.training.state import COUNTERS
from bertjax.types import Params


class StoredRun(NamedTuple):
    """Parameters at the true vocabulary size on the host, of checkpoint `step`, or averaged over all of `steps`."""

    experiment: build.Experiment
    tokenizer: Tokenizer
    params: Params
    step: int
    meta: dict
    steps: tuple[int, ...]


def load_run(workdir: Path, step: int | None = None, average_last: int = 1) -> StoredRun:
    """The newest undamaged checkpoint of a work folder, or that of `step`; changes nothing there.

    `average_last` K takes the mean of the weights of K checkpoints, that one and those before it.
    """
    tokenizer = load_tokenizer(workdir / "tokenizer")
    experiment = described(workdir, tokenizer)
    cfg = experiment.cfg
    checkpoints = build.open_checkpoints(cfg, workdir, read_only=True)
    seen: list[Restored] = []

    def weights(each: int | None) -> Params:
        """Of one checkpoint, on the host; what is kept of it afterwards are two numbers."""
        restored = checkpoints.restore(experiment.abstract_state(), each, absent=COUNTERS)
        if restored is None:
            raise UserError(f"{workdir} holds no checkpoint yet")
        require_same_run(workdir, restored.step, restored.meta, cfg)
        seen.append(restored._replace(state=None))
        return build.true_size_params(experiment.chosen_params(restored.state), experiment.model)

    try:
        chosen = [step] if average_last == 1 else _last_steps(checkpoints, step, average_last)
        params = average_params(weights(each) for each in chosen)
    finally:
        checkpoints.close()
    return StoredRun(
        experiment, tokenizer, params, seen[-1].step, seen[-1].meta, tuple(restored.step for restored in seen)
    )


def described(workdir: Path, tokenizer: Tokenizer) -> build.Experiment:
    """What the config of a work folder describes, on one device; nothing is restored."""
    cfg = read_config(workdir)
    cfg.platform = "any"
    cfg.mesh.data, cfg.mesh.fsdp, cfg.mesh.tensor = 1, 1, 1
    platform.use_platform(cfg.platform)
    own = jax.local_devices()[:1]  # of several processes, each reads what it begins with or learns from by itself
    return build.experiment(cfg, tokenizer.vocabulary(), stored_teacher(workdir), own)


def _last_steps(checkpoints: Checkpoints, step: int | None, count: int) -> list[int]:
    """The last `count` steps up to `step`, oldest first; `UserError` when fewer are kept."""
    kept = checkpoints.steps()
    if step is not None and step not in kept:
        raise UserError(f"no checkpoint of step {step} in {checkpoints.directory}; there are: {_listed(kept)}")
    reached = [each for each in kept if step is None or each <= step]
    if len(reached) < count:
        raise UserError(
            f"--average-last {count} needs {count} checkpoints{'' if step is None else f' up to step {step}'}, but "
            f"{checkpoints.directory} holds {len(reached)} ({_listed(reached)}); a run keeps checkpoint.keep of them"
        )
    return reached[-count:]


def _listed(steps: list[int]) -> str:
    return ", ".join(map(str, steps)) or "none"
