"""SpanBERT's span-boundary objective: masked tokens from the two tokens outside their span (arXiv:1907.10529)."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float

from bertjax.models.heads import gather_positions
from bertjax.models.model import Model
from bertjax.objectives.masking.tokens import find_runs, is_text
from bertjax.objectives.vocab_loss import vocab_loss_sums
from bertjax.types import Batch, Sum, Vocabulary


def add_span_boundaries(batch: Batch, vocabulary: Vocabulary, max_positions: int) -> Batch:
    """Adds the inputs of the span-boundary head to a masked batch. A span is a run of adjacent masked tokens.

    A token has weight 0 from position `max_positions` of its span on, and in a span without text on one side, because
    it touches the first or last token of its example (facebookresearch/SpanBERT:
    pretraining/fairseq/data/masking.py).

    Args:
        batch: a masked batch.
        vocabulary: the tokenizer's vocabulary.
        max_positions: positions in a span that the head has embeddings for.

    Returns:
        The batch with, per masked position [B, M], `span_left_positions` and `span_right_positions` of the tokens
        outside, `span_position_ids` (0 = first in its span) and `span_weights`.
    """
    positions, is_masked = batch["masked_positions"], batch["masked_weights"] > 0
    ids, segments = batch["original_ids"], batch["segment_ids"]
    sequence, length = jnp.arange(len(ids))[:, None], ids.shape[1]
    mask = jnp.zeros(ids.shape, bool).at[sequence, jnp.where(is_masked, positions, length)].set(True, mode="drop")
    first, last = (jnp.take_along_axis(end, positions, axis=1) for end in find_runs(mask, segments))
    # Padded on both sides: a span at the end of a sequence has no neighbor there.
    text_segments = jnp.pad(jnp.where(is_text(ids, segments, vocabulary), segments, 0), ((0, 0), (1, 1)))
    current = jnp.take_along_axis(segments, positions, axis=1)
    has_left, has_right = (jnp.take_along_axis(text_segments, end, axis=1) == current for end in (first, last + 2))
    offset = positions - first
    is_target = is_masked & has_left & has_right & (offset < max_positions)
    return {
        **batch,
        "span_left_positions": jnp.where(is_target, first - 1, 0),
        "span_right_positions": jnp.where(is_target, last + 1, 0),
        "span_position_ids": jnp.where(is_target, offset, 0),
        "span_weights": is_target.astype(jnp.float32),
    }


def span_boundary_sums(model: Model, hidden_states: Float[Array, "B S D"], batch: Batch) -> dict[str, Sum]:
    """Returns `span_boundary` and its accuracy, over the masked tokens that have both boundaries.

    Args:
        model: Model with a span-boundary head.
        hidden_states: Last hidden states.
        batch: Batch with span boundaries.
    """
    left, right = (gather_positions(hidden_states, batch[f"span_{side}_positions"]) for side in ("left", "right"))
    logits = model.span_logits(left, right, batch["span_position_ids"])
    return vocab_loss_sums("span_boundary", logits, batch["masked_ids"], batch["span_weights"])
