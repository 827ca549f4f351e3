"""Reads the model of `objective.distillation.teacher`, compares it with the student, and puts it onto the mesh."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np
from ml_collections import ConfigDict

from bertjax.checkpoint.surgery import replace_leaves
from bertjax.config.objectives import objective_class
from bertjax.data.tokenizer import Tokenizer
from bertjax.errors import UserError, named
from bertjax.experiment import build
from bertjax.experiment.load import StoredRun, load_source_model, model_digest, require_model
from bertjax.io.tree_paths import flatten_tree
from bertjax.objectives.base import Network, Objective
from bertjax.objectives.distillation.init_student import start_from_teacher
from bertjax.objectives.distillation.objective import Distillation
from bertjax.training.optimizer import reset_ema
from bertjax.training.sharding import host_copy, put_tree, state_shardings
from bertjax.training.state import TrainState
from bertjax.training.step import compile_eval_step
from bertjax.types import Params


class Teacher(NamedTuple):
    """A network with the student's vocabulary, its host parameters, and their digest."""

    network: Network
    params: Params
    digest: str


def require_teacher(cfg: ConfigDict) -> None:
    """Raises `UserError` if a teacher is needed and its folder cannot hold a model; called before tokenization."""
    if not objective_class(cfg.objective.name).uses_teacher:
        return
    if cfg.objective.distillation.teacher is None:
        raise UserError(
            f"objective.name=distillation needs a teacher: set {named('config.objective.distillation.teacher')} to a "
            "Hugging Face folder, an export or a work directory"
        )
    require_model(cfg.objective.distillation.teacher)
    if cfg.init_from is not None and cfg.objective.distillation.teacher_layers is not None:
        raise UserError("init_from and objective.distillation.teacher_layers both set initial weights: use one of them")


def read_teacher(cfg: ConfigDict, tokenizer: Tokenizer) -> Teacher | None:
    """Loads the teacher of a config; None if the objective needs none.

    Raises:
        UserError: the teacher is missing, or its vocabulary is not the student's.
    """
    if not objective_class(cfg.objective.name).uses_teacher:
        return None
    require_teacher(cfg)
    folder = cfg.objective.distillation.teacher
    source = load_source_model(folder)
    if source.tokenizer.tokens != tokenizer.tokens:
        raise UserError(
            f"objective.distillation.teacher={folder} has other tokens than data.tokenizer: it would not read the "
            f"student's text; set {named('config.data.tokenizer', folder)} (of a work directory {folder}/tokenizer)"
        )
    config = dataclasses.replace(source.config, vocab_size=tokenizer.size, padded_vocab_size=None)
    rows = {
        path: np.asarray(leaf)[: tokenizer.size]  # tables may be larger than the vocabulary
        for path, leaf in flatten_tree(source.params).items()
        if build.HAS_VOCABULARY.fullmatch(path)
    }
    params = replace_leaves(source.params, rows)
    return Teacher(Network(config, source.heads), params, model_digest(config, source.heads, params))


def attach_teacher(exp: build.Experiment, teacher: Teacher | None) -> None:
    """Puts the teacher's parameters onto the mesh of the experiment, with the sharding of a student."""
    if teacher is None:
        return
    objective = _distillation(exp.objective)
    trained = objective.frozen(teacher.params)["teacher"]
    padded = build.padded_params(trained, objective.teacher_network.config)
    exp.frozen = {"teacher": put_tree(padded, state_shardings(padded, exp.mesh))}
    exp.digests = {"teacher": teacher.digest}


def init_student_layers(exp: build.Experiment, teacher: Teacher | None, state: TrainState) -> TrainState:
    """Copies layers of the teacher into a fresh state.

    Args:
        exp: experiment of the student.
        teacher: the teacher; None leaves the state as it is.
        state: the fresh state.

    Returns:
        The state with the layers that `objective.distillation.teacher_layers` names.
    """
    if teacher is None:
        return state
    objective, student = _distillation(exp.objective), exp.model
    if objective.teacher_layers is None:
        return state
    fresh = host_copy(state.params)
    unpadded = build.unpadded_params(fresh, student)
    initial = start_from_teacher(student, unpadded, teacher.network.config, teacher.params, objective.teacher_layers)
    params = build.padded_params(initial, student)
    print(f"the student starts as layers {', '.join(map(str, objective.teacher_layers))} of {objective.teacher}")
    shardings = jax.tree.map(lambda leaf: leaf.sharding, state.params)
    return state._replace(params=put_tree(params, shardings), opt_state=reset_ema(state.opt_state, params))


def eval_setup(exp: build.Experiment, run: StoredRun) -> tuple[Objective, Callable, Params]:
    """Returns objective, jitted step and parameters to evaluate, without a teacher that is missing or has changed.

    The experiment gets the teacher's parameters.

    Raises:
        UserError: the objective has no loss without the teacher.
    """
    if not isinstance(exp.objective, Distillation):
        return exp.objective, exp.eval_step, run.params
    folder = exp.cfg.objective.distillation.teacher
    try:
        teacher = read_teacher(exp.cfg, run.tokenizer)
        reason = f"{folder} is another model now"
    except UserError as error:
        teacher, reason = None, str(error)
    if teacher is not None and teacher.digest == run.meta["data"].get("teacher"):
        attach_teacher(exp, teacher)
        return exp.objective, exp.eval_step, run.params
    alone = exp.objective.without_teacher()
    if alone is None:
        raise UserError(f"without its teacher this student has no loss to evaluate: {reason}")
    print(f"evaluating the student without its teacher: {reason}")
    eval_step = compile_eval_step(exp.mesh, alone, build.EVAL_SEED)
    return alone, eval_step, exp.objective.network_params(run.params, "model")


def _distillation(objective: Objective) -> Distillation:
    assert isinstance(objective, Distillation)
    return objective
