"""Cross-entropy over the vocabulary, shared by several objectives."""

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
    """Computes cross-entropy and accuracy of weighted predictions.

    A prediction is right when no logit is higher: an argmax would be a second, slow pass over the vocabulary.

    Args:
        name: the name of the loss.
        logits: scores of the vocabulary, `*b` any leading axes.
        ids: the right tokens.
        weights: 0 = no prediction.

    Returns:
        `name` and `name_accuracy`.
    """
    correct = jnp.take_along_axis(logits, ids[..., None], axis=-1)[..., 0]
    highest = jax.lax.stop_gradient(logits.max(axis=-1))
    log_total = jnp.log(jnp.exp(logits - highest[..., None]).sum(axis=-1)) + highest
    is_right = (correct >= highest).astype(jnp.float32)
    count = weights.sum()
    return {
        name: Sum(((log_total - correct) * weights).sum(), count),
        f"{name}_accuracy": Sum((is_right * weights).sum(), count),
    }


def unigram_sums(name: str, nll: np.ndarray, ids: Int[Array, "*b"], weights: Float[Array, "*b"]) -> dict[str, Sum]:
    """Computes the loss of guessing by frequency, to compare a loss over the vocabulary with.

    Args:
        name: the name of that loss.
        nll: what `unigram_nll` returned.
        ids: the right tokens.
        weights: 0 = no prediction.

    Returns:
        `name_unigram_loss`.
    """
    return {f"{name}_unigram_loss": Sum((jnp.asarray(nll)[ids] * weights).sum(), weights.sum())}


def unigram_nll(vocabulary: Vocabulary) -> np.ndarray:
    """Returns float32 [V]: the loss in nats of guessing each token by its (add-one) frequency in the corpus."""
    counts = vocabulary.counts.astype(np.float64) + 1.0
    return -np.log(counts / counts.sum()).astype(np.float32)
