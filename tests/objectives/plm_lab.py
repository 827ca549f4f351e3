"""Shared by the tests of permutation language modeling: a small XLNet, rows of form segments, loss and gradient."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.config.model import EncoderConfig
from bertjax.objectives.base import StepInputs
from bertjax.objectives.plm.objective import Plm
from bertjax.types import Params

jit = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})  # compilation dominates
B, S, R = 4, 24, 12
CLS, SEP = 2, 3
MODEL = EncoderConfig(
    family="xlnet",
    vocab_size=200,
    padded_vocab_size=256,
    hidden_size=12,
    num_layers=2,
    num_heads=3,
    intermediate_size=14,
    position_embedding="none",
    type_vocab_size=0,
    embedding_norm="none",
    attention_position="relative",
    relative_segments=True,
    attention_bias="none",
    mlm_head="bias",
    hidden_dropout=0.0,
    attention_dropout=0.0,
    initializer="normal",
    initializer_range=0.3,
    pooling="last",
    classifier_dense="own",
)
CONFIG = Plm((R, R), example_format="segments", num_predict=7, perm_size=R, mem_len=16)
Rows = dict[str, jax.Array]


def drawn_rows(seed: int = 0, backward: bool = False, rows: int = B) -> Rows:
    """Returns rows of form segments with random words."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(5, 200, (rows, S)).astype(np.int32)
    ids[:, [17, S - 2]], ids[:, -1] = SEP, CLS
    types = np.where(np.arange(S) > 17, 1, 0) + np.where(np.arange(S) == S - 1, 1, 0)
    batch = {
        "input_ids": ids,
        "segment_ids": np.ones((rows, S), np.int32),
        "position_ids": np.tile(np.arange(S, dtype=np.int32), (rows, 1)),
        "token_type_ids": np.tile(types.astype(np.int32), (rows, 1)),
        "example_positions": np.full((rows, 1), S - 1, np.int32),
        "example_weights": np.ones((rows, 1), np.float32),
        "example_ids": rng.integers(0, 2**32, (rows, 1), dtype=np.uint64).astype(np.uint32),
        "example_epochs": np.zeros((rows, 1), np.uint32),
        "example_draws": np.zeros((rows, 1), np.uint32),
    }
    if backward:
        batch["backward"] = np.arange(rows) >= rows // 2
    return {name: jnp.asarray(value) for name, value in batch.items()}


def corrupted(objective: Plm, batch: Rows, cursor: int = 0) -> Rows:
    return dict(jit(objective.corrupt)(batch, jax.random.key(0), jnp.int32(cursor)))


def losses(objective: Plm, train: bool = False) -> Callable:
    """(params, carry, batch) -> ((loss, (sums, carry)), gradient)."""

    def total(params: Params, carry: Any, batch: Rows) -> tuple[jax.Array, Any]:
        sums, carry = objective.loss(params, StepInputs({}, carry), batch, jax.random.key(3), train)
        return sums["plm"].value, (sums, carry)

    return jit(jax.value_and_grad(total, has_aux=True))
