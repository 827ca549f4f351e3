"""The learning-rate range test (arXiv:1506.01186): trains briefly with rising learning rates and suggests one."""

from __future__ import annotations

import copy
import functools
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from ml_collections import ConfigDict

from bertjax.config import parse
from bertjax.config.objectives import objective_class
from bertjax.data import from_config
from bertjax.errors import UserError
from bertjax.experiment import build
from bertjax.experiment.finetune import initial_state
from bertjax.experiment.hub_names import pin_commits
from bertjax.experiment.init_from import load_initial_weights, require_init_source
from bertjax.experiment.task import read_task, require_task, resolve_config, task_batches
from bertjax.experiment.workdir import has_checkpoints, hold_workdir, write_config
from bertjax.training.lr_finder import LrSuggestions, candidate_lrs, has_diverged, suggest_lrs
from bertjax.training.run_context import Batches
from bertjax.training.sharding import local_sequences, put_batch
from bertjax.training.state import TrainState

_RULES = {
    "valley": "middle of the longest fall",
    "steepest": "steepest point",
    "tenth": "a tenth of the rate of the lowest loss",
}
_PRINTED = 20


class LrRange(NamedTuple):
    """Learning rates to try: from `min_lr` to `max_lr` in `steps` steps, evenly spaced or by equal factors."""

    min_lr: float
    max_lr: float
    steps: int
    linear: bool


class LrCurve(NamedTuple):
    """Losses [n] of n learning rates; n is below `LrRange.steps` if the loss diverged."""

    learning_rates: np.ndarray
    losses: np.ndarray
    suggestions: LrSuggestions


class LrTrial(NamedTuple):
    """Experiment, first state and batches of the test."""

    exp: build.Experiment
    state: TrainState
    batches: Batches


def lr_find(cfg: ConfigDict, workdir: Path, lr_range: LrRange) -> LrCurve:
    """Runs the test and prints losses and suggestions. Saves no checkpoint.

    Args:
        cfg: Checked config of pretraining or of a task.
        workdir: Directory that gets the config of the test.
        lr_range: Learning rates to try.

    Returns:
        The losses by learning rate, and the suggested rates.

    Raises:
        UserError: `workdir` holds a run, or the range is empty.
    """
    if has_checkpoints(workdir):
        raise UserError(f"--workdir {workdir} holds a run; give another directory")
    learning_rates = candidate_lrs(*lr_range)
    build.check_devices(cfg)
    is_finetuning = objective_class(cfg.objective.name).is_finetuning
    with hold_workdir(workdir):
        trial = _task_trial(cfg, workdir, lr_range) if is_finetuning else _pretraining_trial(cfg, workdir, lr_range)
        losses = _losses(trial, len(learning_rates))
        learning_rates = learning_rates[: len(losses)]
        curve = LrCurve(learning_rates, np.array(losses), suggest_lrs(learning_rates, losses))
        _print(curve)
        write_config(workdir, trial.exp.cfg)
    return curve


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


def _print(curve: LrCurve) -> None:
    for index in np.unique(np.linspace(0, len(curve.losses) - 1, _PRINTED).astype(int)):
        print(f"learning rate {curve.learning_rates[index]:.2e}  loss {curve.losses[index]:.4f}")
    for name, rule in _RULES.items():
        rate = getattr(curve.suggestions, name)
        print(f"{name:<9} {'none: the loss did not fall' if rate is None else f'{rate:.2e}'}  ({rule})")


def lr_test_config(cfg: ConfigDict, lr_range: LrRange) -> ConfigDict:
    """Returns the config with the rising schedule of the test, in one phase and without warmup."""
    cfg = copy.deepcopy(cfg)
    for key in ("end_lr_ratio", "power", "decay_steps", "period_steps", "factor"):
        cfg.schedule[key] = None
    cfg.train.num_steps, cfg.schedule.warmup_steps = lr_range.steps, 0
    cfg.train.phases, cfg.train.steps_per_dispatch = (), 1
    cfg.schedule.name = "rising_linear" if lr_range.linear else "rising_exponential"
    cfg.optimizer.learning_rate, cfg.schedule.end_lr_ratio = lr_range.max_lr, lr_range.min_lr / lr_range.max_lr
    parse.check(cfg)
    return cfg


def _pretraining_trial(cfg: ConfigDict, workdir: Path, lr_range: LrRange) -> LrTrial:
    cfg = lr_test_config(cfg, lr_range)
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


def _task_trial(cfg: ConfigDict, workdir: Path, lr_range: LrRange) -> LrTrial:
    require_task(cfg)
    task = read_task(cfg, workdir)
    batches = task_batches(cfg, task)
    cfg = lr_test_config(resolve_config(cfg, task, batches), lr_range)
    exp = build.make_experiment(cfg, task.tokenizer.vocabulary())
    return LrTrial(exp, initial_state(exp, task), batches)
