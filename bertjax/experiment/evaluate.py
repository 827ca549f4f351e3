"""`bertjax evaluate`: the held-out figures of a checkpoint."""

from __future__ import annotations

from pathlib import Path

import jax

from bertjax.data import from_config
from bertjax.experiment import build
from bertjax.experiment.load import load_run, stored_teacher
from bertjax.experiment.teacher import eval_setup
from bertjax.runtime import platform
from bertjax.training.evaluate import evaluate as held_out_figures
from bertjax.training.logging import eval_line


def evaluate(workdir: Path, step: int | None) -> dict[str, float]:
    """Prints and returns the figures of the newest checkpoint, or of that of `step`; writes nothing."""
    run = load_run(workdir, step)
    platform.enable_compile_cache(run.experiment.cfg)
    prepared = from_config.prepare(run.experiment.cfg)
    exp = build.make_experiment(run.experiment.cfg, prepared.vocabulary, stored_teacher(workdir))
    chosen = eval_setup(exp, run)
    sets = from_config.eval_sets(exp.cfg, prepared)
    with jax.set_mesh(exp.mesh):
        figures = held_out_figures(
            chosen.eval_step,
            build.padded_params(chosen.params, exp.model),
            exp.frozen,
            sets,
            chosen.objective,
            exp.mesh,
        )
    print(f"step {run.step}: {eval_line(figures)}")
    if len(sets) > 1:
        for name in sets:
            print(f"  {name}: {eval_line(figures, f'eval/{name}')}")
    return figures
