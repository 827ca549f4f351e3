"""Names of the metrics of an evaluation, known from shapes before text is read or a step is compiled."""

from __future__ import annotations

import functools

import jax
from ml_collections import ConfigDict

from bertjax.config import inputs
from bertjax.config.objectives import objective_class
from bertjax.data.from_config import source_names
from bertjax.errors import UserError, comma_list
from bertjax.experiment import build
from bertjax.experiment.abstract_inputs import abstract_batch, placeholder_vocabulary
from bertjax.metrics import mean_metrics
from bertjax.objectives.base import StepInputs
from bertjax.training.run_context import PhaseProgram
from bertjax.training.step import eval_step
from bertjax.types import Sum


def require_best_metric(cfg: ConfigDict) -> None:
    """Raises `UserError` if an evaluation of pretraining has no metric `checkpoint.best_metric`.

    With a teacher, whose folder is read later, nothing is checked here but at the first evaluation.
    """
    name = cfg.checkpoint.best_metric
    if name is None or objective_class(cfg.objective.name).uses_teacher:
        return
    exp = build.make_experiment(cfg, placeholder_vocabulary(cfg.data.vocab_size))
    sets = source_names(inputs.eval_sources(cfg) or inputs.all_sources(cfg))
    prefixes = ["eval", *(f"eval/{each}" for each in sets if len(sets) > 1)]
    for program in exp.programs:
        names = [f"{prefix}/{metric}" for prefix in prefixes for metric in _metric_names(exp, program)]
        require_metric(name, names)


def require_metric(name: str, names: list[str]) -> None:
    """Raises `UserError` if `checkpoint.best_metric` is not among the names of metrics."""
    if name not in names:
        raise UserError(
            f"checkpoint.best_metric={name} is none of the metrics of an evaluation: {comma_list(names, 40)}"
        )


def _metric_names(exp: build.Experiment, program: PhaseProgram) -> list[str]:
    objective = program.objective
    carry = jax.eval_shape(lambda: objective.init_carry(program.phase.cfg.train.batch_size))
    params = jax.eval_shape(objective.init, jax.random.key(0))
    step = functools.partial(eval_step, objective=objective, seed=0)
    with jax.set_mesh(exp.mesh):
        sums, _ = jax.eval_shape(step, params, StepInputs({}, carry), abstract_batch(exp, program))
    return list(mean_metrics({name: Sum(0.0, 1.0) for name in sums}, objective.loss_weights))
