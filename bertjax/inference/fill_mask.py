"""What a model puts behind masks: the quickest look at what it has learned."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from bertjax.errors import UserError
from bertjax.hf.pretrained import PretrainedModel
from bertjax.inference.mlm_inference import MaskMode, TokenBatch, choose_mask_mode, masked_token_logits

_SPELLINGS = re.compile(r"\[MASK\]|<mask>", re.IGNORECASE)
_SENTENCES = 32  # of a batch


class SpecialTokenizer(Protocol):
    """What is asked of a tokenizer: ids with its special pieces, the text of ids, the piece of every id."""

    tokens: list[str]
    mask_id: int

    @property
    def engine(self) -> Any: ...

    def encode_with_specials(self, text: str) -> list[int]: ...

    def decode(self, ids: Sequence[int]) -> str: ...


class MaskPrediction(NamedTuple):
    """A piece for a mask of a sentence and its probability."""

    piece: str
    probability: float


def fill_mask(
    model: PretrainedModel,
    tokenizer: SpecialTokenizer,
    sentences: Sequence[str],
    top: int = 5,
    two_streams: bool | None = None,
) -> list[list[MaskPrediction]]:
    """The `top` most likely pieces for the first mask of every sentence; see `fill_masks`."""
    return [masks[0] for masks in fill_masks(model, tokenizer, sentences, top, two_streams)]


def fill_masks(
    model: PretrainedModel,
    tokenizer: SpecialTokenizer,
    sentences: Sequence[str],
    top: int = 5,
    two_streams: bool | None = None,
) -> list[list[list[MaskPrediction]]]:
    """The `top` most likely pieces for every mask of every sentence, each mask by itself while all are hidden.

    A mask is written [MASK] or <mask>, whatever the model's piece is; `two_streams`: see `choose_mask_mode`. Raises
    `UserError` for a sentence without a mask or longer than the model reads, and for a model that cannot fill any.
    """
    how = choose_mask_mode(model, tokenizer.mask_id, two_streams)
    encode_sentences(tokenizer, sentences, model.config.max_position_embeddings)
    return [
        found
        for start in range(0, len(sentences), _SENTENCES)
        for found in _fill(model, tokenizer, sentences[start : start + _SENTENCES], top, how)
    ]


def encode_sentences(tokenizer: SpecialTokenizer, sentences: Sequence[str], most: int) -> list[list[int]]:
    """The ids of every sentence; `UserError` for one without a mask or of more than `most` pieces."""
    rows = [tokenizer.encode_with_specials(_spelt(tokenizer, sentence)) for sentence in sentences]
    for sentence, row in zip(sentences, rows, strict=True):
        if tokenizer.mask_id not in row:
            raise UserError(f"no {tokenizer.tokens[tokenizer.mask_id]} in {sentence!r}")
        if len(row) > most:
            raise UserError(f"a sentence of {len(row)} pieces is longer than the model reads: {sentence[:60]!r}...")
    return rows


def _spelt(tokenizer: SpecialTokenizer, sentence: str) -> str:
    """The sentence with this model's own piece for masks, however the user spelt it."""
    return _SPELLINGS.sub(lambda _: tokenizer.tokens[tokenizer.mask_id], sentence)


def _fill(
    model: PretrainedModel, tokenizer: SpecialTokenizer, sentences: Sequence[str], top: int, how: MaskMode
) -> list[list[list[MaskPrediction]]]:
    read = tokenizer.engine.encode_batch([_spelt(tokenizer, sentence) for sentence in sentences])
    # One padded batch, its length a multiple of 16, its masks and rows powers of two: few shapes to compile.
    longest = max(len(each.ids) for each in read)
    shape = _power_above(len(read)), min(-(-longest // 16) * 16, model.config.max_position_embeddings)
    rows = TokenBatch(
        np.full(shape, model.config.pad_token_id, np.int32), np.zeros(shape, np.int32), np.zeros(shape, np.int32)
    )
    for index, each in enumerate(itertools.chain(read, [read[-1]] * (shape[0] - len(read)))):
        for array, values in zip(rows, (each.ids, [1] * len(each.ids), each.type_ids), strict=True):
            array[index, : len(values)] = values
    hidden = (rows.input_ids == tokenizer.mask_id) & (rows.attention_mask > 0)
    positions = np.argsort(~hidden, axis=1, kind="stable")[:, : _power_above(int(hidden.sum(axis=1).max()))]
    logits = np.asarray(masked_token_logits(model, rows, hidden, positions.astype(np.int32), how))
    return [
        [_best(each, tokenizer, top) for each in logits[index, : hidden[index].sum()]]
        for index in range(len(sentences))
    ]


def _power_above(number: int) -> int:
    return 1 << (number - 1).bit_length()


def _best(logits: np.ndarray, tokenizer: SpecialTokenizer, top: int) -> list[MaskPrediction]:
    probabilities = np.asarray(jax.nn.softmax(logits))
    best = np.argsort(-probabilities, kind="stable")[:top]
    return [
        MaskPrediction(tokenizer.decode([int(i)]).strip() or tokenizer.tokens[i], float(probabilities[i])) for i in best
    ]
