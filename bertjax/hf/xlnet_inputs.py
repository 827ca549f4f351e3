"""The inputs that only XLNet has, as `transformers` takes them, checked and turned into ours."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bertjax.config.model import EncoderConfig
from bertjax.errors import UserError
from bertjax.models.two_stream import check_two_streams

TwoStreamInputs = dict[str, Array]


def check_two_stream_inputs(
    config: EncoderConfig, shape: tuple[int, ...], memory: Any, perm_mask: Any, target_mapping: Any
) -> TwoStreamInputs:
    """Keyword arguments of `run_two_streams` for rows of `shape` [B, S]; raises `UserError`.

    memory [L, B, M, D]   perm_mask [B, S, S], 1 = hidden   target_mapping [B, T, S], a single 1 in every row
    """
    check_two_streams(config, memory is not None)
    found: TwoStreamInputs = {}
    if memory is not None:
        found["memory"] = _memory(config, shape[0], memory)
    if perm_mask is not None:
        found["visible"] = jnp.asarray(_zeros_and_ones("perm_mask", perm_mask, (*shape, shape[1])) == 0)
    if target_mapping is not None:
        found["targets"] = jnp.asarray(target_positions(target_mapping, shape), jnp.int32)
    return found


def target_positions(target_mapping: Any, shape: tuple[int, ...]) -> np.ndarray:
    """[B, T] from the one-hot form [B, T, S]; raises `UserError` for rows that are not one-hot, or equal.

    `transformers` adds up the queries of targets at one place, which then are neither's.
    """
    dense = np.asarray(target_mapping)
    if dense.ndim != 3 or dense.shape[1] == 0:
        raise UserError(f"target_mapping must have shape [rows, targets, tokens], not {list(dense.shape)}")
    dense = _zeros_and_ones("target_mapping", dense, (shape[0], dense.shape[1], shape[1]))
    if (dense.sum(-1) != 1).any():
        row, target = np.argwhere(dense.sum(-1) != 1)[0]
        raise UserError(
            f"target_mapping[{row}, {target}] holds {int(dense[row, target].sum())} ones; every target has one place"
        )
    twice = np.argwhere(dense.sum(1) > 1)
    if len(twice):
        raise UserError(f"target_mapping names token {twice[0][1]} of row {twice[0][0]} twice; name it once")
    return dense.argmax(-1)


def _memory(config: EncoderConfig, rows: int, memory: Any) -> Float[Array, "L B M D"]:
    given = jnp.asarray(memory, jnp.float32)
    expected = (config.num_layers, rows, *given.shape[2:3], config.hidden_size)
    if given.shape != expected:
        raise UserError(
            f"memory has shape {list(given.shape)}; wanted is [{config.num_layers} layers, {rows} rows, any number of "
            f"tokens, {config.hidden_size}], as output_memory=True returns it"
        )
    return given


def _zeros_and_ones(name: str, values: Any, shape: tuple[int, ...]) -> np.ndarray:
    array = np.asarray(values)
    if array.shape != shape or not np.isin(array, (0, 1)).all():
        raise UserError(f"{name} must hold 0 and 1 in shape {list(shape)}, not {list(array.shape)}")
    return array
