"""The corruption of a batch: choose, replace, gather."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from bertjax.config.objectives.masking import MaskingConfig
from bertjax.objectives.base import Key, example_keys
from bertjax.objectives.masking.ngrams import (
    sample_lengths,
    sample_ngram_lengths,
    select_random_ngrams,
    select_window_ngrams,
)
from bertjax.objectives.masking.num_predictions import example_num_predictions, mask_rate_at, max_sequence_predictions
from bertjax.objectives.masking.replace import replacements
from bertjax.objectives.masking.spans import span_length_probabilities, spans
from bertjax.objectives.masking.tokens import (
    LENGTH,
    ORDER,
    Tokens,
    Words,
    runs,
    token_keys,
    tokens_of,
    uniform,
    words_of,
)
from bertjax.objectives.masking.whole_word import PASSES, favor_rare_tokens, fill, with_replacement
from bertjax.types import Batch, Vocabulary

Rate = float | Float[Array, ""]


def mask_batch(batch: Batch, key: Key, cursor: Array, config: MaskingConfig, vocabulary: Vocabulary) -> Batch:
    """`mask_tokens` with the keys that masking asks for: new at every cursor, or the same whenever a draw comes again.

    `key` is the run's. Every sequence has `max_sequence_predictions` slots.
    """
    if config.dynamic:
        keys = example_keys(jax.random.fold_in(key, cursor), batch)
    else:  # the same example drawn again is hidden the same way
        keys = jax.vmap(jax.vmap(jax.random.fold_in))(example_keys(key, batch), batch["example_draws"])
    predictions = max_sequence_predictions(config, batch["input_ids"].shape[1], keys.shape[1])
    return mask_tokens(batch, keys, config, vocabulary, predictions, cursor)


def mask_tokens(
    batch: Batch,
    keys: Array,
    config: MaskingConfig,
    vocabulary: Vocabulary,
    predictions: int,
    cursor: Array | None = None,
) -> dict[str, Array]:
    """The batch with tokens hidden, and the `predictions` (M) gathered positions of every row.

    `keys` [B, E] are the examples' keys; the cursor only matters to a rate that changes. Adds `original_ids` [B, S],
    `masked_positions`, `masked_ids` [B, M] int32 (ascending; padded with position 0 and id 0) and `masked_weights`
    [B, M] float32 (1; more where a token was drawn more than once).
    """
    tokens = tokens_of(batch, keys, vocabulary, config.allow_mask_special, config.allow_mask_unk)
    words = words_of(tokens, vocabulary, _has_words(config))
    times = _choose(tokens, words, config, vocabulary, mask_rate_at(config, cursor))
    # Whatever is hidden is predicted: where a random number exceeds the room for it, the end of the row is left alone.
    times = jnp.where(jnp.cumsum(times > 0, axis=1) <= predictions, times, 0)
    places, present = selected_positions(times > 0, predictions)
    deciding = _deciding(times > 0, tokens, words, config)
    seen = replacements(tokens, places, jnp.take_along_axis(deciding, places, axis=1), config, vocabulary)
    row, length = jnp.arange(len(places))[:, None], times.shape[1]
    ids = jnp.take_along_axis(tokens.ids, places, axis=1)
    return {
        **batch,
        "original_ids": tokens.ids,
        "input_ids": tokens.ids.at[row, jnp.where(present > 0, places, length)].set(seen, mode="drop"),
        "masked_positions": places,
        "masked_ids": jnp.where(present > 0, ids, 0),
        "masked_weights": present * jnp.take_along_axis(times, places, axis=1).astype(jnp.float32),
    }


def selected_positions(chosen: Bool[Array, "B S"], size: int) -> tuple[Int[Array, "B M"], Float[Array, "B M"]]:
    """The first `size` chosen positions of every row in ascending order, and weight 1 where there is one."""
    rows, length = chosen.shape
    slot = jnp.where(chosen, jnp.cumsum(chosen, axis=1) - 1, size)
    position = jnp.broadcast_to(jnp.arange(length, dtype=jnp.int32)[None, :], chosen.shape)
    places = jnp.zeros((rows, size), jnp.int32).at[jnp.arange(rows)[:, None], slot].set(position, mode="drop")
    present = jnp.arange(size)[None, :] < chosen.sum(axis=1)[:, None]
    return places, present.astype(jnp.float32)


def _has_words(config: MaskingConfig) -> bool:
    """False where pieces are chosen one by one; DeBERTa's windows, too, are of pieces when no n-gram is longer."""
    return config.mask_unit not in ("token", "frequency") and (
        config.mask_unit != "ngram_window" or config.max_ngram > 1
    )


def _choose(
    tokens: Tokens, words: Words, config: MaskingConfig, vocabulary: Vocabulary, rate: Rate
) -> Int[Array, "B S"]:
    """How often every token is chosen: 0, 1, or (with replacement) more."""
    budget = example_num_predictions(config, tokens, words, rate)
    if config.with_replacement:
        return with_replacement(config, tokens, words, budget)
    if config.mask_unit == "ngram_window":
        return _of_words(select_window_ngrams(config, tokens, words, budget), tokens, words)
    keys = token_keys(tokens)
    noise = uniform(keys, ORDER)
    if config.mask_rounding == "bernoulli":
        return (tokens.candidates & (noise < rate)).astype(jnp.int32)
    first = jnp.take_along_axis(noise, words.first, axis=1)
    if config.mask_unit in ("ngram", "span"):
        length_noise = jnp.take_along_axis(uniform(keys, LENGTH), words.first, axis=1)
    if config.mask_unit == "ngram":
        lengths = sample_ngram_lengths(length_noise, config.max_ngram)
        return _of_words(select_random_ngrams(words, first, lengths, budget, config.max_ngram), tokens, words)
    if config.mask_unit == "span":
        lengths = sample_lengths(length_noise, span_length_probabilities(config.span_geometric_p, config.max_span))
        return spans(tokens, words, noise, lengths, budget, config.max_span).astype(jnp.int32)
    if config.mask_unit == "frequency":
        ids = jnp.take_along_axis(tokens.ids, words.first, axis=1)
        first = favor_rare_tokens(first, ids, config.frequency_power, vocabulary)
    by_word = config.mask_rounding == "random_words"
    cost = (words.size > 0).astype(jnp.int32) if by_word else words.size
    passes = PASSES if config.mask_unit == "whole_word" and not by_word else 1
    return _of_words(fill(words, first, cost, budget, passes), tokens, words)


def _of_words(taken: Bool[Array, "B S"], tokens: Tokens, words: Words) -> Int[Array, "B S"]:
    """Words as their tokens."""
    return (tokens.candidates & jnp.take_along_axis(taken, words.of_token, axis=1)).astype(jnp.int32)


def _deciding(chosen: Bool[Array, "B S"], tokens: Tokens, words: Words, config: MaskingConfig) -> Int[Array, "B S"]:
    """The token whose random number decides what stands in the place of each."""
    if config.replacement_unit == "span":
        return runs(chosen, tokens.segments)[0]
    if config.replacement_unit == "word":
        return jnp.take_along_axis(words.first, words.of_token, axis=1)
    return jnp.broadcast_to(jnp.arange(chosen.shape[1])[None, :], chosen.shape)
