"""Which tokens are hidden, and behind what: pure functions on the device, no loop over the row.

A token's random number is a pure function of (key of its example, its position in the example): the same on any
device, in any row, packed or alone. Rules and names: google-research/bert:create_pretraining_data.py.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from bertjax.objectives.config import MaskingConfig
from bertjax.types import Batch, Vocabulary

GREEDY_PASSES = 8
"""Passes of the whole-word budget; each fills the room that is left with the next words that fit. On random words one
to three are enough for most rows, and eight were for 5,000 rows of 512 tokens; a row that needed more would predict a
few tokens less."""


def budgets(config: MaskingConfig, seq_len: int) -> np.ndarray:
    """int32 [S + 1]: predictions of an example by its length; Python's round, as the authors' code has it."""
    wanted = [min(config.max_predictions, max(1, round(config.mask_rate * n))) for n in range(seq_len + 1)]
    wanted[0] = 0
    return np.asarray(wanted, np.int32)


def hide_tokens(
    batch: Batch, keys: Array, config: MaskingConfig, vocabulary: Vocabulary, predictions: int
) -> dict[str, Array]:
    """The batch with tokens hidden, and the `predictions` (M) gathered positions of every row.

    `keys` [B, E] are the examples' keys. Adds `original_ids` [B, S], `masked_positions`, `masked_ids` [B, M] int32
    (ascending; padded with position 0 and id 0) and `masked_weights` [B, M] float32.
    """
    token_keys = _token_keys(keys, batch)
    chosen = _choose(batch, _uniform(token_keys, 0), config, vocabulary)
    replaced = _replace(batch["input_ids"], token_keys, config, vocabulary)
    positions, weights = gather_chosen(chosen, predictions)
    ids = jnp.take_along_axis(batch["input_ids"], positions, axis=1)
    return {
        **batch,
        "original_ids": batch["input_ids"],
        "input_ids": jnp.where(chosen, replaced, batch["input_ids"]),
        "masked_positions": positions,
        "masked_ids": jnp.where(weights > 0, ids, 0),
        "masked_weights": weights,
    }


def gather_chosen(chosen: Bool[Array, "B S"], size: int) -> tuple[Int[Array, "B M"], Float[Array, "B M"]]:
    """The first `size` chosen positions of every row in ascending order, and weight 1 where there is one."""
    order = jnp.argsort(~chosen, axis=1, stable=True)[:, :size]
    weights = jnp.take_along_axis(chosen, order, axis=1).astype(jnp.float32)
    return jnp.where(weights > 0, order, 0).astype(jnp.int32), weights


def _token_keys(keys: Array, batch: Batch) -> Array:
    """A key for every token [B, S], from its example's key and its position in the example."""
    example = jnp.clip(batch["segment_ids"] - 1, 0, keys.shape[1] - 1)
    fold = jax.vmap(jax.vmap(jax.random.fold_in))
    return fold(jnp.take_along_axis(keys, example, axis=1), batch["position_ids"])


def _uniform(token_keys: Array, purpose: int) -> Float[Array, "B S"]:
    return jax.vmap(jax.vmap(lambda key: jax.random.uniform(jax.random.fold_in(key, purpose))))(token_keys)


def _choose(
    batch: Batch, noise: Float[Array, "B S"], config: MaskingConfig, vocabulary: Vocabulary
) -> Bool[Array, "B S"]:
    """True for the tokens to predict: random candidates of every example, up to the example's budget."""
    ids, segments = batch["input_ids"], batch["segment_ids"]
    candidates = (segments > 0) & ~_is_one_of(ids, (vocabulary.cls_id, vocabulary.sep_id, vocabulary.pad_id))
    starts = candidates
    if config.unit == "whole_word":
        starts = _word_starts(ids, segments, candidates, vocabulary)
    lengths = _example_lengths(segments, batch["example_ids"].shape[1])
    budget = jnp.asarray(budgets(config, ids.shape[1]))[lengths]
    # Single tokens all fit until the budget is full: one pass is exact.
    fill = functools.partial(_fill_budgets, passes=1 if config.unit == "token" else GREEDY_PASSES)
    return jax.vmap(fill)(noise, candidates, starts, segments, budget)


def _is_one_of(ids: Array, values: tuple[int, ...]) -> Array:
    return jnp.any(jnp.stack([ids == value for value in values]), axis=0)


