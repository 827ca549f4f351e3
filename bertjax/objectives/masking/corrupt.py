"""The corruption of a batch: select tokens, replace them, gather the predictions."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from bertjax.objectives.base import Key, example_keys
from bertjax.objectives.masking.ngrams import (
    sample_lengths,
    sample_ngram_lengths,
    select_random_ngrams,
    select_window_ngrams,
)
from bertjax.objectives.masking.num_predictions import example_num_predictions, mask_rate_at, max_sequence_predictions
from bertjax.objectives.masking.replace import never_masked_ids, sample_replacements
from bertjax.objectives.masking.settings import Masking
from bertjax.objectives.masking.spans import select_spans, span_length_probabilities
from bertjax.objectives.masking.tokens import (
    LENGTH,
    ORDER,
    Tokens,
    Words,
    draw_uniform,
    find_runs,
    locate_tokens,
    locate_words,
    token_keys,
)
from bertjax.objectives.masking.whole_word import (
    WHOLE_WORD_PASSES,
    favor_rare_tokens,
    sample_with_replacement,
    select_in_random_order,
)
from bertjax.types import Batch, Vocabulary

Rate = float | Float[Array, ""]


def mask_batch(batch: Batch, key: Key, cursor: Array, config: Masking, vocabulary: Vocabulary) -> Batch:
    """Masks a batch with the keys of dynamic masking (new ones at every cursor) or static masking (repeated ones).

    Args:
        batch: a global batch.
        key: the key of the run.
        cursor: the index of the batch.
        config: the masking.
        vocabulary: the tokenizer's vocabulary.

    Returns:
        The batch of `mask_tokens` with `max_sequence_predictions` predictions per sequence.
    """
    if config.dynamic:
        keys = example_keys(jax.random.fold_in(key, cursor), batch)
    else:  # the same draw of an example is masked in the same way
        keys = example_keys(key, batch, copies="example_draws")
    predictions = max_sequence_predictions(config, batch["input_ids"].shape[1], keys.shape[1])
    return mask_tokens(batch, keys, config, vocabulary, predictions, cursor)


def mask_tokens(
    batch: Batch,
    keys: Array,
    config: Masking,
    vocabulary: Vocabulary,
    predictions: int,
    cursor: Array | None = None,
) -> dict[str, Array]:
    """Masks a batch with given keys.

    Args:
        batch: a batch.
        keys: the keys of the examples, [B, E].
        config: the masking.
        vocabulary: the tokenizer's vocabulary.
        predictions: M, the slots for predictions per sequence.
        cursor: the index of the batch, for a mask rate that changes; None = the first rate.

    Returns:
        The batch with masked `input_ids` and, in addition, `original_ids` [B, S], `masked_positions` and `masked_ids`
        [B, M] int32 (ascending; padded with position 0 and id 0), and `masked_weights` [B, M] float32 (1; more where a
        token was drawn more than once).
    """
    allowed = config.allow_mask_special, config.allow_mask_unk
    tokens = locate_tokens(batch, keys, vocabulary, *allowed, never_masked_ids(config, vocabulary))
    words = locate_words(tokens, vocabulary, _needs_words(config))
    times = _select_tokens(tokens, words, config, vocabulary, mask_rate_at(config, cursor))
    # Every masked token is predicted: where a random number exceeds the slots, the end of the sequence stays unmasked.
    times = jnp.where(jnp.cumsum(times > 0, axis=1) <= predictions, times, 0)
    positions, exists = selected_positions(times > 0, predictions)
    deciding = jnp.take_along_axis(_deciding_positions(times > 0, tokens, words, config), positions, axis=1)
    replacements = sample_replacements(tokens, positions, deciding, config, vocabulary)
    sequence, length = jnp.arange(len(positions))[:, None], times.shape[1]
    ids = jnp.take_along_axis(tokens.ids, positions, axis=1)
    target = jnp.where(exists > 0, positions, length)
    return {
        **batch,
        "original_ids": tokens.ids,
        "input_ids": tokens.ids.at[sequence, target].set(replacements, mode="drop"),
        "masked_positions": positions,
        "masked_ids": jnp.where(exists > 0, ids, 0),
        "masked_weights": exists * jnp.take_along_axis(times, positions, axis=1).astype(jnp.float32),
    }


def selected_positions(selected: Bool[Array, "B S"], size: int) -> tuple[Int[Array, "B M"], Float[Array, "B M"]]:
    """Returns the first `size` selected positions of every sequence, ascending, and weight 1 where there is one."""
    batch_size, length = selected.shape
    slot = jnp.where(selected, jnp.cumsum(selected, axis=1) - 1, size)
    position = jnp.broadcast_to(jnp.arange(length, dtype=jnp.int32)[None, :], selected.shape)
    sequence = jnp.arange(batch_size)[:, None]
    positions = jnp.zeros((batch_size, size), jnp.int32).at[sequence, slot].set(position, mode="drop")
    exists = jnp.arange(size)[None, :] < selected.sum(axis=1)[:, None]
    return positions, exists.astype(jnp.float32)


def _needs_words(config: Masking) -> bool:
    """Returns False where single tokens are selected, which includes DeBERTa's windows of 1-grams."""
    return config.mask_unit not in ("token", "frequency") and (
        config.mask_unit != "ngram_window" or config.max_ngram > 1
    )


