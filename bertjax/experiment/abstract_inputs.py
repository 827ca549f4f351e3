"""What a step is compiled for without text: a vocabulary of the configured size, and batches that are shapes only."""

from __future__ import annotations

import jax
import numpy as np
from jax.sharding import NamedSharding

from bertjax.config import parse_objective
from bertjax.config.objectives.plm import STREAM_FORMATS
from bertjax.experiment import build
from bertjax.training.run_context import PhaseProgram
from bertjax.training.sharding import BATCH
from bertjax.types import Vocabulary, padded_vocab_size


def placeholder_vocabulary(size: int) -> Vocabulary:
    """As many pieces as the config asks for, each a word; no tokenizer was trained."""
    ones = np.ones(size, bool)
    return Vocabulary(size, padded_vocab_size(size), 0, 1, 2, 3, 4, (0, 1, 2, 3, 4), ones, ones.astype(np.int64))


def abstract_batch(exp: build.Experiment, program: PhaseProgram | None = None) -> dict[str, jax.ShapeDtypeStruct]:
    """Shapes and types of a global batch, in the last stage of the run if no other is given."""
    cfg = (program or exp.programs[-1]).phase.cfg
    rows, length = cfg.train.batch_size, cfg.data.seq_len
    tokens, examples = (rows, length), (rows, parse_objective.pack_examples(cfg))
    shapes: dict[str, tuple[tuple[int, ...], type[np.generic]]]
    shapes = {name: (tokens, np.int32) for name in ("input_ids", "segment_ids", "position_ids", "token_type_ids")}
    shapes |= {"example_positions": (examples, np.int32), "example_weights": (examples, np.float32)}
    shapes |= {"example_ids": (examples, np.uint32), "example_draws": (examples, np.uint32)}
    if cfg.data.example_format in ("nsp_pairs", "sop_pairs"):
        shapes["pair_labels"] = (examples, np.int32)
    if cfg.data.example_format in STREAM_FORMATS and parse_objective.encoder_config(cfg).bi_data:
        shapes["backward"] = ((rows,), np.bool_)
    sharding = NamedSharding(exp.mesh, BATCH)
    return {name: jax.ShapeDtypeStruct(shape, dtype, sharding=sharding) for name, (shape, dtype) in shapes.items()}
