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
from bertjax.objectives.vocab_loss import split_sequences

_CHUNK_TOKENS = 4096
"""Tokens whose two sets of logits a device holds at once."""

_CHUNK_SCORES = 2**27
"""Attention scores of one network that a device holds at once."""

_EPSILON = 1e-12

Logits = Callable[[Array], Array]


def kd_divergence(
    student: Float[Array, "*b V"], teacher: Float[Array, "*b V"], temperature: float, size: int
) -> Float[Array, "*b"]:
    """Computes T^2 KL(softmax(teacher / T) || softmax(student / T)) per prediction.

    T^2 keeps the scale of the gradient when T changes (huggingface/transformers: distillation/distiller.py).

    Args:
        student: logits of the student.
        teacher: logits of the teacher.
        temperature: T.
        size: tokens of the vocabulary; the rest of V is padding.
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
    """Computes the weighted sum of `kd_divergence`.

    Logits are computed, and recomputed for gradients, a slice of the sequences at a time: [B, T, V] never exists.

    Args:
        student: the function from states to logits, and the states.
        teacher: the same of the teacher.
        weights: 0 = no prediction.
        temperature: T.
        size: tokens of the vocabulary.
    """
    batch_size, length = weights.shape
    width = min(length, max(1, _CHUNK_TOKENS * num_batch_shards() // batch_size))

    @jax.checkpoint
    def total(chunk: tuple[Array, Array, Array]) -> Array:
        ours, theirs, weight = chunk
        return (kd_divergence(student[0](ours), teacher[0](theirs), temperature, size) * weight).sum()

    chunks = tuple(split_sequences(each, width) for each in (student[1], teacher[1], weights))
    return jax.lax.map(total, chunks).sum()


def cosine_distance(one: Float[Array, "*b D"], other: Float[Array, "*b D"]) -> Float[Array, "*b"]:
    """Returns 1 - cosine, like torch's CosineEmbeddingLoss for equal pairs, and finite for zeros."""
    one, other = one.astype(jnp.float32), other.astype(jnp.float32)
    squares = ((one**2).sum(-1) + _EPSILON) * ((other**2).sum(-1) + _EPSILON)
    return 1.0 - (one * other).sum(-1) / jnp.sqrt(squares)


def hidden_state_errors(student: Float[Array, "L B S D"], teacher: Float[Array, "L B S D"]) -> Float[Array, "B S"]:
    """Returns squared differences per token: the mean over D, the sum over L pairs of layers."""
    difference = student.astype(jnp.float32) - teacher.astype(jnp.float32)
    return (difference**2).mean(axis=-1).sum(axis=0)


def attention_score_errors(
    student: Float[Array, "B N S S"], teacher: Float[Array, "B N S S"], visible: Bool[Array, "B S S"]
) -> Float[Array, "B S"]:
    """Computes squared differences of the scores before the softmax, per token of one pair of layers.

    The mean over the heads and the sum over the visible keys (the original sets the others to zero on both sides).

    Args:
        student: scores of the student.
        teacher: scores of the teacher.
        visible: True where a token (second axis) attends to another (third).
    """
    difference = jnp.where(visible[:, None], student - teacher, 0.0)
    return (difference**2).mean(axis=1).sum(axis=-1)


def relation_heads(x: Float[Array, "B S N H"], heads: int) -> Float[Array, "R B S W"]:
    """Concatenates the vectors of all attention heads and splits them into R relation heads of width W."""
    return jnp.moveaxis(x.reshape(*x.shape[:2], heads, -1), 2, 0)


def relation_divergence(
    student: tuple[Float[Array, "R B S W"], Float[Array, "R B S W"]],
    teacher: tuple[Float[Array, "R B S W2"], Float[Array, "R B S W2"]],
    visible: Bool[Array, "B S S"],
) -> Float[Array, "B S"]:
    """Computes KL(softmax(a b / sqrt(W)) of the teacher || that of the student) per token, the mean over the heads.

    A few heads at a time, in the backward pass too: with 48 of them the scores of all would be by far the largest array
    of the step.

    Args:
        student: (a, b), such as queries and keys, in R relation heads of width W.
        teacher: the same of the teacher.
        visible: True where a token (second axis) attends to another (third).
    """
    heads, batch_size, length = student[0].shape[:3]

    @jax.checkpoint
    def one_head(sides: tuple) -> Array:
        ours, theirs = (_scaled_product(*side) for side in sides)
        return distribution_divergence(ours, theirs, visible)

    at_once = min(heads, max(1, _CHUNK_SCORES * num_batch_shards() // (batch_size * length * length)))
    return jax.lax.map(one_head, (student, teacher), batch_size=at_once).mean(axis=0)


def distribution_divergence(
    student: Float[Array, "*h B S S"], teacher: Float[Array, "*h B S S"], visible: Bool[Array, "B S S"]
) -> Float[Array, "*h B S"]:
    """Computes KL(teacher || student) of the softmax over the visible keys; finite where nothing is visible.

    Args:
        student: scores before the softmax.
        teacher: the same of the teacher.
        visible: True where a token (second axis) attends to another (third).
    """
    is_visible = jnp.expand_dims(visible, range(student.ndim - visible.ndim))
    lowest = jnp.finfo(jnp.float32).min
    ours, theirs = (jax.nn.log_softmax(jnp.where(is_visible, scores, lowest)) for scores in (student, teacher))
    return (jnp.exp(theirs) * jnp.where(is_visible, theirs - ours, 0.0)).sum(axis=-1)


def _scaled_product(a: Float[Array, "B S W"], b: Float[Array, "B S W"]) -> Float[Array, "B S S"]:
    scores = jnp.einsum("bqw,bkw->bqk", a, b, preferred_element_type=jnp.float32)
    return scores / math.sqrt(a.shape[-1])