def _select_tokens(
    tokens: Tokens, words: Words, config: Masking, vocabulary: Vocabulary, rate: Rate
) -> Int[Array, "B S"]:
    """Returns how often each token is selected: 0, 1, or (with replacement) more."""
    budget = example_num_predictions(config, tokens, words, rate)
    if config.with_replacement:
        return sample_with_replacement(config, tokens, words, budget)
    if config.mask_unit == "ngram_window":
        return _expand_words(select_window_ngrams(config, tokens, words, budget), tokens, words)
    keys = token_keys(tokens)
    noise = draw_uniform(keys, ORDER)
    if config.mask_rounding == "bernoulli":
        return (tokens.candidates & (noise < rate)).astype(jnp.int32)
    word_noise = jnp.take_along_axis(noise, words.first, axis=1)
    if config.mask_unit in ("ngram", "span"):
        length_noise = jnp.take_along_axis(draw_uniform(keys, LENGTH), words.first, axis=1)
    if config.mask_unit == "ngram":
        lengths = sample_ngram_lengths(length_noise, config.max_ngram)
        ngrams = select_random_ngrams(words, word_noise, lengths, budget, config.max_ngram)
        return _expand_words(ngrams, tokens, words)
    if config.mask_unit == "span":
        shares = span_length_probabilities(config.span_geometric_p, config.max_span, config.min_span)
        lengths = sample_lengths(length_noise, shares)
        return select_spans(tokens, words, noise, lengths, budget, config.max_span).astype(jnp.int32)
    if config.mask_unit == "frequency":
        ids = jnp.take_along_axis(tokens.ids, words.first, axis=1)
        word_noise = favor_rare_tokens(word_noise, ids, config.frequency_power, vocabulary)
    by_word = config.mask_rounding == "random_words"
    cost = (words.size > 0).astype(jnp.int32) if by_word else words.size
    passes = WHOLE_WORD_PASSES if config.mask_unit == "whole_word" and not by_word else 1
    return _expand_words(select_in_random_order(words, word_noise, cost, budget, passes), tokens, words)


def _expand_words(selected: Bool[Array, "B S"], tokens: Tokens, words: Words) -> Int[Array, "B S"]:
    """Returns 1 for the tokens of selected words."""
    return (tokens.candidates & jnp.take_along_axis(selected, words.word_of_token, axis=1)).astype(jnp.int32)


def _deciding_positions(
    selected: Bool[Array, "B S"], tokens: Tokens, words: Words, config: Masking
) -> Int[Array, "B S"]:
    """Returns the position of the token whose random number decides how each token is replaced."""
    if config.replacement_unit == "span":
        return find_runs(selected, tokens.segments)[0]
    if config.replacement_unit == "word":
        return jnp.take_along_axis(words.first, words.word_of_token, axis=1)
    return jnp.broadcast_to(jnp.arange(selected.shape[1])[None, :], selected.shape)
