"""Scores of sentences: log-likelihoods, and pseudo-log-likelihoods for models that read both sides.

pll          each token in turn is masked, and the log-probabilities of all are added up (arXiv:1910.14659)
within-word  the tokens after it in the same word are masked as well, because the end of a rare word reveals its
             beginning (arXiv:2305.10588)
likelihood   for models that read from left to right: log P of each token given those before it

Tokens of the text count, special tokens do not. In a causal model, and in one that predicts a masked token from the one
before it, the first token follows the token that separates texts, if the tokenizer has one; else it has no probability.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Array

from bertjax.data.tokenizer import Tokenizer
from bertjax.errors import UserError, require_one_of
from bertjax.hf.forward import max_input_length
from bertjax.hf.pretrained import PretrainedModel
from bertjax.inference.mlm_inference import MaskMode, choose_mask_mode, masked_token_log_probs
from bertjax.inference.text_batches import (
    TOKENS_PER_BATCH,
    TextEncoder,
    TokenizedTexts,
    batch_by_length,
    read_forwards,
    require_max_length,
)

MODES = ("pll", "within-word", "likelihood")
_MAX_SCORES = 2**26  # of a batch: positions times tokens of the vocabulary, 256 MiB


class Likelihoods(NamedTuple):
    """For n texts, the sum of log-probabilities in nats, float64 [n], and the number of tokens, int64 [n]."""

    totals: np.ndarray
    tokens: np.ndarray


def default_mode(model: PretrainedModel) -> str:
    """Returns the mode that suits the model."""
    return "likelihood" if model.config.causal else "pll"


def score_texts(
    model: PretrainedModel,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    mode: str | None = None,
    *,
    two_streams: bool | None = None,
    tokens: int = TOKENS_PER_BATCH,
    on_progress: Callable[[int, int], None] | None = None,
) -> Likelihoods:
    """Scores texts.

    Args:
        model: a model with an MLM head.
        tokenizer: its tokenizer.
        texts: the texts.
        mode: one of `MODES`; None: the mode that suits the model.
        two_streams: see `choose_mask_mode`.
        tokens: token slots of a batch.
        on_progress: called with the number of sequences done and their total.

    Raises:
        UserError: the mode does not suit the model, or a text is too long.
    """
    mode = default_mode(model) if mode is None else mode
    require_one_of("score", mode, MODES)
    model = read_forwards(model)
    encoded, limit = TextEncoder(tokenizer)(texts), max_input_length(model.config, model.heads)
    if mode == "likelihood":
        encoded = _prepend(encoded, tokenizer.cls_id)
        require_max_length(encoded.lengths, limit, texts)
        _require_causal(model)
        parts = causal_parts(model, encoded, tokens)
    else:
        if model.config.predicts_from_previous:
            encoded = _prepend(encoded, tokenizer.cls_id)
        require_max_length(encoded.lengths, limit, texts)
        mask_mode = choose_mask_mode(model, tokenizer.mask_id, two_streams)
        parts = _masked_parts(model, encoded, mask_mode, mode == "within-word", tokens)
    return sum_parts(parts, len(encoded), on_progress)


class PartScores(NamedTuple):
    """Log-probabilities [B, M] of a batch, still on the device; their `weights` [B, M]; the text of each sequence."""

    log_probs: Array
    weights: np.ndarray
    owners: np.ndarray
    done: int
    total: int


def _masked_parts(
    model: PretrainedModel, texts: TokenizedTexts, mode: MaskMode, within_word: bool, tokens: int
) -> Iterator[PartScores]:
    """Yields the batches of sequences in which one token of a text is masked."""
    flat = np.flatnonzero(texts.words >= 0)
    owners = np.searchsorted(texts.offsets, flat, side="right") - 1
    positions = flat - texts.offsets[owners]
    if model.config.predicts_from_previous:  # without a token before it, the first has no probability
        flat, owners, positions = (each[positions > 0] for each in (flat, owners, positions))
    max_batch_size, done = max(1, _MAX_SCORES // model.config.vocab_size), 0
    limit = max_input_length(model.config, model.heads)
    for batch in batch_by_length(texts.lengths[owners], limit, tokens, max_batch_size):
        members, position = owners[batch.members], positions[batch.members][:, None]
        masked = np.arange(batch.length) == position
        if within_word:
            words = texts.padded(texts.words, members, batch.length, -1)
            same_word = words == np.take_along_axis(words, position, axis=1)
            masked = same_word & (np.arange(batch.length) >= position)
        inputs = texts.token_batch(members, batch.length, model.config.pad_token_id)
        targets = texts.ids[flat[batch.members]][:, None]
        log_probs = masked_token_log_probs(model, inputs, masked, position.astype(np.int32), targets, mode)
        done += batch.num_real
        yield PartScores(log_probs, (np.arange(len(members)) < batch.num_real)[:, None], members, done, len(flat))


def causal_parts(model: PretrainedModel, texts: TokenizedTexts, tokens: int) -> Iterator[PartScores]:
    """Yields the batches of whole texts; the position before a token predicts it.

    Args:
        model: a causal model.
        texts: the texts; where `words` is -1, tokens do not count.
        tokens: token slots of a batch.
    """
    done, limit = 0, max_input_length(model.config, model.heads)
    tokens = min(tokens, max(1, _MAX_SCORES // model.config.vocab_size))
    for batch in batch_by_length(texts.lengths, limit, tokens):
        inputs = texts.token_batch(batch.members, batch.length, model.config.pad_token_id)
        is_real = np.arange(len(batch.members)) < batch.num_real
        weights = (texts.padded(texts.words, batch.members, batch.length, -1)[:, 1:] >= 0) & is_real[:, None]
        positions = np.broadcast_to(np.arange(batch.length - 1, dtype=np.int32), weights.shape)
        masked = np.zeros(inputs.input_ids.shape, bool)
        log_probs = masked_token_log_probs(model, inputs, masked, positions, inputs.input_ids[:, 1:], None)
        done += batch.num_real
        yield PartScores(log_probs, weights, batch.members, done, len(texts))


def sum_parts(
    parts: Iterator[PartScores], num_texts: int, on_progress: Callable[[int, int], None] | None
) -> Likelihoods:
    """Adds up each part while the device computes the next one.

    Args:
        parts: log-probabilities by batch.
        num_texts: n.
        on_progress: called with the number of sequences done and their total.
    """
    totals, tokens = np.zeros(num_texts), np.zeros(num_texts, np.int64)

    def add(part: PartScores) -> None:
        values = np.where(part.weights, np.asarray(part.log_probs, np.float64), 0.0).sum(axis=1)
        np.add.at(totals, part.owners, values)
        np.add.at(tokens, part.owners, part.weights.sum(axis=1))
        if on_progress is not None:
            on_progress(part.done, part.total)

    before = None
    for part in parts:
        if before is not None:
            add(before)
        before = part
    if before is not None:
        add(before)
    return Likelihoods(totals, tokens)


def _prepend(texts: TokenizedTexts, separator: int) -> TokenizedTexts:
    """Returns the texts, each with the separating token before it, unless it begins with a special token."""
    first = np.append(texts.words, 0)[texts.offsets[:-1]]
    is_bare = ((texts.lengths == 0) | (first >= 0)) & (separator >= 0)
    before = texts.offsets[:-1][is_bare]
    offsets = texts.offsets + np.concatenate([[0], np.cumsum(is_bare)])
    return TokenizedTexts(
        ids=np.insert(texts.ids, before, np.int32(separator)),
        types=np.insert(texts.types, before, np.int32(0)),
        words=np.insert(texts.words, before, np.int32(-1)),
        offsets=offsets,
    )


def _require_causal(model: PretrainedModel) -> None:
    if not model.config.causal:
        raise UserError("this model reads both sides of a word: its texts have no likelihood; take score=pll")
    if "mlm" not in model.heads:
        raise UserError("this model has no MLM head")
