"""Held-out metrics of a checkpoint: of pretraining on its text, of a task on its held-out or other examples."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import jax

from bertjax.commands.arguments import Flag, Run, workdir_of
from bertjax.commands.signatures import command
from bertjax.config.objectives import objective_class
from bertjax.config.task import task_config
from bertjax.data import from_config
from bertjax.errors import UserError, named
from bertjax.experiment import build
from bertjax.experiment.load import StoredRun, load_run, stored_teacher
from bertjax.experiment.task import read_held_out
from bertjax.experiment.task_feed import held_out_evaluator
from bertjax.experiment.teacher import eval_setup
from bertjax.experiment.workdir import read_config, require_same_data
from bertjax.io.output import Results
from bertjax.metrics import scores_line
from bertjax.runtime import platform
from bertjax.tasks.evaluate import EvalResult
from bertjax.training.evaluate import evaluate as compute_metrics
from bertjax.training.logging import eval_line


@command
def evaluate(
    run: Run,
    *,
    step: int | None = None,
    inputs: Annotated[Sequence[str], Flag("--in", metavar="KIND:PATH", nargs="+")] = (),
) -> Results:
    """Compute the held-out metrics of a run, or the scores of a finetuned one on other examples.

    Writes nothing.

    Args:
        step: step of the checkpoint (default: the newest)
        inputs: labeled examples to score a finetuned run on, as in task.eval (default: those of the run)

    Returns:
        The metrics by name.

    Raises:
        UserError: the checkpoint is missing, or the data of the run are gone.

    Example:
        bertjax evaluate --workdir runs/quickstart
    """
    workdir = workdir_of(run)
    cfg = read_config(workdir)
    is_task = objective_class(cfg.objective.name).is_finetuning
    if inputs and not is_task:
        raise UserError(
            f"{named('inputs')}: {workdir} is a run of pretraining, which is evaluated on its own held-out text"
        )
    if is_task and not inputs and not cfg.task.eval:
        raise UserError(
            f"the run has no held-out examples (task.eval is empty); give labeled data with {named('inputs')}"
        )
    stored = load_run(workdir, step)
    platform.enable_compile_cache(stored.experiment.cfg)
    return _evaluate_task(stored, inputs) if is_task else _evaluate_pretraining(workdir, stored)


def _evaluate_task(run: StoredRun, inputs: Sequence[str]) -> Results:
    exp = run.experiment
    config = task_config(exp.cfg)
    config = config.replace(eval=tuple(inputs) or config.eval)
    split = read_held_out(exp.cfg, config, run.tokenizer, exp.model.labels)
    lines = [f"{', '.join(config.eval)}: {len(split.examples):,} examples"]
    lines += [f"  {note}" for note in split.data.notes]
    results: list[EvalResult] = []
    evaluator = held_out_evaluator(exp, config, run.tokenizer, split, results.append)
    with jax.set_mesh(exp.mesh):
        metrics = evaluator(build.padded_params(run.params, exp.model), exp.frozen)
    lines.append(f"step {run.step}: {scores_line(metrics)}")
    lines += [f"  {name}: {signature}" for name, signature in (results[-1].signatures if results else {}).items()]
    return Results(metrics, lines)


def _evaluate_pretraining(workdir: Path, run: StoredRun) -> Results:
    prepared = from_config.prepare(run.experiment.cfg)
    require_same_data(run.meta, prepared.digests, "restore the text that it was trained and evaluated on")
    phases = len(run.experiment.programs)
    exp = build.make_experiment(run.experiment.cfg, prepared.vocabulary, stored_teacher(workdir))
    exp = dataclasses.replace(exp, programs=exp.programs[:phases])
    objective, eval_step, params = eval_setup(exp, run)
    sets = from_config.eval_sets(exp.programs[-1].phase.cfg, prepared)
    with jax.set_mesh(exp.mesh):
        params = build.padded_params(params, exp.model)
        metrics = compute_metrics(eval_step, params, exp.frozen, sets, objective, exp.mesh)
    lines = [f"step {run.step}: {eval_line(metrics)}"]
    lines += [f"  {name}: {eval_line(metrics, f'eval/{name}')}" for name in (sets if len(sets) > 1 else ())]
    return Results(metrics, lines)
