"""`bertjax lr-find`: a few updates under a rising learning rate, their losses, and what they suggest."""

from __future__ import annotations

import copy
import functools
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from ml_collections import ConfigDict

from bertjax.commands.finetune import initial_state, read_task, require_task, resolve_config, task_batches
from bertjax.config import parse, parse_objective
from bertjax.data import corpora
from bertjax.errors import UserError
from bertjax.experiment import build
from bertjax.experiment.init_from import load_initial_weights, require_init_source
from bertjax.experiment.workdir import has_checkpoints, write_config
from bertjax.report.probe_log import ProbeLog
from bertjax.report.render import render
from bertjax.training.lr_finder import LrSuggestions, candidate_lrs, has_diverged, suggest_lrs
from bertjax.training.run_context import Batches
from bertjax.training.sharding import local_sequences, make_mesh, put_batch
from bertjax.training.state import TrainState

_RULES = {
    "valley": "the middle of the longest fall",
    "steepest": "the steepest place",
    "tenth": "a tenth of the lowest",
}


class LrRange(NamedTuple):
    """Which rates are tried, in how many updates, and how they are spaced."""

    low: float
    high: float
    steps: int
    linear: bool


class LrTrial(NamedTuple):
    """What the updates are made with."""

    exp: build.Experiment
    state: TrainState
    batches: Batches


def lr_find(cfg: ConfigDict, workdir: Path, tried: LrRange) -> LrSuggestions:
    """Prints and draws the losses into `workdir`/report.html; trains nothing that is kept."""
    if has_checkpoints(workdir):
        raise UserError(f"--workdir {workdir} holds a run; give another folder")
    given = candidate_lrs(tried.low, tried.high, tried.steps, tried.linear)
    build.check_devices(cfg)
    trial = _task_trial(cfg, workdir, tried) if cfg.objective.name == "task" else _pretraining_trial(cfg, tried)
    losses = _losses(trial, len(given))
    made = given[: len(losses)]
    found = suggest_lrs(made, losses)
    _say(made, losses, found)
    write_config(workdir, trial.exp.cfg)
    shown = np.isfinite(losses)
    ProbeLog(workdir, 0).write(
        0, "lr_finder", rates=made[shown].tolist(), losses=np.array(losses)[shown].tolist(), suggestion=found.valley
    )
    print(f"drawn in {render(workdir)}")
    return found


def _losses(trial: LrTrial, steps: int) -> list[float]:
    """Of one update after the other, until they diverge."""
    exp, state, losses = trial.exp, trial.state, []
    with jax.set_mesh(exp.mesh), trial.batches.prefetch(0, steps) as batches:
        for _, batch in batches:
            state, metrics = exp.train_step(state, exp.frozen, put_batch(batch, exp.mesh))
            losses.append(float(metrics["loss"]))
            if has_diverged(losses):
                break
    return losses


def _say(tried: np.ndarray, losses: list[float], found: LrSuggestions) -> None:
    for index in np.unique(np.linspace(0, len(losses) - 1, 20).astype(int)):
        print(f"rate {tried[index]:.2e}  loss {losses[index]:.4f}")
    for name, words in _RULES.items():
        rate = getattr(found, name)
        print(f"{name:<9} {'none: the losses did not fall' if rate is None else f'{rate:.2e}'}  ({words})")


def lr_test_config(cfg: ConfigDict, tried: LrRange) -> ConfigDict:
    """The config under the rates of the test, without warm-up."""
    cfg = copy.deepcopy(cfg)
    for key in ("end_lr_ratio", "power", "decay_steps", "period_steps", "factor"):
        cfg.schedule[key] = None
    cfg.train.num_steps, cfg.schedule.warmup_steps = tried.steps, 0
    cfg.train.phases, cfg.train.steps_per_dispatch = (), 1
    cfg.schedule.name = "rising_linear" if tried.linear else "rising_exponential"
    cfg.optimizer.learning_rate, cfg.schedule.end_lr_ratio = tried.high, tried.low / tried.high
    return cfg


def _pretraining_trial(cfg: ConfigDict, tried: LrRange) -> LrTrial:
    cfg = lr_test_config(cfg, tried)
    parse.check(cfg)
    if cfg.objective.name == "distill":
        raise UserError("lr-find knows no teacher: set objective.name to another objective")
    require_init_source(cfg)
    prepared = corpora.prepare(cfg)
    exp = build.make_experiment(cfg, prepared.vocabulary)
    state = exp.init_state()
    if cfg.init_from is not None:
        state = load_initial_weights(exp, prepared.tokenizer, state)
    share: Any = functools.partial(local_sequences, mesh=exp.mesh)
    return LrTrial(exp, state, corpora.training_pipeline(cfg, prepared, share))


def _task_trial(cfg: ConfigDict, workdir: Path, tried: LrRange) -> LrTrial:
    require_task(cfg)
    task = read_task(cfg, workdir)
    batches = task_batches(cfg, task, make_mesh(parse_objective.mesh_config(cfg)))
    cfg = lr_test_config(resolve_config(cfg, task, batches), tried)
    parse.check(cfg)
    exp = build.make_experiment(cfg, task.tokenizer.vocabulary())
    return LrTrial(exp, initial_state(exp, task), batches)