def _word_starts(ids: Array, segments: Array, candidates: Array, vocabulary: Vocabulary) -> Bool[Array, "B S"]:
    """A word begins at a piece that starts one, and after anything that is no candidate.

    So a continuation piece that truncation left at the head of B is a word; the authors' code joins it to the last
    word of A across [SEP].
    """
    starts_word = jnp.asarray(np.pad(vocabulary.starts_word, (0, vocabulary.padded_size - vocabulary.size)))
    before = jnp.pad(candidates[:, :-1], ((0, 0), (1, 0)))
    other_example = segments != jnp.pad(segments[:, :-1], ((0, 0), (1, 0)))
    return candidates & (starts_word[ids] | ~before | other_example)


def _example_lengths(segments: Int[Array, "B S"], most: int) -> Int[Array, "B S"]:
    """For every token, the number of tokens of its example (specials included); 0 on padding."""
    lengths = (segments[:, :, None] == jnp.arange(1, most + 1)[None, None, :]).sum(axis=1, dtype=jnp.int32)
    own = jnp.take_along_axis(lengths, jnp.clip(segments - 1, 0, most - 1), axis=1)
    return jnp.where(segments > 0, own, 0)


def _fill_budgets(
    noise: Float[Array, "S"],
    candidates: Bool[Array, "S"],
    starts: Bool[Array, "S"],
    segments: Int[Array, "S"],
    budget: Int[Array, "S"],
    passes: int,
) -> Bool[Array, "S"]:
    """Words of every example in random order, taken while they fit; one that does not is skipped, the next is tried.

    The greedy rule is sequential. Its result comes from a few passes: sort the words that still fit, take the prefix
    whose cumulative length fits, drop the words that are now too long, and again.
    """
    length = noise.shape[0]
    word = jnp.where(candidates, jnp.cumsum(starts) - 1, length - 1)
    sizes = jnp.zeros(length, jnp.int32).at[word].add(candidates.astype(jnp.int32))
    first = jnp.zeros(length, jnp.int32).at[jnp.where(starts, word, length)].set(jnp.arange(length), mode="drop")
    is_word = jnp.arange(length) < starts.sum()
    order_key = jnp.where(is_word, noise[first], 2.0)
    example = jnp.where(is_word, segments[first], length + 1)
    order = jnp.lexsort((order_key, example))
    sizes, example, room = sizes[order], example[order], budget[first][order]
    open_words = is_word[order]
    taken = jnp.zeros(length, bool)
    for _ in range(passes):
        open_words &= sizes <= room
        used = _cumulative_within(jnp.where(open_words, sizes, 0), example)
        fits = open_words & (_cumulative_within((open_words & (used > room)).astype(jnp.int32), example) == 0)
        taken |= fits
        room = room - _total_within(jnp.where(fits, sizes, 0), example)
        open_words &= ~fits
    word_taken = jnp.zeros(length, bool).at[order].set(taken)
    return candidates & word_taken[word]


def _cumulative_within(values: Int[Array, "S"], groups: Int[Array, "S"]) -> Int[Array, "S"]:
    """Cumulative sums that restart with every group; groups are contiguous."""
    total = jnp.cumsum(values)
    first = jnp.concatenate([jnp.ones(1, bool), groups[1:] != groups[:-1]])
    before = jax.lax.cummax(jnp.where(first, total - values, 0))
    return total - before


def _total_within(values: Int[Array, "S"], groups: Int[Array, "S"]) -> Int[Array, "S"]:
    """The sum of every element's group; groups are contiguous."""
    ranks = jnp.cumsum(jnp.concatenate([jnp.zeros(1, bool), groups[1:] != groups[:-1]]))
    return jnp.zeros(values.shape[0], values.dtype).at[ranks].add(values)[ranks]


def _replace(
    ids: Int[Array, "B S"], token_keys: Array, config: MaskingConfig, vocabulary: Vocabulary
) -> Int[Array, "B S"]:
    """80 % mask piece, 10 % a piece drawn from the whole true vocabulary (specials included), 10 % kept."""
    dice = _uniform(token_keys, 1)
    draw = jax.vmap(jax.vmap(lambda key: jax.random.randint(jax.random.fold_in(key, 2), (), 0, vocabulary.size)))
    masked = jnp.full_like(ids, vocabulary.mask_id)
    random_ids = draw(token_keys).astype(ids.dtype)
    share = config.mask_token_rate
    return jnp.where(dice < share, masked, jnp.where(dice < share + config.random_token_rate, random_ids, ids))
