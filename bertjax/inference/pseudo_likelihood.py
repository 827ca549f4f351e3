"""How likely a model finds a sentence: log-likelihoods, and pseudo-log-likelihoods where it reads both sides.

pll          each token in turn is hidden, and the log-probabilities of all are added up (arXiv:1910.14659)
within-word  the tokens behind it in the same word are hidden, too: else the end of a rare word gives its beginning away
             (arXiv:2305.10588)
likelihood   of models that read from left to right: log P of each token after those before it

Tokens of the text count, special pieces do not. The first token of a causal model follows the piece that stands between
its texts, where the tokenizer has one; else it has no probability.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Array

from bertjax.errors import UserError, require_one_of
from bertjax.hf.inputs import max_input_length
from bertjax.hf.pretrained import PretrainedModel
from bertjax.inference.mlm_inference import MaskMode, choose_mask_mode, masked_token_log_probs
from bertjax.inference.text_batches import (
    EncodingTokenizer,
    TextEncoder,
    TokenizedTexts,
    batch_by_length,
    require_max_length,
)

MODES = ("pll", "within-word", "likelihood")
TOKENS = 8192
_MOST_SCORES = 2**26  # of a batch: places times pieces of the vocabulary, 256 MiB


class Likelihoods(NamedTuple):
    """Of n texts: the sum of log-probabilities in nats float64 [n], and of how many tokens int64 [n]."""

    totals: np.ndarray
    tokens: np.ndarray


def default_mode(model: PretrainedModel) -> str:
    """What a model of this kind is scored by."""
    return "likelihood" if model.config.causal else "pll"


def score_texts(
    model: PretrainedModel,
    tokenizer: EncodingTokenizer,
    texts: Sequence[str],
    mode: str | None = None,
    *,
    two_streams: bool | None = None,
    tokens: int = TOKENS,
    progress: Callable[[int, int], None] | None = None,
) -> Likelihoods:
    """Scores texts by one of `MODES` (None: what suits the model); `progress` is told (done, of how many) forward rows.

    `two_streams`: see `choose_mask_mode`. Raises `UserError` for a text that is too long.
    """
    mode = default_mode(model) if mode is None else mode
    require_one_of("score", mode, MODES)
    model = _forwards(model)
    read = TextEncoder(tokenizer)(texts)
    if mode == "likelihood":
        read = _behind_boundary(read, tokenizer.cls_id)
        require_max_length(model, read, texts)
        parts = _causal_parts(_require_causal(model), read, tokens)
    else:
        require_max_length(model, read, texts)
        how = choose_mask_mode(model, tokenizer.mask_id, two_streams)
        parts = _masked_parts(model, read, how, mode == "within-word", tokens)
    return _summed(parts, len(read), progress)


class _Part(NamedTuple):
    """Log-probabilities [R, M], still on their way; `weights` [R, M] says which count; of the texts `owners` [R]."""

    log_probs: Array
    weights: np.ndarray
    owners: np.ndarray
    done: int
    total: int


def _masked_parts(
    model: PretrainedModel, texts: TokenizedTexts, how: MaskMode, within_word: bool, tokens: int
) -> Iterator[_Part]:
    """A row for each token of the texts, in which it is hidden."""
    flat = np.flatnonzero(texts.words >= 0)
    owners = np.searchsorted(texts.offsets, flat, side="right") - 1
    places = flat - texts.offsets[owners]
    most_rows, done = max(1, _MOST_SCORES // model.config.vocab_size), 0
    longest = max_input_length(model.config, model.heads)
    for batch in batch_by_length(texts.lengths[owners], longest, tokens, most_rows):
        own, place = owners[batch.members], places[batch.members][:, None]
        hidden = np.arange(batch.length) == place
        if within_word:
            words = texts.padded(texts.words, own, batch.length, -1)
            same = words == np.take_along_axis(words, place, axis=1)
            hidden = same & (np.arange(batch.length) >= place)
        rows = texts.rows(own, batch.length, model.config.pad_token_id)
        wanted = texts.ids[flat[batch.members]][:, None]
        found = masked_token_log_probs(model, rows, hidden, place.astype(np.int32), wanted, how)
        done += batch.real
        yield _Part(found, (np.arange(len(own)) < batch.real)[:, None], own, done, len(flat))


def _causal_parts(model: PretrainedModel, texts: TokenizedTexts, tokens: int) -> Iterator[_Part]:
    """A row for each text; a token's probability stands at the token before it."""
    done, longest = 0, max_input_length(model.config, model.heads)
    for batch in batch_by_length(texts.lengths, longest, min(tokens, max(1, _MOST_SCORES // model.config.vocab_size))):
        rows = texts.rows(batch.members, batch.length, model.config.pad_token_id)
        real = np.arange(len(batch.members)) < batch.real
        weights = (texts.padded(texts.words, batch.members, batch.length, -1)[:, 1:] >= 0) & real[:, None]
        places = np.broadcast_to(np.arange(batch.length - 1, dtype=np.int32), weights.shape)
        nothing = np.zeros(rows.input_ids.shape, bool)
        found = masked_token_log_probs(model, rows, nothing, places, rows.input_ids[:, 1:], None)
        done += batch.real
        yield _Part(found, weights, batch.members, done, len(texts))


def _summed(parts: Iterator[_Part], texts: int, progress: Callable[[int, int], None] | None) -> Likelihoods:
    """Adds up, one part behind the device, which is busy with the next meanwhile."""
    totals, tokens = np.zeros(texts), np.zeros(texts, np.int64)

    def add(part: _Part) -> None:
        values = np.where(part.weights, np.asarray(part.log_probs, np.float64), 0.0).sum(axis=1)
        np.add.at(totals, part.owners, values)
        np.add.at(tokens, part.owners, part.weights.sum(axis=1))
        if progress is not None:
            progress(part.done, part.total)

    before = None
    for part in parts:
        if before is not None:
            add(before)
        before = part
    if before is not None:
        add(before)
    return Likelihoods(totals, tokens)


def _behind_boundary(texts: TokenizedTexts, boundary: int) -> TokenizedTexts:
    """The texts, each with the piece in front that stands between texts, unless one of its own is there."""
    first = np.append(texts.words, 0)[texts.offsets[:-1]]
    bare = ((texts.lengths == 0) | (first >= 0)) & (boundary >= 0)
    before = texts.offsets[:-1][bare]
    offsets = texts.offsets + np.concatenate([[0], np.cumsum(bare)])
    return TokenizedTexts(
        ids=np.insert(texts.ids, before, np.int32(boundary)),
        types=np.insert(texts.types, before, np.int32(0)),
        words=np.insert(texts.words, before, np.int32(-1)),
        offsets=offsets,
    )


def _require_causal(model: PretrainedModel) -> PretrainedModel:
    if not model.config.causal:
        raise UserError("this model reads both sides of a word: its texts have no likelihood; take score=pll")
    if "mlm" not in model.heads:
        raise UserError("this model has no head for words")
    return model


def _forwards(model: PretrainedModel) -> PretrainedModel:
    """The same, where half of a batch would be read backwards (XLNet's bi_data)."""
    if not model.config.bi_data:
        return model
    return dataclasses.replace(model, config=dataclasses.replace(model.config, bi_data=False))
