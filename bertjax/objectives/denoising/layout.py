"""Rows whose tokens move: removal and insertion by cumulative sums, without a loop over tokens."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from bertjax.types import Batch

WHOLE_TEXTS = ("block", "doc_sentences")
"""Example formats whose examples are [CLS], text, [SEP]."""


def close_gaps(keep: Bool[Array, "B S"], size: int, values: Int[Array, "B S"]) -> Int[Array, "B T"]:
    """Returns the values of the kept slots, in their order at the beginning of a row; zeros follow.

    Args:
        keep: slots that stay.
        size: T, slots of the new row; values that do not fit are lost.
        values: a value per slot.
    """
    return put(jnp.where(keep, jnp.cumsum(keep, axis=1) - 1, size), size, values)


def put(slots: Int[Array, "B S"], size: int, values: Int[Array, "B S"]) -> Int[Array, "B T"]:
    """Returns rows of zeros with the values in these slots.

    Args:
        slots: a slot per value; T or more = none.
        size: T, slots of the new row.
        values: values to move.
    """
    empty = jnp.zeros((len(slots), size), values.dtype)
    return empty.at[jnp.arange(len(slots))[:, None], slots].set(values, mode="drop")


def count_from_start(segments: Int[Array, "B S"]) -> Int[Array, "B S"]:
    """Returns the position of every token in its example; padding counts on from 0."""
    index = jnp.broadcast_to(jnp.arange(segments.shape[1], dtype=jnp.int32)[None, :], segments.shape)
    previous = jnp.pad(segments[:, :-1], ((0, 0), (1, 0)), constant_values=-1)
    return index - jax.lax.cummax(jnp.where(segments != previous, index, 0), axis=1)


def drop_tokens(batch: Batch, keep: Bool[Array, "B S"], size: int, ids: Int[Array, "B S"], pad_id: int) -> Batch:
    """Returns the batch with the kept tokens alone; positions and the first token of every example follow.

    Args:
        batch: a batch.
        keep: tokens that stay.
        size: tokens per sequence afterwards.
        ids: ids of the tokens.
        pad_id: id of padding.
    """
    keep = keep & (batch["segment_ids"] > 0)
    segments = close_gaps(keep, size, batch["segment_ids"])
    examples = jnp.arange(1, batch["example_positions"].shape[1] + 1)[None, :, None]
    before = (segments[:, None, :] < examples) & (segments > 0)[:, None, :]
    return {
        **batch,
        "input_ids": jnp.where(segments > 0, close_gaps(keep, size, ids), pad_id),
        "segment_ids": segments,
        "position_ids": count_from_start(segments),
        "token_type_ids": close_gaps(keep, size, batch["token_type_ids"]),
        "example_positions": before.sum(axis=2, dtype=batch["example_positions"].dtype),
    }


def as_target(ids: Int[Array, "B T"], segments: Int[Array, "B T"]) -> Batch:
    """Returns the arrays of a target."""
    return {"target_ids": ids, "target_segment_ids": segments, "target_position_ids": count_from_start(segments)}


def count_in_example(flags: Bool[Array, "B S"], example: Int[Array, "B S"]) -> Int[Array, "B S"]:
    """Returns how many flags are set in the same example, up to and with each slot."""
    counted = jnp.cumsum(flags, axis=1, dtype=jnp.int32)
    is_first = example != jnp.pad(example[:, :-1], ((0, 0), (1, 0)), constant_values=-1)
    return counted - jax.lax.cummax(jnp.where(is_first, counted - flags, 0), axis=1)
