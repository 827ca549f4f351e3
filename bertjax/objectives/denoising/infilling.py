"""Text infilling and sentence permutation (BART, arXiv:1910.13461, section 2.2): the target is the original text.

Spans follow facebookresearch/fairseq:fairseq/data/denoising_dataset.py with `mask_length=span-poisson` and
`replace_length=1`: lengths are drawn until they sum to the budget, which cuts the last one; every span longer than 0
begins at another random token, ends with the text at the latest, and may cover the beginning of others; spans of
length 0 then insert mask tokens at random positions. One difference: no text gets longer than it was, which can only
concern texts of a few tokens.
"""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from bertjax.config.fields import setting
from bertjax.objectives.base import FlopsTerm, Key, example_keys
from bertjax.objectives.denoising.layout import WHOLE_TEXTS, as_target, count_in_example, drop_tokens
from bertjax.objectives.masking.selection import RandomOrder, lookup_by_example, select_in_random_order
from bertjax.objectives.masking.tokens import (
    DECISION,
    LENGTH,
    ORDER,
    SAMPLE,
    Tokens,
    Words,
    draw_uniform,
    locate_tokens,
    locate_words,
    sum_by_example,
    token_keys,
    words_from_starts,
)
from bertjax.objectives.seq2seq import EncoderDecoderObjective
from bertjax.types import Batch, Vocabulary

_LEAST_PROBABILITY = 1e-7  # as in fairseq: longer spans are left out


@dataclasses.dataclass(frozen=True, kw_only=True)
class Infilling(EncoderDecoderObjective, group="objective.infilling"):
    """An encoder-decoder that rebuilds a text from one with masked spans and permuted sentences, by default as BART."""

    title = "text infilling"
    loss_name = "infilling"
    example_formats = WHOLE_TEXTS
    loss_titles: ClassVar[dict[str, str]] = {"infilling": "Original text"}

    mask_rate: float = setting(
        0.3, at_least=0.0, below=1.0, help="Sum of the lengths of the masked spans, as a share of the tokens."
    )
    mean_span: float = setting(
        3.0,
        above=0.0,
        at_most=20.0,
        help="Mean of the Poisson distribution of span lengths; each span becomes one mask token, a span of length 0 "
        "inserts one.",
    )
    permute_sentences: bool = setting(
        True, help="Put the sentences, which full stops end, into a random order before masking."
    )

    @property
    def summary(self) -> str:
        permuted = " and sentence permutation" if self.permute_sentences else ""
        return f"{self.title}{permuted} ({self.mask_rate:.0%} of the tokens, spans of {self.mean_span:g})"

    @property
    def flops_terms(self) -> tuple[FlopsTerm, ...]:
        source = 1.0 - self.mask_rate + self.mask_rate / max(self.mean_span, 1.0)
        return (FlopsTerm(self.seq2seq_model.encoder, 0.0, source), FlopsTerm(self.seq2seq_model.decoder, 1.0))

    def corrupt(self, batch: Batch, key: Key, cursor: Array) -> Batch:
        """Permutes sentences, masks spans and adds the original text as target."""
        keys, vocabulary = example_keys(jax.random.fold_in(key, cursor), batch), self.vocabulary
        tokens = locate_tokens(batch, keys, vocabulary, allow_mask_special=False, allow_mask_unk=True)
        ids = tokens.ids
        if self.permute_sentences:
            ids = permute_sentences(tokens, vocabulary)
        keep, ids = fill_in(self, tokens, ids, vocabulary)
        corrupted = drop_tokens(batch, keep, ids.shape[1], ids, vocabulary.pad_id)
        return super().corrupt({**corrupted, **as_target(tokens.ids, tokens.segments)}, key, cursor)


def permute_sentences(tokens: Tokens, vocabulary: Vocabulary) -> Int[Array, "B S"]:
    """Returns the ids with the sentences of every example in a random order; a full stop ends a sentence."""
    stops = jnp.isin(tokens.ids, jnp.asarray(vocabulary.full_stop_ids, jnp.int32)) & tokens.candidates

    def previous(flags: Bool[Array, "B S"]) -> Bool[Array, "B S"]:
        return jnp.pad(flags[:, :-1], ((0, 0), (1, 0)))

    ends = stops & ~previous(stops)  # of several full stops the first one
    sentences = words_from_starts(tokens, tokens.candidates & (previous(ends) | ~previous(tokens.candidates)))
    noise = jnp.take_along_axis(draw_uniform(token_keys(tokens), DECISION), sentences.first, axis=1)
    order = RandomOrder(sentences, noise)
    size = order.sort(sentences.size)
    start = order.unsort(jnp.cumsum(size, axis=1) - size)  # of each sentence in the new text, specials not counted
    words = locate_words(tokens, vocabulary, whole=False)
    sentence = jnp.take_along_axis(sentences.word_of_token, words.first, axis=1)
    old_start, new_start = (
        jnp.take_along_axis(each, sentence, axis=1) for each in (jnp.cumsum(sentences.size, axis=1), start)
    )
    index = jnp.arange(tokens.ids.shape[1])[None, :]
    moved = index - (old_start - jnp.take_along_axis(sentences.size, sentence, axis=1)) + new_start
    sequence = jnp.arange(len(moved))[:, None]
    text = jnp.take_along_axis(tokens.ids, words.first, axis=1)
    permuted = text.at[sequence, jnp.where(words.size > 0, moved, index.shape[1])].set(text, mode="drop")
    return jnp.where(tokens.candidates, jnp.take_along_axis(permuted, words.word_of_token, axis=1), tokens.ids)


