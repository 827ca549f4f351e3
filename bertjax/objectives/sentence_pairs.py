"""Classification of pairs of segments: next-sentence (arXiv:1810.04805) and sentence-order prediction (1909.11942)."""

from __future__ import annotations

import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from bertjax.config.objectives.base import PairObjectiveConfig
from bertjax.models.model import HEADS, Model
from bertjax.types import Batch, Sum


def with_pair_heads(heads: tuple[str, ...], config: PairObjectiveConfig) -> tuple[str, ...]:
    """Returns these heads and, where the text has pairs, those that classify pairs, in the order of `HEADS`."""
    names = {*heads, *(("pooler", "pair") if config.sentence_objective else ())}
    return tuple(head for head in HEADS if head in names)


def pair_loss_weights(config: PairObjectiveConfig) -> dict[str, float]:
    """Returns the factor of the loss `pair`, {} where the text has no pairs."""
    return {"pair": config.pair_weight} if config.sentence_objective else {}


def classify_pairs(model: Model, hidden_states: Float[Array, "B S D"], batch: Batch) -> dict[str, Sum]:
    """Returns `pair` and `pair_accuracy` of a batch with `pair_labels`; {} for a model without a pair head.

    Args:
        model: Model whose pooler and pair head are used.
        hidden_states: Last hidden states.
        batch: Batch that they were computed from.
    """
    if model.pair_head is None:
        return {}
    pooled = model.pooled(hidden_states, batch["example_positions"], batch["segment_ids"])
    return sentence_pair_sums(model.pair_logits(pooled), batch["pair_labels"], batch["example_weights"])


def sentence_pair_sums(
    logits: Float[Array, "B E 2"], labels: Int[Array, "B E"], weights: Float[Array, "B E"]
) -> dict[str, Sum]:
    """Computes the loss of next-sentence or sentence-order prediction.

    Args:
        logits: Scores of the two labels.
        labels: 0 = the second segment follows the first, as in Hugging Face.
        weights: 0 = no example.

    Returns:
        `pair` and `pair_accuracy`.
    """
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    is_right = (jnp.argmax(logits, axis=-1) == labels).astype(jnp.float32)
    count = weights.sum()
    return {"pair": Sum((losses * weights).sum(), count), "pair_accuracy": Sum((is_right * weights).sum(), count)}
