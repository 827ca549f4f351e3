"""A teacher's distribution over the words as the target (Hinton et al., arXiv:1503.02531; DistilBERT)."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from bertjax.models.mesh import num_batch_shards

_CHUNK_TOKENS = 4096
"""Tokens whose two sets of logits a device holds at once."""

Logits = Callable[[Array], Array]


def divergence(
    student: Float[Array, "*b V"], teacher: Float[Array, "*b V"], temperature: float, size: int
) -> Float[Array, "*b"]:
    """T^2 KL(softmax(teacher / T) || softmax(student / T)) over the first `size` words; the others are padding.

    T^2 keeps the gradient where it is when T changes (huggingface/transformers: distillation/distiller.py).
    """
    real = jnp.expand_dims(jnp.arange(student.shape[-1]) < size, range(student.ndim - 1))
    ours, theirs = student / temperature, teacher / temperature
    difference = jnp.where(real, jax.nn.log_softmax(theirs) - jax.nn.log_softmax(ours), 0.0)
    return temperature**2 * (jax.nn.softmax(theirs) * difference).sum(axis=-1)


def soft_sum(
    student: tuple[Logits, Float[Array, "B T D"]],
    teacher: tuple[Logits, Float[Array, "B T D2"]],
    weights: Float[Array, "B T"],
    temperature: float,
    size: int,
) -> Float[Array, ""]:
    """The weighted sum of `divergence`; each side is how logits are made, and of what.

    Logits are made, and made again in the backward pass, a slice of the rows at a time: [B, T, V] never exists.
    """
    rows, length = weights.shape
    width = min(length, max(1, _CHUNK_TOKENS * num_batch_shards() // rows))
    short = -length % width

    def chunks(x: Array) -> Array:
        padded = jnp.pad(x, [(0, 0), (0, short), *[(0, 0)] * (x.ndim - 2)])
        return jnp.moveaxis(padded.reshape(rows, -1, width, *x.shape[2:]), 1, 0)

    @jax.checkpoint
    def total(chunk: tuple[Array, Array, Array]) -> Array:
        ours, theirs, own = chunk
        return (divergence(student[0](ours), teacher[0](theirs), temperature, size) * own).sum()

    return jax.lax.map(total, (chunks(student[1]), chunks(teacher[1]), chunks(weights))).sum()
