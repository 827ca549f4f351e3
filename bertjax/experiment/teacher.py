"""Reads the model of `objective.distillation.teacher`, compares it with the student, and puts it onto the mesh."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
from ml_collections import ConfigDict

from bertjax.checkpoint.surgery import replace_leaves
from bertjax.config.model import EncoderConfig
from bertjax.config.objectives import objective_class
from bertjax.data.tokenizer import Tokenizer
from bertjax.errors import UserError
from bertjax.experiment import build
from bertjax.experiment.load import StoredRun, load_source_model, require_model
from bertjax.hf import native_format
from bertjax.io.tree_paths import flatten_tree
from bertjax.objectives.base import Network, Objective
from bertjax.objectives.distillation.init_student import start_from_teacher
from bertjax.objectives.distillation.objective import Distillation
from bertjax.training.ema import reset_ema
from bertjax.training.sharding import host_copy, put_tree, state_shardings
from bertjax.training.state import TrainState
from bertjax.training.step import compile_eval_step
from bertjax.types import Params


class Teacher(NamedTuple):
    """A network at the size of the student's vocabulary, its parameters on the host, and what names it."""

    network: Network
    params: Params
    digest: str


def require_teacher(cfg: ConfigDict) -> None:
    """Raises `UserError` early, before hours of tokenising, when a teacher is needed and there can be none."""
    if not objective_class(cfg.objective.name).uses_teacher:
        return
    if cfg.objective.distillation.teacher is None:
        raise UserError(
            "objective.name=distillation needs a teacher: set --config.objective.distillation.teacher to a Hugging "
            "Face folder, an export or a work directory"
        )
    require_model(Path(cfg.objective.distillation.teacher).expanduser())
    if cfg.init_from is not None and cfg.objective.distillation.teacher_layers is not None:
        raise UserError(
            "init_from and objective.distillation.teacher_layers both say what the student starts from: use one of them"
        )


def read_teacher(cfg: ConfigDict, tokenizer: Tokenizer) -> Teacher | None:
    """The teacher that a config names, None where it needs none; raises `UserError` for one with other pieces."""
    if not objective_class(cfg.objective.name).uses_teacher:
        return None
    require_teacher(cfg)
    folder = Path(cfg.objective.distillation.teacher).expanduser()
    given = load_source_model(folder)
    if given.tokenizer.tokens != tokenizer.tokens:
        raise UserError(
            f"objective.distillation.teacher={folder} has other tokens than data.tokenizer: it would not read the "
            f"student's text; set --config.data.tokenizer={folder} (of a work folder {folder}/tokenizer)"
        )
    config = dataclasses.replace(given.config, vocab_size=tokenizer.size, padded_vocab_size=None)
    rows = {
        path: np.asarray(leaf)[: tokenizer.size]  # tables may have rows that no piece has
        for path, leaf in flatten_tree(given.params).items()
        if build.HAS_VOCABULARY.fullmatch(path)
    }
    params = replace_leaves(given.params, rows)
    return Teacher(Network(config, given.heads), params, _digest(config, given.heads, params))


def attach_teacher(exp: build.Experiment, teacher: Teacher | None) -> None:
    """Puts the teacher's parameters onto the mesh, laid out as a student's would be."""
    if teacher is None:
        return
    objective = _distillation(exp.objective)
    run = objective.frozen(teacher.params)["teacher"]
    padded = build.padded_params(run, objective.teacher.config)
    exp.frozen = {"teacher": put_tree(padded, state_shardings(padded, exp.mesh))}
    exp.digests = {"teacher": teacher.digest}


def init_student_layers(exp: build.Experiment, teacher: Teacher | None, state: TrainState) -> TrainState:
    """Returns the fresh state with the layers of `objective.distillation.teacher_layers`, unchanged where None."""
    if teacher is None:
        return state
    config, student = _distillation(exp.objective).config, exp.model
    if config.teacher_layers is None:
        return state
    fresh = host_copy(state.params)
    true = build.unpadded_params(fresh, student)
    started = start_from_teacher(student, true, teacher.network.config, teacher.params, config.teacher_layers)
    params = build.padded_params(started, student)
    print(f"the student starts as layers {', '.join(map(str, config.teacher_layers))} of {config.teacher}")
    laid = jax.tree.map(lambda leaf: leaf.sharding, state.params)
    return state._replace(params=put_tree(params, laid), opt_state=reset_ema(state.opt_state, params))


class EvalSetup(NamedTuple):
    """What held-out figures are made with."""

    objective: Objective
    eval_step: Callable
    params: Params


def eval_setup(exp: build.Experiment, run: StoredRun) -> EvalSetup:
    """A run's objective with its teacher or, where that is gone or another one now, the student by itself."""
    if not isinstance(exp.objective, Distillation):
        return EvalSetup(exp.objective, exp.eval_step, run.params)
    folder = exp.cfg.objective.distillation.teacher
    try:
        teacher = read_teacher(exp.cfg, run.tokenizer)
        reason = f"{folder} is another model now"
    except UserError as error:
        teacher, reason = None, str(error)
    if teacher is not None and teacher.digest == run.meta["data"].get("teacher"):
        attach_teacher(exp, teacher)
        return EvalSetup(exp.objective, exp.eval_step, run.params)
    alone = exp.objective.without_teacher()
    if alone is None:
        raise UserError(f"without its teacher there is nothing to measure of this student: {reason}")
    print(f"the student by itself, for want of its teacher: {reason}")
    eval_step = compile_eval_step(exp.mesh, alone, build.EVAL_SEED)
    return EvalSetup(alone, eval_step, exp.objective.network_params(run.params, "model"))


def _distillation(objective: Objective) -> Distillation:
    assert isinstance(objective, Distillation)
    return objective


def _digest(config: EncoderConfig, heads: tuple[str, ...], params: Params) -> str:
    """Names what the teacher computes: its parameters and what they mean."""
    found = hashlib.blake2b(
        json.dumps(native_format.render_fields(config, heads), sort_keys=True).encode(), digest_size=16
    )
    for path, leaf in sorted(flatten_tree(params).items(), key=lambda pair: pair[0]):
        array = np.ascontiguousarray(leaf)
        found.update(f"{path} {array.dtype} {array.shape}".encode())
        found.update(array.data)
    return found.hexdigest()
