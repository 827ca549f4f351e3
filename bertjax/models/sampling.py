"""Samples of next tokens: temperature, top-k and top-p."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from bertjax.config.generation import GenerationConfig
from bertjax.models.linear import Key


def draw_tokens(
    logits: Float[Array, "R V"], count: Int[Array, ""], keys: Key, settings: GenerationConfig
) -> Int[Array, "R"]:
    """Draws one token per sequence, a function of its key and of the number of tokens before it.

    Args:
        logits: processed logits.
        count: number of new tokens.
        keys: keys of the sequences [R].
        settings: temperature, top_k, top_p.
    """
    logits = restrict_logits(logits, settings)
    keys = jax.vmap(jax.random.fold_in, (0, None))(keys, count)
    return jax.vmap(jax.random.categorical)(keys, logits)


def restrict_logits(logits: Float[Array, "R V"], settings: GenerationConfig) -> Float[Array, "R V"]:
    """Divides logits by the temperature and excludes tokens that are not among the most probable, in this order."""
    logits = logits / settings.temperature
    if 0 < settings.top_k < logits.shape[-1]:
        smallest = jax.lax.top_k(logits, settings.top_k)[0][:, -1:]
        logits = jnp.where(logits < smallest, -jnp.inf, logits)
    if settings.top_p < 1.0:
        falling = -jnp.sort(-logits, axis=-1)
        probabilities = jax.nn.softmax(falling)
        before = jnp.cumsum(probabilities, axis=-1) - probabilities
        smallest = jnp.min(jnp.where(before < settings.top_p, falling, jnp.inf), axis=-1, keepdims=True)
        logits = jnp.where(logits < smallest, -jnp.inf, logits)
    return logits
