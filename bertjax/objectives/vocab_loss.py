"""Losses over the vocabulary that several objectives share."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from bertjax.types import Sum, Vocabulary


@jax.named_scope("head")
def vocab_loss_sums(
    name: str, logits: Float[Array, "*b V"], ids: Int[Array, "*b"], weights: Float[Array, "*b"]
) -> dict[str, Sum]:
    """Cross-entropy `name` and accuracy `name_accuracy` over the predictions that are there.

    The answer is right when no logit is higher: an argmax would be a second, slow pass over the vocabulary.
    """
    answer = jnp.take_along_axis(logits, ids[..., None], axis=-1)[..., 0]
    highest = jax.lax.stop_gradient(logits.max(axis=-1))
    log_total = jnp.log(jnp.exp(logits - highest[..., None]).sum(axis=-1)) + highest
    right = (answer >= highest).astype(jnp.float32)
    count = weights.sum()
    return {
        name: Sum(((log_total - answer) * weights).sum(), count),
        f"{name}_accuracy": Sum((right * weights).sum(), count),
    }


def unigram_nll(vocabulary: Vocabulary) -> np.ndarray:
    """float32 [V]: what guessing by (add-one) piece frequency costs for every piece, in nats."""
    counts = vocabulary.counts.astype(np.float64) + 1.0
    return -np.log(counts / counts.sum()).astype(np.float32)
