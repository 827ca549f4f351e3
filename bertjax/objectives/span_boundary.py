"""SpanBERT's span-boundary objective: hidden words told from the two tokens outside their span (arXiv:1907.10529)."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float

from bertjax.models.heads import gather_positions
from bertjax.models.model import Model
from bertjax.objectives.masking.tokens import is_text, runs
from bertjax.objectives.vocab_loss import vocab_loss_sums
from bertjax.types import Batch, Sum, Vocabulary


def add_span_boundaries(batch: Batch, vocabulary: Vocabulary, most_places: int) -> Batch:
    """What the span-boundary head reads and is asked, added to a batch whose tokens are hidden.

    A span is a run of hidden neighbours. Adds, for every masked position [B, M], `span_left_positions` and
    `span_right_positions` of the tokens outside, `span_position_ids` (0 = first in its span) and `span_weights`: 0 for
    tokens after the first `most_places` of their span, and for spans without text on one side because they touch the
    first or last token of theirs (facebookresearch/SpanBERT:pretraining/fairseq/data/masking.py).
    """
    places, there = batch["masked_positions"], batch["masked_weights"] > 0
    ids, segments = batch["original_ids"], batch["segment_ids"]
    row, length = jnp.arange(len(ids))[:, None], ids.shape[1]
    chosen = jnp.zeros(ids.shape, bool).at[row, jnp.where(there, places, length)].set(True, mode="drop")
    first, last = (jnp.take_along_axis(end, places, axis=1) for end in runs(chosen, segments))
    body = is_text(ids, segments, vocabulary)
    # Padding on both sides: a span at the edge of the row has no neighbour there.
    text = jnp.pad(jnp.where(body, segments, 0), ((0, 0), (1, 1)))
    own = jnp.take_along_axis(segments, places, axis=1)
    left, right = (jnp.take_along_axis(text, end, axis=1) == own for end in (first, last + 2))
    place = places - first
    asked = there & left & right & (place < most_places)
    return {
        **batch,
        "span_left_positions": jnp.where(asked, first - 1, 0),
        "span_right_positions": jnp.where(asked, last + 1, 0),
        "span_position_ids": jnp.where(asked, place, 0),
        "span_weights": asked.astype(jnp.float32),
    }


def span_boundary_sums(model: Model, hidden: Float[Array, "B S D"], batch: Batch) -> dict[str, Sum]:
    """Cross-entropy `span` and its accuracy, of the words that have boundaries."""
    left, right = (gather_positions(hidden, batch[f"span_{side}_positions"]) for side in ("left", "right"))
    logits = model.span_logits(left, right, batch["span_position_ids"])
    return vocab_loss_sums("span", logits, batch["masked_ids"], batch["span_weights"])
