"""The learning-rate range test (arXiv:1506.01186): trains briefly with rising learning rates and suggests one."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from ml_collections import ConfigDict

from bertjax.commands.arguments import Config, NewWorkdir, Overrides
from bertjax.commands.signatures import command
from bertjax.config.objectives import objective_class
from bertjax.data import from_config
from bertjax.errors import UserError, named
from bertjax.experiment import build
from bertjax.experiment.config import command_config, parse
from bertjax.experiment.finetune import initial_state
from bertjax.experiment.hub_names import pin_commits
from bertjax.experiment.init_from import load_initial_weights, require_init_source
from bertjax.experiment.task import read_task, require_task, resolve_config
from bertjax.experiment.task_feed import task_batches
from bertjax.experiment.workdir import has_checkpoints, hold_workdir, write_config
from bertjax.io.staging import local_copy
from bertjax.report.training_callbacks import write_lr_curve
from bertjax.training.lr_finder import LrCurve, candidate_lrs, has_diverged, suggest_lrs
from bertjax.training.run_context import Batches
from bertjax.training.sharding import local_sequences, put_batch
from bertjax.training.state import TrainState

Rising = Callable[[ConfigDict], ConfigDict]
"""Gives a config the rising schedule of the test."""


class LrTrial(NamedTuple):
    """Experiment, first state and batches of the test."""

    exp: build.Experiment
    state: TrainState
    batches: Batches


@command
def lr_find(
    config: Config,
    workdir: NewWorkdir,
    overrides: Overrides = None,
    *,
    min_lr: float = 1e-7,
    max_lr: float = 1.0,
    steps: int = 100,
    linear: bool = False,
) -> LrCurve:
    """Train briefly with rising learning rates and suggest one.

    Saves no checkpoint.

    Args:
        workdir: new directory for the chart (report.html)
        min_lr: first learning rate
        max_lr: last learning rate
        steps: training steps
        linear: space the learning rates evenly, not by equal factors

    Returns:
        The losses by learning rate, and the suggested rates.

    Raises:
        UserError: `workdir` holds a run, or the range is empty.

    Example:
        bertjax lr-find --config quickstart --workdir runs/lr-find
    """
    cfg, folder = command_config(config, overrides), local_copy(workdir)
    if has_checkpoints(folder):
        raise UserError(f"{named('workdir')} {folder} holds a run; give another directory")
    learning_rates = candidate_lrs(min_lr, max_lr, steps, linear)
    build.check_devices(cfg)
    is_finetuning = objective_class(cfg.objective.name).is_finetuning
    with hold_workdir(folder):
        rising = functools.partial(_test_config, learning_rates=learning_rates, linear=linear)
        trial = (_task_trial if is_finetuning else _pretraining_trial)(cfg, folder, rising)
        losses = _losses(trial, len(learning_rates))
        learning_rates = learning_rates[: len(losses)]
        curve = LrCurve(learning_rates, np.array(losses), suggest_lrs(learning_rates, losses))
        write_config(folder, trial.exp.cfg)
    return curve._replace(chart=write_lr_curve(folder, curve))


def _losses(trial: LrTrial, steps: int) -> list[float]:
    """Trains until the loss diverges; returns the loss of every step."""
    exp, state, losses = trial.exp, trial.state, []
    with jax.set_mesh(exp.mesh), trial.batches.prefetch(0, steps) as batches:
        for _, batch in batches:
            state, metrics = exp.train_step(state, exp.frozen, put_batch(batch, exp.mesh))
            losses.append(float(metrics["loss"]))
            if has_diverged(losses):
                break
    return losses


def _test_config(cfg: ConfigDict, learning_rates: np.ndarray, linear: bool) -> ConfigDict:
    """Returns the config with the rising schedule of the test, in one phase and without warmup."""
    cfg = copy.deepcopy(cfg)
    for key in ("end_lr_ratio", "power", "decay_steps", "period_steps", "factor"):
        cfg.schedule[key] = None
    cfg.train.num_steps, cfg.schedule.warmup_steps = len(learning_rates), 0
    cfg.train.phases, cfg.train.steps_per_dispatch = (), 1
    cfg.schedule.name = "rising_linear" if linear else "rising_exponential"
    first, last = learning_rates[[0, -1]].tolist()
    cfg.optimizer.learning_rate, cfg.schedule.end_lr_ratio = last, first / last
    parse(cfg)
    return cfg


def _pretraining_trial(cfg: ConfigDict, workdir: Path, rising: Rising) -> LrTrial:
    cfg = rising(cfg)
    if objective_class(cfg.objective.name).uses_teacher:
        raise UserError("lr-find does not load a teacher: set objective.name to another objective")
    pin_commits(cfg, workdir)
    require_init_source(cfg)
    prepared = from_config.prepare(cfg)
    exp = build.make_experiment(cfg, prepared.vocabulary)
    state = exp.init_state()
    if cfg.init_from is not None:
        state = load_initial_weights(exp, prepared.tokenizer, state)
    share: Any = functools.partial(local_sequences, mesh=exp.mesh)
    return LrTrial(exp, state, from_config.training_pipeline(cfg, prepared, share))


def _task_trial(cfg: ConfigDict, workdir: Path, rising: Rising) -> LrTrial:
    require_task(cfg)
    task = read_task(cfg, workdir)
    batches = task_batches(cfg, task)
    cfg = rising(resolve_config(cfg, task, batches))
    exp = build.make_experiment(cfg, task.tokenizer.vocabulary())
    return LrTrial(exp, initial_state(exp, task), batches)
