"""The corruption of a batch: select tokens, replace them, gather the predictions."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from bertjax.errors import UserError, comma_list
from bertjax.objectives.base import Key, example_keys
from bertjax.objectives.masking.selection import (
    WHOLE_WORD_PASSES,
    favor_rare_tokens,
    sample_lengths,
    sample_ngram_lengths,
    sample_with_replacement,
    select_in_random_order,
    select_random_ngrams,
    select_spans,
    select_window_ngrams,
    span_length_probabilities,
)
from bertjax.objectives.masking.settings import Masking, default_max_predictions
from bertjax.objectives.masking.tokens import (
    COUNT,
    DECISION,
    LENGTH,
    ORDER,
    RANDOM_TOKEN,
    Tokens,
    Words,
    draw_uniform,
    find_runs,
    locate_tokens,
    locate_words,
    sum_by_example,
    token_keys,
    token_keys_at,
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


_MIN_EXAMPLE = 3  # [CLS], a token, [SEP]


def mask_rate_at(config: Masking, cursor: Array | None) -> float | Float[Array, ""]:
    """Returns the share to mask in batch `cursor`, constant or linear in the cursor []; None = the first share."""
    if config.mask_rate_final is None or cursor is None:
        return config.mask_rate
    progress = jnp.clip(cursor.astype(jnp.float32) / config.schedule_steps, 0.0, 1.0)
    return config.mask_rate + (config.mask_rate_final - config.mask_rate) * progress


def max_sequence_predictions(config: Masking, seq_len: int, num_examples: int) -> int:
    """Computes M, the slots for predictions of a sequence.

    As many as one example of the sequence's length needs, and what rounding adds per example.

    Args:
        config: the masking.
        seq_len: tokens of a sequence.
        num_examples: E, the most examples in a sequence.
    """
    maximum = min(config.predictions_limit * num_examples, seq_len)
    if num_examples == 1:
        return maximum
    rate = max(config.mask_rate, config.last_rate)
    is_rounded = config.mask_rounding == "round" and config.mask_unit != "ngram_window"
    if is_rounded and rate == config.mask_rate == config.last_rate:
        lengths = np.arange(_MIN_EXAMPLE, seq_len + 1)
        gain = float((_rounded(config, rate, lengths) - rate * lengths).max())
        return min(maximum, math.floor(rate * seq_len + num_examples * max(gain, 0.0) + 1e-6))
    alone = default_max_predictions(config.mask_unit, config.mask_rounding, rate, seq_len)
    return min(maximum, alone if config.mask_rounding == "bernoulli" else alone + num_examples)


def example_num_predictions(
    config: Masking, tokens: Tokens, words: Words, rate: float | Float[Array, ""]
) -> Int[Array, "B E"]:
    """Computes the tokens (`mask_rounding="random_words"`: words) to mask in every example.

    Args:
        config: the masking.
        tokens: the tokens.
        words: the words.
        rate: the share to mask.
    """
    if config.mask_rounding == "random_words":
        examples = jnp.arange(tokens.keys.shape[1])[None, None, :]
        total = (words.example[:, :, None] == examples).sum(axis=1, dtype=jnp.int32)
    else:
        counted = tokens.candidates if config.mask_rounding == "ceil" else tokens.segments > 0
        total = sum_by_example(counted, tokens)
    length = tokens.ids.shape[1]
    # At a constant rate the numbers come from a table made in float64, like those of the authors' Python.
    lengths = jnp.arange(length + 1) if isinstance(rate, jax.Array) else np.arange(length + 1)
    if config.mask_rounding in ("random", "random_words"):
        share = jnp.asarray(rate * lengths, jnp.float32)[total]
        number = jnp.floor(share + draw_uniform(tokens.keys, COUNT)).astype(jnp.int32)
        return number if config.mask_rounding == "random_words" else jnp.minimum(number, config.predictions_limit)
    rule = _ceiled if config.mask_rounding == "ceil" else _rounded
    return jnp.asarray(rule(config, rate, lengths), jnp.int32)[total]


def _rounded(config: Masking, rate: float | Array, lengths: np.ndarray | Array) -> np.ndarray | Array:
    """google-research/bert:create_pretraining_data.py; halves go to the even number, like Python's round."""
    np_ = np if isinstance(lengths, np.ndarray) else jnp
    number = np_.minimum(np_.maximum(np_.round(rate * lengths), 1), config.predictions_limit)
    return np_.where(lengths > 0, number, 0)


