"""`bertjax evaluate`: the held-out figures of a checkpoint."""

from __future__ import annotations

from pathlib import Path

import jax

from bertjax import build, corpora
from bertjax.commands.runs import load_run
from bertjax.objectives.base import Extra
from bertjax.training.evaluate import evaluate as held_out_figures
from bertjax.training.metrics import eval_line


def evaluate(workdir: Path, step: int | None) -> dict[str, float]:
    """Prints and returns the figures of the newest checkpoint, or of that of `step`; writes nothing."""
    run = load_run(workdir, step)
    prepared = corpora.prepare(run.experiment.cfg)
    exp = build.experiment(run.experiment.cfg, prepared.vocabulary)
    sets = corpora.eval_sets(exp.cfg, prepared)
    with jax.set_mesh(exp.mesh):
        figures = held_out_figures(
            exp.eval_step,
            build.padded_params(run.params, exp.model),
            Extra({}, {}),
            sets,
            exp.objective.weights,
            exp.mesh,
        )
    print(f"step {run.step}: {eval_line(figures)}")
    if len(sets) > 1:
        for name in sets:
            print(f"  {name}: {eval_line(figures, f'eval/{name}')}")
    return figures