def fill_in(
    config: Infilling, tokens: Tokens, ids: Int[Array, "B S"], vocabulary: Vocabulary
) -> tuple[Bool[Array, "B S"], Int[Array, "B S"]]:
    """Returns the slots that the corrupted text takes, and its ids there.

    Args:
        config: rate and mean length.
        tokens: the tokens of the original text.
        ids: the ids of the text, sentences permuted.
        vocabulary: the tokenizer's vocabulary.
    """
    words = locate_words(tokens, vocabulary, whole=False)  # text alone: entry r is the r-th token of the text
    is_text, text = words.size > 0, jnp.take_along_axis(ids, words.first, axis=1)
    keys = token_keys(tokens)
    order_noise, length_noise, insert_noise = (
        jnp.take_along_axis(draw_uniform(keys, purpose), words.first, axis=1) for purpose in (ORDER, LENGTH, SAMPLE)
    )
    total = sum_by_example(tokens.candidates, tokens)
    base = lookup_by_example(jnp.cumsum(total, axis=1) - total, words.example)
    lengths, inserts = draw_lengths(config, words, length_noise, total)
    lengths = RandomOrder(words, order_noise).unsort(lengths)  # now of the span that begins at each token
    index = jnp.broadcast_to(jnp.arange(text.shape[1], dtype=jnp.int32)[None, :], text.shape)
    last = base + lookup_by_example(total, words.example) - 1
    reach = jax.lax.cummax(jnp.where(lengths > 0, jnp.minimum(index + lengths - 1, last), -1), axis=1)
    covered = jnp.pad(reach[:, :-1], ((0, 0), (1, 0)), constant_values=-1) >= index
    remains = is_text & ~covered
    text = jnp.where(lengths > 0, vocabulary.mask_id, text)
    number = count_in_example(remains, words.example)
    examples = jnp.arange(total.shape[1])[None, None, :]
    remaining = ((words.example[:, :, None] == examples) & remains[:, :, None]).sum(axis=1, dtype=jnp.int32)
    inserts = jnp.minimum(inserts, total - remaining)
    return _insert(tokens, words, insert_noise, remains, number, text, remaining, inserts, base, vocabulary)


def draw_lengths(
    config: Infilling, words: Words, noise: Array, total: Int[Array, "B E"]
) -> tuple[Int[Array, "B S"], Int[Array, "B E"]]:
    """Draws Poisson lengths until they sum to the budget.

    Args:
        config: rate and mean length.
        words: the tokens of the text.
        noise: uniform in [0, 1), one number per token [B, S]: enough for as many lengths.
        total: tokens of the text of every example.

    Returns:
        The lengths in the order of the draws, 0 after the last one, and the number of lengths 0 before the last one.
    """
    table = np.cumsum(span_probabilities(config.mean_span))
    drawn = jnp.searchsorted(jnp.asarray(table / table[-1], jnp.float32), noise, side="right").astype(jnp.int32)
    drawn = jnp.where(words.size > 0, jnp.minimum(drawn, len(table) - 1), 0)
    number = np.ceil(np.arange(noise.shape[1] + 1) * config.mask_rate).astype(np.int32)
    budget = lookup_by_example(jnp.asarray(number)[total], words.example)
    summed = RandomOrder(words, jnp.zeros_like(noise)).cumulative(drawn)
    is_used = (words.size > 0) & (summed - drawn < budget)
    examples = jnp.arange(total.shape[1])[None, None, :]
    is_insert = (is_used & (drawn == 0))[:, :, None] & (words.example[:, :, None] == examples)
    return jnp.where(is_used, jnp.minimum(drawn, budget - (summed - drawn)), 0), is_insert.sum(axis=1, dtype=jnp.int32)


def span_probabilities(mean: float) -> np.ndarray:
    """Returns the Poisson probabilities of lengths 0, 1, ..., float64 [lengths], up to the first one below 1e-7."""
    lengths = range(128)
    shares = [math.exp(-mean + length * math.log(mean) - math.lgamma(length + 1)) for length in lengths]
    count = next((n for n, share in enumerate(shares) if share < _LEAST_PROBABILITY and n > mean), 127) + 1
    return np.array(shares[:count])


def _insert(
    tokens: Tokens,
    words: Words,
    noise: Array,
    remains: Bool[Array, "B S"],
    number: Int[Array, "B S"],
    text: Int[Array, "B S"],
    remaining: Int[Array, "B E"],
    inserts: Int[Array, "B E"],
    base: Int[Array, "B S"],
    vocabulary: Vocabulary,
) -> tuple[Bool[Array, "B S"], Int[Array, "B S"]]:
    """Closes the gaps of every example and inserts mask tokens; each set of positions is as likely as any other."""
    index = jnp.arange(text.shape[1])[None, :]
    length = lookup_by_example(remaining + inserts, words.example)
    is_slot = (words.size > 0) & (index - base < length)
    slots = words._replace(size=is_slot.astype(jnp.int32), example=jnp.where(is_slot, words.example, inserts.shape[1]))
    inserted = select_in_random_order(slots, noise, slots.size, inserts, passes=1)
    sequence, end = jnp.arange(len(text))[:, None], text.shape[1]
    moved = jnp.zeros_like(text).at[sequence, jnp.where(remains, base + number - 1, end)].set(text, mode="drop")
    source = base + count_in_example(is_slot & ~inserted, words.example) - 1
    filled = jnp.take_along_axis(moved, jnp.clip(source, 0, end - 1), axis=1)
    filled = jnp.where(inserted, vocabulary.mask_id, filled)
    keep, ids = (jnp.take_along_axis(each, words.word_of_token, axis=1) for each in (is_slot, filled))
    return ~tokens.candidates | keep, jnp.where(tokens.candidates, ids, tokens.ids)
