"""Relations between tokens inside an attention: MiniLM (arXiv:2002.10957) and its second version (arXiv:2012.15828)."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from bertjax.models.mesh import num_batch_shards

_CHUNK_SCORES = 2**27
"""Scores of one side that a device holds at once."""


def relation_heads(x: Float[Array, "B S N H"], heads: int) -> Float[Array, "R B S W"]:
    """The vectors of all attention heads side by side, cut into `heads` relation heads."""
    return jnp.moveaxis(x.reshape(*x.shape[:2], heads, -1), 2, 0)


def relation_divergence(
    student: tuple[Float[Array, "R B S W"], Float[Array, "R B S W"]],
    teacher: tuple[Float[Array, "R B S W2"], Float[Array, "R B S W2"]],
    visible: Bool[Array, "B S S"],
) -> Float[Array, "B S"]:
    """KL(softmax(a b / sqrt(W)) of the teacher || that of the student) of every token, the mean over the heads.

    A side is (a, b), such as (queries, queries). Some heads at a time, in the backward pass too: with 48 of them the
    scores of all would be by far the largest array of the step.
    """
    heads, rows, length = student[0].shape[:3]

    @jax.checkpoint
    def one_head(parts: tuple) -> Array:
        ours, theirs = (_scaled_product(*side) for side in parts)
        return distribution_divergence(ours, theirs, visible)

    together = min(heads, max(1, _CHUNK_SCORES * num_batch_shards() // (rows * length * length)))
    return jax.lax.map(one_head, (student, teacher), batch_size=together).mean(axis=0)


def distribution_divergence(
    student: Float[Array, "*h B S S"], teacher: Float[Array, "*h B S S"], visible: Bool[Array, "B S S"]
) -> Float[Array, "*h B S"]:
    """KL(teacher || student) of the softmax over the visible keys, from scores; finite where nothing is visible."""
    seen = jnp.expand_dims(visible, range(student.ndim - visible.ndim))
    least = jnp.finfo(jnp.float32).min
    ours, theirs = (jax.nn.log_softmax(jnp.where(seen, scores, least)) for scores in (student, teacher))
    return (jnp.exp(theirs) * jnp.where(seen, theirs - ours, 0.0)).sum(axis=-1)


def _scaled_product(a: Float[Array, "B S W"], b: Float[Array, "B S W"]) -> Float[Array, "B S S"]:
    scores = jnp.einsum("bqw,bkw->bqk", a, b, preferred_element_type=jnp.float32)
    return scores / math.sqrt(a.shape[-1])
