"""Span corruption (T5, arXiv:1910.10683, section 3.1.4): sentinels replace spans, the target is what they stand for.

The text is divided as in google-research/text-to-text-transfer-transformer:t5/data/preprocessors.py: both the dropped
and the remaining tokens are cut into the same number of spans, each cut uniform among all that leave no span empty, and
the spans alternate, a remaining one first. Sentinels count up in every example, and [SEP] ends input and target.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from bertjax.config.encoder_decoder import EncoderDecoderConfig
from bertjax.config.objectives.denoising import SpanCorruptionConfig
from bertjax.errors import UserError
from bertjax.objectives.base import FlopsTerm, Key, example_keys
from bertjax.objectives.denoising.layout import as_target, count_in_example, drop_tokens, put
from bertjax.objectives.masking.tokens import (
    LENGTH,
    ORDER,
    Tokens,
    Words,
    draw_uniform,
    locate_tokens,
    locate_words,
    sum_by_example,
    token_keys,
)
from bertjax.objectives.masking.whole_word import lookup_by_example, select_in_random_order
from bertjax.objectives.seq2seq import SequenceToSequence
from bertjax.types import Batch, Vocabulary


class SpanCorruption(SequenceToSequence):
    """An encoder-decoder that returns the dropped spans of a text."""

    loss_name = "span_corruption"
    config: SpanCorruptionConfig

    def __init__(self, config: SpanCorruptionConfig, model: EncoderDecoderConfig, vocabulary: Vocabulary):
        if len(vocabulary.sentinel_ids) < config.num_sentinels:
            raise UserError(
                f"the tokenizer has {len(vocabulary.sentinel_ids)} sentinels <extra_id_0>, ..., but "
                f"objective.span_corruption.num_sentinels={config.num_sentinels}"
            )
        super().__init__(config, model, vocabulary)
        self.vocabulary = vocabulary
        lengths = config.tower_lengths(config.seq_len, 1)
        source, target = (lengths[name] / config.seq_len for name in ("model", "decoder"))
        self.flops_terms = (FlopsTerm(model.encoder, 0.0, source), FlopsTerm(model.decoder, target, target))

    def corrupt(self, batch: Batch, key: Key, cursor: Array) -> Batch:
        """Replaces spans by sentinels and adds the target; sequences become as short as their longest can be."""
        keys, vocabulary = example_keys(jax.random.fold_in(key, cursor), batch), self.vocabulary
        tokens = locate_tokens(batch, keys, vocabulary, allow_mask_special=False, allow_mask_unk=True)
        noise = random_spans(self.config, tokens, vocabulary)
        starts = noise & ~jnp.pad(noise[:, :-1], ((0, 0), (1, 0)))
        sizes = self.config.tower_lengths(batch["input_ids"].shape[1], keys.shape[1])
        number = count_in_example(starts, tokens.segments) - 1
        sentinels = jnp.asarray(np.asarray(vocabulary.sentinel_ids, np.int32))[jnp.maximum(number, 0)]
        keep = ~noise | starts
        if vocabulary.cls_id == vocabulary.sep_id:  # no token of its own opens a text
            keep = keep & (tokens.positions > 0)
        ids = jnp.where(starts, sentinels, tokens.ids)
        target = self._target(tokens, noise, starts, sentinels, sizes["decoder"])
        corrupted = drop_tokens(batch, keep, sizes["model"], ids, vocabulary.pad_id)
        return super().corrupt({**corrupted, **target}, key, cursor)

    def _target(
        self,
        tokens: Tokens,
        noise: Bool[Array, "B S"],
        starts: Bool[Array, "B S"],
        sentinels: Int[Array, "B S"],
        size: int,
    ) -> Batch:
        """Returns, for every example, its spans, each after its sentinel, and the end token."""
        real = tokens.segments > 0
        ends = real & (tokens.segments != jnp.pad(tokens.segments[:, 1:], ((0, 0), (0, 1))))
        parts = ((starts, sentinels), (noise, tokens.ids), (ends, jnp.full_like(tokens.ids, self.vocabulary.sep_id)))
        total = sum(part.astype(jnp.int32) for part, _ in parts)
        slot = jnp.cumsum(total, axis=1) - total
        ids, segments = jnp.zeros((len(slot), size), jnp.int32), jnp.zeros((len(slot), size), jnp.int32)
        for part, values in parts:
            slots = jnp.where(part, slot, size)
            ids, segments = ids + put(slots, size, values), segments + put(slots, size, tokens.segments)
            slot = slot + part
        return as_target(jnp.where(segments > 0, ids, self.pad_id), segments)


def random_spans(config: SpanCorruptionConfig, tokens: Tokens, vocabulary: Vocabulary) -> Bool[Array, "B S"]:
    """Returns True for the tokens of the dropped spans.

    Args:
        config: density and mean length.
        tokens: the tokens.
        vocabulary: the tokenizer's vocabulary.
    """
    words = locate_words(tokens, vocabulary, whole=False)  # text alone: entry r is the r-th token of the text
    total = sum_by_example(tokens.candidates, tokens)
    tables = config.spans(np.arange(tokens.ids.shape[1] + 1))
    noise, spans = (jnp.asarray(table, jnp.int32)[total] for table in tables)
    before = jnp.cumsum(total, axis=1) - total
    base, of_noise, of_text = (lookup_by_example(each, words.example) for each in (before, noise, total - noise))
    rank = jnp.arange(tokens.ids.shape[1])[None, :] - base

    def cut(purpose: int, items: Int[Array, "B S"]) -> Bool[Array, "B S"]:
        """Returns True for the items, of ranks 0 to items - 1, that begin a span."""
        uniform = jnp.take_along_axis(draw_uniform(token_keys(tokens), purpose), words.first, axis=1)
        first = jnp.pad(_choose(words, uniform, rank < items - 1, spans - 1)[:, :-1], ((0, 0), (1, 0)))
        return (first | (rank == 0)) & (rank < items)

    noise_starts, text_starts = cut(ORDER, of_noise), cut(LENGTH, of_text)
    sequence, last = jnp.arange(len(rank))[:, None], rank.shape[1]
    # Span s of the text begins at its item `text_start[base + s]`, and after the last span at the end.
    text_span = count_in_example(text_starts, words.example) - 1
    slots = jnp.where(text_starts, base + text_span, last)
    text_start = of_text.at[sequence, slots].set(rank, mode="drop")
    following = base + count_in_example(noise_starts, words.example)  # the span of the text after that of each item
    position = rank + jnp.take_along_axis(text_start, jnp.minimum(following, last - 1), axis=1)
    slots = jnp.where(rank < of_noise, base + position, last)
    is_noise = jnp.zeros(rank.shape, bool).at[sequence, slots].set(True, mode="drop")
    return tokens.candidates & jnp.take_along_axis(is_noise, words.word_of_token, axis=1)


def _choose(
    words: Words, uniform: Float[Array, "B S"], allowed: Bool[Array, "B S"], number: Int[Array, "B E"]
) -> Bool[Array, "B S"]:
    """Chooses so many of the allowed words of every example, all subsets alike."""
    no_example = number.shape[1]
    allowed = allowed & (words.size > 0)
    candidates = words._replace(size=allowed.astype(jnp.int32), example=jnp.where(allowed, words.example, no_example))
    return select_in_random_order(candidates, uniform, candidates.size, number, passes=1)
