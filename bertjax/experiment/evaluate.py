"""Evaluation of a checkpoint: of pretraining on the held-out text, of a task on its held-out examples."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import jax

from bertjax.config.objectives import objective_class
from bertjax.config.task import task_config
from bertjax.data import from_config
from bertjax.errors import UserError
from bertjax.experiment import build
from bertjax.experiment.load import StoredRun, load_run, stored_teacher
from bertjax.experiment.task import read_held_out
from bertjax.experiment.task_feed import held_out_evaluator
from bertjax.experiment.teacher import eval_setup
from bertjax.experiment.workdir import read_config, require_same_data
from bertjax.finetuning.tasks import EvalResult
from bertjax.metrics import Metrics, scores_line
from bertjax.runtime import platform
from bertjax.training.evaluate import evaluate as compute_metrics
from bertjax.training.logging import eval_line


def evaluate(workdir: Path, step: int | None = None, sources: Sequence[str] = ()) -> Metrics:
    """Prints and returns the held-out metrics of a checkpoint; writes nothing.

    Args:
        workdir: work directory of the run.
        step: step of the checkpoint; the newest by default.
        sources: labelled examples to score a task on, as in `task.eval`; those of the run by default.

    Raises:
        UserError: the checkpoint is missing, or the data of the run are gone.
    """
    cfg = read_config(workdir)
    is_task = objective_class(cfg.objective.name).is_finetuning
    if sources and not is_task:
        raise UserError(f"--in: {workdir} is a run of pretraining, which is evaluated on its own held-out text")
    if is_task and not sources and not cfg.task.eval:
        raise UserError("the run has no held-out examples (task.eval is empty); give labelled data with --in")
    run = load_run(workdir, step)
    platform.enable_compile_cache(run.experiment.cfg)
    return _evaluate_task(run, sources) if is_task else _evaluate_pretraining(workdir, run)


def _evaluate_task(run: StoredRun, sources: Sequence[str]) -> Metrics:
    exp = run.experiment
    config = task_config(exp.cfg)
    config = config.replace(eval=tuple(sources) or config.eval)
    split = read_held_out(exp.cfg, config, run.tokenizer, exp.model.labels)
    print(f"{', '.join(config.eval)}: {len(split.examples):,} examples")
    for note in split.data.notes:
        print(f"  {note}")
    results: list[EvalResult] = []
    evaluator = held_out_evaluator(exp, config, run.tokenizer, split, results.append)
    with jax.set_mesh(exp.mesh):
        metrics = evaluator(build.padded_params(run.params, exp.model), exp.frozen)
    print(f"step {run.step}: {scores_line(metrics)}")
    for name, signature in (results[-1].signatures if results else {}).items():
        print(f"  {name}: {signature}")
    return metrics


def _evaluate_pretraining(workdir: Path, run: StoredRun) -> Metrics:
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
    print(f"step {run.step}: {eval_line(metrics)}")
    if len(sets) > 1:
        for name in sets:
            print(f"  {name}: {eval_line(metrics, f'eval/{name}')}")
    return metrics
