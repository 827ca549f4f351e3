"""Predictions for the masks of sentences (`bertjax fill-mask`)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Int

from bertjax.data.tokenizer import Tokenizer
from bertjax.errors import UserError
from bertjax.hf.pretrained import PretrainedModel
from bertjax.inference.mlm_inference import MaskMode, choose_mask_mode, masked_token_logits
from bertjax.inference.text_batches import TextEncoder
from bertjax.tasks.batch_layout import next_power_of_two

_SPELLINGS = re.compile(r"\[MASK\]|<mask>", re.IGNORECASE)
_BATCH_SIZE = 32


class MaskPrediction(NamedTuple):
    """A token for a mask of a sentence and its probability."""

    token: str
    probability: float


def fill_masks(
    model: PretrainedModel,
    tokenizer: Tokenizer,
    sentences: Sequence[str],
    top_k: int = 5,
    two_streams: bool | None = None,
    special_tokens: bool = False,
) -> list[list[list[MaskPrediction]]]:
    """Predicts every mask of every sentence, each independently while all are masked.

    Probabilities are those among all tokens, as in the `fill-mask` pipeline of `transformers`, which also lists special
    tokens.

    Args:
        model: a model with an MLM head.
        tokenizer: its tokenizer.
        sentences: masks are written [MASK] or <mask>, whatever the model's mask token is.
        top_k: number of tokens per mask.
        two_streams: see `choose_mask_mode`.
        special_tokens: also list special tokens, such as [UNK].

    Returns:
        The most likely tokens, by sentence, mask and rank.

    Raises:
        UserError: a sentence has no mask or is too long, or the model cannot fill masks.
    """
    mode = choose_mask_mode(model, tokenizer.mask_id, two_streams)
    encode_sentences(tokenizer, sentences, model.config.max_position_embeddings)
    listed = np.arange(min(len(tokenizer.tokens), model.config.vocab_size))  # a model may have more rows than tokens
    if not special_tokens:
        listed = np.setdiff1d(listed, tokenizer.special_ids)
    return [
        predictions
        for start in range(0, len(sentences), _BATCH_SIZE)
        for predictions in _fill_batch(model, tokenizer, sentences[start : start + _BATCH_SIZE], top_k, mode, listed)
    ]


def encode_sentences(tokenizer: Tokenizer, sentences: Sequence[str], limit: int) -> list[list[int]]:
    """Returns the ids of every sentence.

    Args:
        tokenizer: the tokenizer.
        sentences: sentences with masks.
        limit: most tokens of a sentence.

    Raises:
        UserError: a sentence has no mask, or is too long.
    """
    encoded = [tokenizer.encode_with_specials(with_mask_token(tokenizer, sentence)) for sentence in sentences]
    for sentence, ids in zip(sentences, encoded, strict=True):
        if tokenizer.mask_id not in ids:
            raise UserError(f"no {tokenizer.tokens[tokenizer.mask_id]} in {sentence!r}")
        if len(ids) > limit:
            raise UserError(f"a sentence of {len(ids)} tokens is longer than the model reads: {sentence[:60]!r}...")
    return encoded


def with_mask_token(tokenizer: Tokenizer, sentence: str) -> str:
    """Returns the sentence with this tokenizer's mask token."""
    return _SPELLINGS.sub(lambda _: tokenizer.tokens[tokenizer.mask_id], sentence)


def _fill_batch(
    model: PretrainedModel,
    tokenizer: Tokenizer,
    sentences: Sequence[str],
    top_k: int,
    mode: MaskMode,
    listed: np.ndarray,
) -> list[list[list[MaskPrediction]]]:
    texts = TextEncoder(tokenizer)([with_mask_token(tokenizer, sentence) for sentence in sentences])
    # Few shapes to compile: the length is a multiple of 16, the numbers of sentences and masks are powers of two.
    length = min(-(-int(texts.lengths.max()) // 16) * 16, model.config.max_position_embeddings)
    members = np.minimum(np.arange(next_power_of_two(len(texts))), len(texts) - 1)
    batch = texts.token_batch(members, length, model.config.pad_token_id)
    masked = (batch.input_ids == tokenizer.mask_id) & (batch.attention_mask > 0)
    num_positions = next_power_of_two(int(masked.sum(axis=1).max()))
    positions = np.argsort(~masked, axis=1, kind="stable")[:, :num_positions].astype(np.int32)
    logits = np.asarray(masked_token_logits(model, batch, masked, positions, mode))
    return [
        [_most_likely(each, tokenizer, top_k, listed) for each in logits[index, : masked[index].sum()]]
        for index in range(len(sentences))
    ]


def _most_likely(
    logits: np.ndarray, tokenizer: Tokenizer, top_k: int, listed: Int[np.ndarray, "N"]
) -> list[MaskPrediction]:
    probabilities = np.asarray(jax.nn.softmax(logits))
    best = listed[np.argsort(-probabilities[listed], kind="stable")[:top_k]]
    return [
        MaskPrediction(tokenizer.decode([int(i)]).strip() or tokenizer.tokens[i], float(probabilities[i])) for i in best
    ]
