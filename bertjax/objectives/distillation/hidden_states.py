"""States and scores of a student beside those of its teacher (DistilBERT, arXiv:1910.01108; TinyBERT, 1909.10351)."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float


def cosine_distance(one: Float[Array, "*b D"], other: Float[Array, "*b D"]) -> Float[Array, "*b"]:
    """1 - cosine, as torch's CosineEmbeddingLoss has it for pairs that belong together; finite for zeros."""
    one, other = one.astype(jnp.float32), other.astype(jnp.float32)
    squares = ((one**2).sum(-1) + _LEAST) * ((other**2).sum(-1) + _LEAST)
    return 1.0 - (one * other).sum(-1) / jnp.sqrt(squares)


_LEAST = 1e-12


def state_error(student: Float[Array, "L B S D"], teacher: Float[Array, "L B S D"]) -> Float[Array, "B S"]:
    """Squared differences of every token: the mean over the width, the sum over the pairs of layers."""
    difference = student.astype(jnp.float32) - teacher.astype(jnp.float32)
    return (difference**2).mean(axis=-1).sum(axis=0)


def score_error(
    student: Float[Array, "B N S S"], teacher: Float[Array, "B N S S"], visible: Bool[Array, "B S S"]
) -> Float[Array, "B S"]:
    """Squared differences of the scores before the softmax, of one pair of layers: the mean over the heads, the sum
    over the keys that a token sees (the original sets the others to zero on both sides)."""
    difference = jnp.where(visible[:, None], student - teacher, 0.0)
    return (difference**2).mean(axis=1).sum(axis=-1)
