"""Inputs and facts of a step without text, by shapes alone: vocabulary, batches, settings, names of metrics."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding
from ml_collections import ConfigDict

from bertjax.config import inputs
from bertjax.config.data import DataConfig
from bertjax.config.fields import Reader
from bertjax.config.model import encoder_config
from bertjax.config.objectives import STREAM_FORMATS, objective_class
from bertjax.data import tokenizer_from_config
from bertjax.data.from_config import source_names
from bertjax.errors import UserError, comma_list
from bertjax.experiment import build
from bertjax.metrics import mean_metrics
from bertjax.objectives.base import StepInputs
from bertjax.training.run_context import PhaseProgram
from bertjax.training.sharding import BATCH
from bertjax.training.step import eval_step
from bertjax.types import Sum, Vocabulary, padded_vocab_size


def placeholder_vocabulary(size: int) -> Vocabulary:
    """Returns a vocabulary of `size` tokens, each of which starts a word; no tokenizer is trained."""
    ones, sentinels = np.ones(size, bool), tuple(range(size - 1, max(4, size - 101), -1))
    specials = 0, 1, 2, 3, 4
    return Vocabulary(
        size, padded_vocab_size(size), *specials, specials, ones, ones.astype(np.int64), sentinels, full_stop_ids=(5,)
    )


def find_vocabulary(cfg: ConfigDict) -> tuple[Vocabulary, bool]:
    """Returns the vocabulary and True, or a placeholder of the configured size and False while none is trained."""
    folder = tokenizer_from_config.tokenizer_folder(cfg)
    if folder is None or folder.exists():
        return tokenizer_from_config.load_or_train_tokenizer(cfg).vocabulary(), True
    return placeholder_vocabulary(cfg.data.vocab_size), False


def abstract_batch(exp: build.Experiment, program: PhaseProgram | None = None) -> dict[str, jax.ShapeDtypeStruct]:
    """Returns shapes and dtypes of a global batch, in the last phase of the run if no other is given."""
    cfg = (program or exp.programs[-1]).phase.cfg
    batch, length = cfg.train.batch_size, cfg.data.seq_len
    tokens, examples = (batch, length), (batch, Reader(cfg)(DataConfig).max_examples)
    shapes: dict[str, tuple[tuple[int, ...], type[np.generic]]]
    shapes = {name: (tokens, np.int32) for name in ("input_ids", "segment_ids", "position_ids", "token_type_ids")}
    shapes |= {"example_positions": (examples, np.int32), "example_weights": (examples, np.float32)}
    shapes |= {name: (examples, np.uint32) for name in ("example_ids", "example_epochs", "example_draws")}
    if cfg.data.example_format in ("nsp_pairs", "sop_pairs"):
        shapes["pair_labels"] = (examples, np.int32)
    if cfg.data.example_format in STREAM_FORMATS and encoder_config(cfg).bi_data:
        shapes["backward"] = ((batch,), np.bool_)
    sharding = NamedSharding(exp.mesh, BATCH)
    return {name: jax.ShapeDtypeStruct(shape, dtype, sharding=sharding) for name, (shape, dtype) in shapes.items()}


def step_settings(exp: build.Experiment) -> dict[str, Any]:
    """Returns what measurements of the last phase's step report of its settings."""
    cfg = exp.programs[-1].phase.cfg
    return {
        "objective": cfg.objective.name,
        "batch_size": cfg.train.batch_size,
        "microbatches": cfg.train.microbatches,
        "seq_len": cfg.data.seq_len,
        "compute_dtype": exp.model.compute_dtype,
        "result_dtype": exp.model.result_dtype,
        "devices": exp.mesh.size,
        "device_kind": exp.mesh.devices.flat[0].device_kind,
    }


def format_step(settings: Mapping[str, Any]) -> str:
    """Formats `step_settings` for the console."""
    several = "" if settings["microbatches"] == 1 else f" in {settings['microbatches']} microbatches"
    return (
        f"{settings['objective']}, {settings['batch_size']} sequences of {settings['seq_len']} tokens{several}, "
        f"matmuls in {settings['compute_dtype']}, results in {settings['result_dtype']}"
    )


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
