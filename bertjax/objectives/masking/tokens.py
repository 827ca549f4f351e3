"""Tokens and words of a batch, and the random numbers that belong to them."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from bertjax.types import Batch, Vocabulary

# Purposes of a token's random numbers; each has its own, so that no two choices depend on each other.
ORDER, DECISION, RANDOM_TOKEN, LENGTH, SAMPLE = range(5)

_OF_EXAMPLE = 1 << 31
"""Added to the purposes of numbers that belong to an example, so that they differ from positions."""

COUNT, DRAWS, WINDOWS = (_OF_EXAMPLE + purpose for purpose in range(3))


class Tokens(NamedTuple):
    """All tokens of a batch.

    Attributes:
        ids: token ids.
        segments: 0 = padding, 1.. = example.
        positions: position in the example.
        example: number of the example in its sequence, from 0 (also of padding: look at `candidates` first).
        candidates: tokens that may be masked.
        keys: the keys of the examples, [B, E].
    """

    ids: Int[Array, "B S"]
    segments: Int[Array, "B S"]
    positions: Int[Array, "B S"]
    example: Int[Array, "B S"]
    candidates: Bool[Array, "B S"]
    keys: Array


class Words(NamedTuple):
    """Words of a batch, numbered along each sequence: entry w belongs to word w, if `size[w] > 0`.

    Attributes:
        word_of_token: the word of every candidate.
        size: tokens of the word.
        first: the first token of the word.
        example: number of its example from 0; E after the last word.
    """

    word_of_token: Int[Array, "B S"]
    size: Int[Array, "B S"]
    first: Int[Array, "B S"]
    example: Int[Array, "B S"]


def locate_tokens(
    batch: Batch,
    keys: Array,
    vocabulary: Vocabulary,
    allow_mask_special: bool,
    allow_mask_unk: bool,
    never_masked: tuple[int, ...] = (),
) -> Tokens:
    """Collects what the selection of tokens needs to know of a batch.

    Args:
        batch: the batch before masking.
        keys: the keys of the examples, [B, E].
        vocabulary: the tokenizer's vocabulary.
        allow_mask_special: [CLS] and [SEP] are candidates.
        allow_mask_unk: unknown tokens are candidates.
        never_masked: ids of further tokens that are not candidates.
    """
    ids, segments = batch["input_ids"], batch["segment_ids"]
    candidates = is_text(ids, segments, vocabulary)
    if allow_mask_special:
        candidates = (segments > 0) & (ids != vocabulary.pad_id)
    if not allow_mask_unk:
        candidates = candidates & (ids != vocabulary.unk_id)
    for index in never_masked:
        candidates = candidates & (ids != index)
    example = jnp.clip(segments - 1, 0, keys.shape[1] - 1)
    return Tokens(ids, segments, batch["position_ids"], example, candidates, keys)


def is_text(ids: Int[Array, "B S"], segments: Int[Array, "B S"], vocabulary: Vocabulary) -> Bool[Array, "B S"]:
    """Returns True for tokens that are neither padding nor [CLS] nor [SEP].

    Args:
        ids: Token ids.
        segments: Segment ids; 0 = padding.
        vocabulary: Ids of the special tokens.
    """
    specials = (vocabulary.pad_id, vocabulary.cls_id, vocabulary.sep_id)
    return (segments > 0) & jnp.stack([ids != special for special in specials]).all(axis=0)


def locate_words(tokens: Tokens, vocabulary: Vocabulary, whole: bool) -> Words:
    """Finds the words of every sequence.

    A word begins at a token that starts one, and after anything that is not a candidate. So a continuation token that
    truncation left at the beginning of the second segment is a word; the authors' code joins it to the last word of the
    first segment across [SEP].

    Args:
        tokens: the tokens.
        vocabulary: the tokenizer's vocabulary.
        whole: False = every candidate is a word of its own.
    """
    starts = tokens.candidates
    if whole:
        table = jnp.asarray(np.pad(vocabulary.starts_word, (0, vocabulary.padded_size - vocabulary.size)))
        previous = jnp.pad(tokens.candidates[:, :-1], ((0, 0), (1, 0)))
        starts = tokens.candidates & (table[tokens.ids] | ~previous | ~_continues(tokens.segments))
    return words_from_starts(tokens, starts)


def words_from_starts(tokens: Tokens, starts: Bool[Array, "B S"]) -> Words:
    """Returns the words, or other parts of the text, that begin at these candidates; a part ends where another begins.

    Args:
        tokens: the tokens.
        starts: True at the first token of every part; the first candidate of an example must be one.
    """
    batch_size, length = starts.shape
    sequence = jnp.arange(batch_size)[:, None]
    number = jnp.cumsum(starts, axis=1, dtype=jnp.int32) - 1
    word_of_token = jnp.where(tokens.candidates, number, length - 1)
    empty = jnp.zeros((batch_size, length), jnp.int32)
    size = empty.at[sequence, word_of_token].add(tokens.candidates.astype(jnp.int32))
    position = jnp.broadcast_to(jnp.arange(length, dtype=jnp.int32)[None, :], starts.shape)
    first = empty.at[sequence, jnp.where(starts, number, length)].set(position, mode="drop")
    example = jnp.where(size > 0, jnp.take_along_axis(tokens.example, first, axis=1), tokens.keys.shape[1])
    return Words(word_of_token, size, first, example)


def _continues(segments: Int[Array, "B S"]) -> Bool[Array, "B S"]:
    """Returns True where the previous token belongs to the same example."""
    return segments == jnp.pad(segments[:, :-1], ((0, 0), (1, 0)))


def find_runs(selected: Bool[Array, "B S"], segments: Int[Array, "B S"]) -> tuple[Int[Array, "B S"], Int[Array, "B S"]]:
    """Returns first and last token of the run of adjacent selected tokens of one example that contains each of them."""
    length = selected.shape[1]
    position = jnp.arange(length)[None, :]
    goes_on = selected & jnp.pad(selected[:, :-1], ((0, 0), (1, 0))) & _continues(segments)
    first = jax.lax.cummax(jnp.where(goes_on, 0, position), axis=1)
    ends = ~jnp.pad(goes_on[:, 1:], ((0, 0), (0, 1)))
    last = jax.lax.cummin(jnp.where(ends, position, length - 1), axis=1, reverse=True)
    return first, last


def token_keys(tokens: Tokens) -> Array:
    """Returns a key per token [B, S], from its example's key and its position in the example."""
    return token_keys_at(tokens, jnp.broadcast_to(jnp.arange(tokens.ids.shape[1])[None, :], tokens.ids.shape))


