"""Cross-entropy over the vocabulary, shared by several objectives."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from bertjax.models.mesh import target_platform
from bertjax.models.model import Model
from bertjax.types import Sum, Vocabulary

_CHUNK_TOKENS = 8192
"""Tokens whose logits are held at once: they are large, and every token has a prediction."""


@jax.named_scope("head")
def vocab_loss_sums(
    name: str,
    logits: Float[Array, "*b V"],
    ids: Int[Array, "*b"],
    weights: Float[Array, "*b"],
    label_smoothing: float = 0.0,
    vocab_size: int | None = None,
) -> dict[str, Sum]:
    """Computes cross-entropy and accuracy of weighted predictions.

    A prediction is right when no logit is higher: an argmax would be a second, slow pass over the vocabulary.
    With label smoothing (arXiv:1706.03762, section 5.4) the right token has the probability 1 - e and every other one
    e / (V - 1), as in tensorflow/tensor2tensor and facebookresearch/fairseq:fairseq/criterions.

    Args:
        name: the name of the loss.
        logits: scores of the vocabulary, `*b` any leading axes.
        ids: the right tokens.
        weights: 0 = no prediction.
        label_smoothing: e.
        vocab_size: true size of the vocabulary, V, where the logits are padded.

    Returns:
        `name` and `name_accuracy`; with label smoothing also `name_nll`, the loss without it.
    """
    correct = _select_logits(logits, ids)
    highest = jax.lax.stop_gradient(logits.max(axis=-1))
    log_total = jnp.log(jnp.exp(logits - highest[..., None]).sum(axis=-1)) + highest
    is_right = (correct >= highest).astype(jnp.float32)
    count = weights.sum()
    nll = Sum(((log_total - correct) * weights).sum(), count)
    accuracy = {f"{name}_accuracy": Sum((is_right * weights).sum(), count)}
    if not label_smoothing:
        return {name: nll} | accuracy
    size = logits.shape[-1] if vocab_size is None else vocab_size
    total = jnp.where(jnp.arange(logits.shape[-1]) < size, logits, 0.0).sum(axis=-1)
    others = (size - 1) * log_total - (total - correct)  # sum of the negative log-probabilities of the other tokens
    smoothed = (1.0 - label_smoothing) * (log_total - correct) + label_smoothing / (size - 1) * others
    return {name: Sum((smoothed * weights).sum(), count), f"{name}_nll": nll} | accuracy


def _select_logits(logits: Float[Array, "*b V"], ids: Int[Array, "*b"]) -> Float[Array, "*b"]:
    """Returns the logits of the right tokens.

    On accelerators as a sum over the vocabulary, which is read anyway: the gradient of a gather would be a scatter into
    zeros, which fuses with nothing.
    """
    if target_platform() == "cpu":
        return jnp.take_along_axis(logits, ids[..., None], axis=-1)[..., 0]
    tokens = jax.lax.broadcasted_iota(ids.dtype, logits.shape, logits.ndim - 1)
    return jnp.where(tokens == ids[..., None], logits, 0.0).sum(axis=-1)


def chunked_vocab_loss_sums(
    name: str,
    model: Model,
    hidden_states: Float[Array, "B S D"],
    ids: Int[Array, "B S"],
    weights: Float[Array, "B S"],
    label_smoothing: float = 0.0,
) -> dict[str, Sum]:
    """Computes `vocab_loss_sums` of every token, a slice of the sequence at a time: [B, S, V] never exists.

    Args:
        name: the name of the loss.
        model: the model with the MLM head.
        hidden_states: the inputs of the head.
        ids: the right tokens.
        weights: 0 = no prediction.
        label_smoothing: as in `vocab_loss_sums`.
    """
    batch_size, length = ids.shape
    chunk_len = min(length, max(1, _CHUNK_TOKENS // batch_size))

    @jax.checkpoint
    def chunk_sums(chunk: tuple[Array, Array, Array]) -> dict[str, Sum]:
        logits, size = model.mlm_logits(chunk[0]), model.config.vocab_size
        return vocab_loss_sums(name, logits, *chunk[1:], label_smoothing, size)

    sums = jax.lax.map(chunk_sums, tuple(split_sequences(each, chunk_len) for each in (hidden_states, ids, weights)))
    return jax.tree.map(lambda values: values.sum(), sums)


def split_sequences(x: Array, width: int) -> Array:
    """Returns [chunks, B, width, ...]: the slices of sequences [B, S, ...], padded with zeros at the end."""
    padded = jnp.pad(x, [(0, 0), (0, -x.shape[1] % width), *[(0, 0)] * (x.ndim - 2)])
    return jnp.moveaxis(padded.reshape(len(x), -1, width, *x.shape[2:]), 1, 0)


def unigram_sums(name: str, nll: np.ndarray, ids: Int[Array, "*b"], weights: Float[Array, "*b"]) -> dict[str, Sum]:
    """Computes the loss of guessing by frequency, to compare a loss over the vocabulary with.

    Args:
        name: the name of that loss.
        nll: result of `unigram_nll` [V].
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
