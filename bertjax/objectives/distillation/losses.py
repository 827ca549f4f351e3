"""Losses between a student and its teacher.

Token distributions (Hinton et al., arXiv:1503.02531; DistilBERT, arXiv:1910.01108), relations between tokens inside an
attention (MiniLM, arXiv:2002.10957, and its second version, arXiv:2012.15828), hidden states and attention scores
(DistilBERT; TinyBERT, arXiv:1909.10351).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from bertjax.models.mesh import num_batch_shards

_CHUNK_TOKENS = 4096
"""Tokens whose two sets of logits a device holds at once."""

_CHUNK_SCORES = 2**27
"""Attention scores of one network that a device holds at once."""

_EPSILON = 1e-12

Logits = Callable[[Array], Array]


def kd_divergence(
    student: Float[Array, "*b V"], teacher: Float[Array, "*b V"], temperature: float, size: int
) -> Float[Array, "*b"]:
    """T^2 KL(softmax(teacher / T) || softmax(student / T)) over the first `size` words; the others are padding.

    T^2 keeps the gradient where it is when T changes (huggingface/transformers: distillation/distiller.py).
    """
    real = jnp.expand_dims(jnp.arange(student.shape[-1]) < size, range(student.ndim - 1))
    ours, theirs = student / temperature, teacher / temperature
    difference = jnp.where(real, jax.nn.log_softmax(theirs) - jax.nn.log_softmax(ours), 0.0)
    return temperature**2 * (jax.nn.softmax(theirs) * difference).sum(axis=-1)


def kd_loss_sum(
    student: tuple[Logits, Float[Array, "B T D"]],
    teacher: tuple[Logits, Float[Array, "B T D2"]],
    weights: Float[Array, "B T"],
    temperature: float,
    size: int,
) -> Float[Array, ""]:
    """The weighted sum of `kd_divergence`; each side is how logits are made, and of what.

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
        return (kd_divergence(student[0](ours), teacher[0](theirs), temperature, size) * own).sum()

    return jax.lax.map(total, (chunks(student[1]), chunks(teacher[1]), chunks(weights))).sum()


def cosine_distance(one: Float[Array, "*b D"], other: Float[Array, "*b D"]) -> Float[Array, "*b"]:
    """1 - cosine, as torch's CosineEmbeddingLoss has it for pairs that belong together; finite for zeros."""
    one, other = one.astype(jnp.float32), other.astype(jnp.float32)
    squares = ((one**2).sum(-1) + _EPSILON) * ((other**2).sum(-1) + _EPSILON)
    return 1.0 - (one * other).sum(-1) / jnp.sqrt(squares)


def hidden_state_errors(student: Float[Array, "L B S D"], teacher: Float[Array, "L B S D"]) -> Float[Array, "B S"]:
    """Squared differences of every token: the mean over the width, the sum over the pairs of layers."""
    difference = student.astype(jnp.float32) - teacher.astype(jnp.float32)
    return (difference**2).mean(axis=-1).sum(axis=0)


def attention_score_errors(
    student: Float[Array, "B N S S"], teacher: Float[Array, "B N S S"], visible: Bool[Array, "B S S"]
) -> Float[Array, "B S"]:
    """Squared differences of the scores before the softmax, of one pair of layers: the mean over the heads, the sum
    over the keys that a token sees (the original sets the others to zero on both sides)."""
    difference = jnp.where(visible[:, None], student - teacher, 0.0)
    return (difference**2).mean(axis=1).sum(axis=-1)


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