def token_keys_at(tokens: Tokens, positions: Int[Array, "B M"]) -> Array:
    """Returns `token_keys` at some positions of the sequence only, keys [B, M]."""
    example, position = (jnp.take_along_axis(x, positions, axis=1) for x in (tokens.example, tokens.positions))
    return jax.vmap(jax.vmap(jax.random.fold_in))(jnp.take_along_axis(tokens.keys, example, axis=1), position)


def draw_uniform(keys: Array, purpose: int) -> Float[Array, "B M"]:
    """Returns a number in [0, 1) per key [B, M]."""
    return jax.vmap(jax.vmap(lambda key: jax.random.uniform(jax.random.fold_in(key, purpose))))(keys)


def draw_uniforms(keys: Array, purpose: int, count: int) -> Float[Array, "B M K"]:
    """Returns uniform numbers in [0, 1) per key.

    Args:
        keys: Keys [B, M].
        purpose: Folded into the keys.
        count: Numbers per key, K.
    """
    return jax.vmap(jax.vmap(lambda key: jax.random.uniform(jax.random.fold_in(key, purpose), (count,))))(keys)


def sum_by_example(values: Array, tokens: Tokens) -> Int[Array, "B E"]:
    """Sums values [B, S] over the tokens of every example."""
    examples = jnp.arange(tokens.keys.shape[1])[None, None, :]
    current = (tokens.example[:, :, None] == examples) & (tokens.segments > 0)[:, :, None]
    return jnp.where(current, values.astype(jnp.int32)[:, :, None], 0).sum(axis=1)