def _ceiled(config: Masking, rate: float | Array, lengths: np.ndarray | Array) -> np.ndarray | Array:
    """Rounds up, as facebookresearch/SpanBERT:pretraining/fairseq/data/masking.py."""
    np_ = np if isinstance(lengths, np.ndarray) else jnp
    return np_.minimum(np_.ceil(rate * lengths), config.predictions_limit)


def sample_replacements(
    tokens: Tokens,
    positions: Int[Array, "B M"],
    deciding: Int[Array, "B M"],
    config: Masking,
    vocabulary: Vocabulary,
) -> Int[Array, "B M"]:
    """Returns the mask token, a random token, or the token itself, for each position.

    Args:
        tokens: the tokens.
        positions: the positions to replace.
        deciding: the positions whose random numbers choose among the three; random tokens are drawn per position.
        config: the masking.
        vocabulary: the tokenizer's vocabulary.

    Raises:
        UserError: `min_random_id` excludes the whole vocabulary.
    """
    ids = jnp.take_along_axis(tokens.ids, positions, axis=1)
    noise = draw_uniform(token_keys_at(tokens, deciding), DECISION)
    mask_ids = jnp.full_like(ids, vocabulary.mask_id)
    share = config.mask_token_rate
    if not config.random_token_rate:
        return jnp.where(noise < share, mask_ids, ids)
    random_ids = _sample_random_tokens(token_keys_at(tokens, positions), config, vocabulary).astype(ids.dtype)
    return jnp.where(noise < share, mask_ids, jnp.where(noise < share + config.random_token_rate, random_ids, ids))


def _sample_random_tokens(keys: Array, config: Masking, vocabulary: Vocabulary) -> Int[Array, "B M"]:
    """Draws tokens of the true vocabulary from `min_random_id` on, uniformly or by their counts in the corpus."""
    first, size = config.min_random_id, vocabulary.size
    allowed = np.setdiff1d(np.arange(first, size), never_masked_ids(config, vocabulary))
    if not len(allowed):
        raise UserError(f"objective.masking.min_random_id={first} leaves nothing of a vocabulary of {size} tokens")
    keys = jax.vmap(jax.vmap(lambda key: jax.random.fold_in(key, RANDOM_TOKEN)))(keys)
    is_range, table = len(allowed) == size - first, jnp.asarray(allowed, jnp.int32)

    def token(number: Array) -> Array:
        return first + number if is_range else table[number]

    if config.random_token_distribution == "uniform" or not vocabulary.counts[allowed].any():
        numbers = jax.vmap(jax.vmap(lambda key: jax.random.randint(key, (), 0, len(allowed))))(keys)
        return token(numbers)
    keep, other = (jnp.asarray(table) for table in build_alias_table(vocabulary.counts[allowed]))

    def draw(key: Array) -> Array:
        slot_key, keep_key = jax.random.split(key)
        slot = jax.random.randint(slot_key, (), 0, len(allowed))
        return token(jnp.where(jax.random.uniform(keep_key) < keep[slot], slot, other[slot]))

    return jax.vmap(jax.vmap(draw))(keys)


def never_masked_ids(config: Masking, vocabulary: Vocabulary) -> tuple[int, ...]:
    """Returns the ids of `never_masked`; raises `UserError` for a token that the vocabulary lacks."""
    if not vocabulary.tokens:  # a stand-in that knows sizes alone
        return ()
    ids = {token: index for index, token in enumerate(vocabulary.tokens)}
    absent = [token for token in config.never_masked if token not in ids]
    if absent:
        raise UserError(f"objective.masking.never_masked: the tokenizer has no token {comma_list(absent)}")
    return tuple(ids[token] for token in config.never_masked)


def build_alias_table(weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Builds the tables of the alias method, by which tokens are drawn with these weights.

    A uniform slot i, kept with probability keep[i] and else replaced by other[i], is such a draw: two look-ups however
    large the table, and rare tokens keep their exact share (A. J. Walker, Electronics Letters 10, 1974; M. D. Vose,
    IEEE TSE 17, 1991).

    Returns:
        `keep` float32 [n] and `other` int32 [n].
    """
    share = weights.astype(np.float64) * (len(weights) / weights.sum())
    keep, other = np.ones(len(weights)), np.arange(len(weights), dtype=np.int32)
    small, large = (list(np.flatnonzero(side)) for side in (share < 1.0, share >= 1.0))
    while small and large:
        low, high = small.pop(), large[-1]
        keep[low], other[low] = share[low], high
        share[high] -= 1.0 - share[low]
        if share[high] < 1.0:
            small.append(large.pop())
    return keep.astype(np.float32), other
