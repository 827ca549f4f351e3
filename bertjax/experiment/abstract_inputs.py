"""Inputs for compiling a step without text: a vocabulary of the configured size, and the shapes of its batches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding
from ml_collections import ConfigDict

from bertjax.config.data import DataConfig
from bertjax.config.fields import Reader
from bertjax.config.model import encoder_config
from bertjax.config.objectives import STREAM_FORMATS
from bertjax.data import tokenizer_from_config
from bertjax.experiment import build
from bertjax.training.run_context import PhaseProgram
from bertjax.training.sharding import BATCH
from bertjax.types import Vocabulary, padded_vocab_size


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
