"""Words drawn from logits, without a random number for every word of the vocabulary."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

_BLOCK = 64  # padded vocabularies are multiples of it


def sample_words(
    logits: Float[Array, "B M V"], noise: Float[Array, "B M R 2"], temperature: float, vocab_size: int
) -> Int[Array, "B M R"]:
    """R words for every place, drawn from softmax(logits / temperature) over the first `vocab_size`; no gradient.

    By inverted sums of probabilities, first of blocks of words and then inside one: two numbers in [0, 1) a word, where
    Gumbel noise takes as many as there are words, which costs more than the loss itself. Equal in distribution, but for
    the 2^-23 that is the step of the numbers.
    """
    logits = jax.lax.stop_gradient(logits)
    short = -logits.shape[-1] % _BLOCK
    if short:
        logits = jnp.pad(logits, ((0, 0), (0, 0), (0, short)))
    number = jnp.arange(logits.shape[-1], dtype=jnp.int32)
    lowest = jnp.finfo(jnp.float32).min
    logits = jnp.where((number < vocab_size)[None, None, :], logits, lowest)
    highest = logits.max(axis=-1)

    def weigh(some: Array, above: Array) -> Array:
        return jnp.where(some > lowest, jnp.exp((some - above) / temperature), 0.0)

    blocks = logits.reshape(*logits.shape[:2], -1, _BLOCK)
    block = _draw(weigh(blocks, highest[:, :, None, None]).sum(axis=-1)[:, :, None, :], noise[..., 0])
    inside = jnp.take_along_axis(blocks, block[..., None], axis=2)  # [B, M, R, _BLOCK]
    place = _draw(weigh(inside, highest[:, :, None, None]), noise[..., 1])
    # Where rounding lets a sum end above the last word that there is, that word is meant.
    return jnp.minimum(block * _BLOCK + place, vocab_size - 1)


def _draw(weights: Float[Array, "B M R N"], noise: Float[Array, "B M R2"]) -> Int[Array, "B M R2"]:
    """The first index at which the running sum exceeds its share `noise` of the total."""
    sums = jnp.cumsum(weights, axis=-1)
    return jnp.argmax(sums > noise[..., None] * sums[..., -1:], axis=-1).astype(jnp.int32)
