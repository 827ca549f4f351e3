"""The sentence-pair loss: next sentence or sentence order (label 0 = B follows A, as Hugging Face has it)."""

from __future__ import annotations

import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from bertjax.types import Sum


def pair_sums(logits: Float[Array, "B E 2"], labels: Int[Array, "B E"], weights: Float[Array, "B E"]) -> dict[str, Sum]:
    """Cross-entropy and accuracy over the examples that are there."""
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    right = (jnp.argmax(logits, axis=-1) == labels).astype(jnp.float32)
    count = weights.sum()
    return {"pair": Sum((losses * weights).sum(), count), "pair_accuracy": Sum((right * weights).sum(), count)}
