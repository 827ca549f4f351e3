"""What a model puts behind a mask: the quickest look at what it has learned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import jax
import numpy as np

from bertjax.hub.pretrained import PretrainedModel
from bertjax.types import UserError


class SpecialTokenizer(Protocol):
    """What is asked of a tokenizer: ids with its special pieces, the text of ids, the piece of every id."""

    pieces: list[str]
    mask_id: int

    def encode_with_specials(self, text: str) -> list[int]: ...

    def decode(self, ids: Sequence[int]) -> str: ...


class Filling(NamedTuple):
    """A piece for the first mask of a sentence and its probability."""

    piece: str
    probability: float


def fill_mask(
    model: PretrainedModel, tokenizer: SpecialTokenizer, sentences: Sequence[str], top: int = 5
) -> list[list[Filling]]:
    """The `top` most likely pieces for the first mask piece of every sentence.

    Raises `UserError` for a sentence without a mask, or longer than the model reads.
    """
    rows = masked_rows(tokenizer, sentences, model.config.max_position_embeddings)
    if not rows:
        return []
    # One padded batch, its length a multiple of 16: few shapes to compile.
    length = min(-(-max(map(len, rows)) // 16) * 16, model.config.max_position_embeddings)
    ids = np.full((len(rows), length), model.config.pad_token_id, np.int32)
    real = np.zeros_like(ids)
    for index, row in enumerate(rows):
        ids[index, : len(row)], real[index, : len(row)] = row, 1
    logits = np.asarray(model(ids, attention_mask=real).logits)
    return [_best(logits[index, row.index(tokenizer.mask_id)], tokenizer, top) for index, row in enumerate(rows)]


def masked_rows(tokenizer: SpecialTokenizer, sentences: Sequence[str], most: int) -> list[list[int]]:
    """The ids of every sentence; `UserError` for one without a mask or of more than `most` pieces."""
    rows = [tokenizer.encode_with_specials(sentence) for sentence in sentences]
    for sentence, row in zip(sentences, rows, strict=True):
        if tokenizer.mask_id not in row:
            raise UserError(f"no {tokenizer.pieces[tokenizer.mask_id]} in {sentence!r}")
        if len(row) > most:
            raise UserError(f"a sentence of {len(row)} pieces is longer than the model reads: {sentence[:60]!r}...")
    return rows


def _best(logits: np.ndarray, tokenizer: SpecialTokenizer, top: int) -> list[Filling]:
    probabilities = np.asarray(jax.nn.softmax(logits))
    best = np.argsort(-probabilities, kind="stable")[:top]
    return [Filling(tokenizer.decode([int(i)]).strip() or tokenizer.pieces[i], float(probabilities[i])) for i in best]
