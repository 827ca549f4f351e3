"""Evaluation of a checkpoint on the held-out text."""

from __future__ import annotations

from pathlib import Path

import jax

from bertjax.data import from_config
from bertjax.experiment import build
from bertjax.experiment.load import load_run, stored_teacher
from bertjax.experiment.teacher import eval_setup
from bertjax.runtime import platform
from bertjax.training.evaluate import evaluate as compute_metrics
from bertjax.training.logging import eval_line


def evaluate(workdir: Path, step: int | None = None) -> dict[str, float]:
    """Prints and returns the held-out metrics of a checkpoint of pretraining; writes nothing.

    Args:
        workdir: work directory of the run.
        step: step of the checkpoint; the newest by default.

    Raises:
        UserError: the checkpoint is missing, or the text of the run is gone.
    """
    run = load_run(workdir, step)
    platform.enable_compile_cache(run.experiment.cfg)
    prepared = from_config.prepare(run.experiment.cfg)
    exp = build.make_experiment(run.experiment.cfg, prepared.vocabulary, stored_teacher(workdir))
    setup = eval_setup(exp, run)
    sets = from_config.eval_sets(exp.cfg, prepared)
    with jax.set_mesh(exp.mesh):
        metrics = compute_metrics(
            setup.eval_step,
            build.padded_params(setup.params, exp.model),
            exp.frozen,
            sets,
            setup.objective,
            exp.mesh,
        )
    print(f"step {run.step}: {eval_line(metrics)}")
    if len(sets) > 1:
        for name in sets:
            print(f"  {name}: {eval_line(metrics, f'eval/{name}')}")
    return metrics
