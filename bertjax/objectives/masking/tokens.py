"""Rows as tokens and as words, and the random numbers that belong to them."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from bertjax.types import Batch, Vocabulary

# What a token's random number is for; every purpose has its own, so that no two choices depend on each other.
ORDER, DECISION, PIECE, LENGTH, SAMPLE = range(5)

_OF_EXAMPLE = 1 << 31
"""Added to the purposes of numbers that belong to an example, to keep them apart from positions."""

COUNT, DRAWS, WINDOWS = (_OF_EXAMPLE + purpose for purpose in range(3))


class Tokens(NamedTuple):
    """All tokens of a batch.

    `body` is text: neither padding nor [CLS] nor [SEP]. `candidates` may be hidden. `example` numbers the examples of
    a row from 0 (also on padding: look at `candidates` first). `keys` [B, E] are the examples' keys.
    """

    ids: Int[Array, "B S"]
    segments: Int[Array, "B S"]
    positions: Int[Array, "B S"]
    example: Int[Array, "B S"]
    body: Bool[Array, "B S"]
    candidates: Bool[Array, "B S"]
    keys: Array


class Words(NamedTuple):
    """Words of a batch, numbered along each row: entry w of a row is its word w, if `size[w] > 0`.

    `of_token` is the word of every candidate. `first` is the first token of a word. `example` numbers examples from 0
    and is E behind the last word.
    """

    of_token: Int[Array, "B S"]
    size: Int[Array, "B S"]
    first: Int[Array, "B S"]
    example: Int[Array, "B S"]


def tokens_of(
    batch: Batch, keys: Array, vocabulary: Vocabulary, allow_mask_special: bool, allow_mask_unk: bool
) -> Tokens:
    """Everything that the choices ask of a batch; `keys` [B, E] are the examples' keys."""
    ids, segments = batch["input_ids"], batch["segment_ids"]
    body = is_text(ids, segments, vocabulary)
    candidates = (segments > 0) & (ids != vocabulary.pad_id) if allow_mask_special else body
    if not allow_mask_unk:
        candidates = candidates & (ids != vocabulary.unk_id)
    example = jnp.clip(segments - 1, 0, keys.shape[1] - 1)
    return Tokens(ids, segments, batch["position_ids"], example, body, candidates, keys)


def is_text(ids: Int[Array, "B S"], segments: Int[Array, "B S"], vocabulary: Vocabulary) -> Bool[Array, "B S"]:
    """True for text: neither padding nor [CLS] nor [SEP]."""
    specials = (vocabulary.pad_id, vocabulary.cls_id, vocabulary.sep_id)
    return (segments > 0) & jnp.stack([ids != special for special in specials]).all(axis=0)


def words_of(tokens: Tokens, vocabulary: Vocabulary, whole: bool) -> Words:
    """The words of every row, or (not `whole`) each candidate as a word of its own.

    A word begins at a piece that starts one, and after anything that is no candidate. So a continuation piece that
    truncation left at the head of B is a word; the authors' code joins it to the last word of A across [SEP].
    """
    starts = tokens.candidates
    if whole:
        table = jnp.asarray(np.pad(vocabulary.starts_word, (0, vocabulary.padded_size - vocabulary.size)))
        before = jnp.pad(tokens.candidates[:, :-1], ((0, 0), (1, 0)))
        starts = tokens.candidates & (table[tokens.ids] | ~before | ~_follows(tokens.segments))
    return _number(tokens, starts)


def _follows(segments: Int[Array, "B S"]) -> Bool[Array, "B S"]:
    """True where the token before belongs to the same example."""
    return segments == jnp.pad(segments[:, :-1], ((0, 0), (1, 0)))


def _number(tokens: Tokens, starts: Bool[Array, "B S"]) -> Words:
    rows, length = starts.shape
    row = jnp.arange(rows)[:, None]
    number = jnp.cumsum(starts, axis=1, dtype=jnp.int32) - 1
    of_token = jnp.where(tokens.candidates, number, length - 1)
    empty = jnp.zeros((rows, length), jnp.int32)
    size = empty.at[row, of_token].add(tokens.candidates.astype(jnp.int32))
    position = jnp.broadcast_to(jnp.arange(length, dtype=jnp.int32)[None, :], starts.shape)
    first = empty.at[row, jnp.where(starts, number, length)].set(position, mode="drop")
    example = jnp.where(size > 0, jnp.take_along_axis(tokens.example, first, axis=1), tokens.keys.shape[1])
    return Words(of_token, size, first, example)


def runs(chosen: Bool[Array, "B S"], segments: Int[Array, "B S"]) -> tuple[Int[Array, "B S"], Int[Array, "B S"]]:
    """First and last token of the run of chosen neighbours, of one example, that every chosen token is in."""
    length = chosen.shape[1]
    position = jnp.arange(length)[None, :]
    goes_on = chosen & jnp.pad(chosen[:, :-1], ((0, 0), (1, 0))) & _follows(segments)
    first = jax.lax.cummax(jnp.where(goes_on, 0, position), axis=1)
    ends = ~jnp.pad(goes_on[:, 1:], ((0, 0), (0, 1)))
    last = jax.lax.cummin(jnp.where(ends, position, length - 1), axis=1, reverse=True)
    return first, last


def token_keys(tokens: Tokens) -> Array:
    """A key for every token [B, S], from its example's key and its position in the example."""
    return keys_at(tokens, jnp.broadcast_to(jnp.arange(tokens.ids.shape[1])[None, :], tokens.ids.shape))


def keys_at(tokens: Tokens, places: Int[Array, "B M"]) -> Array:
    """`token_keys` at some places of the row only."""
    example, position = (jnp.take_along_axis(x, places, axis=1) for x in (tokens.example, tokens.positions))
    return jax.vmap(jax.vmap(jax.random.fold_in))(jnp.take_along_axis(tokens.keys, example, axis=1), position)


def uniform(keys: Array, purpose: int) -> Float[Array, "B M"]:
    """A number in [0, 1) from every key."""
    return jax.vmap(jax.vmap(lambda key: jax.random.uniform(jax.random.fold_in(key, purpose))))(keys)


def draw_uniforms(keys: Array, purpose: int, count: int) -> Float[Array, "B M K"]:
    """`count` numbers in [0, 1) from every key."""
    return jax.vmap(jax.vmap(lambda key: jax.random.uniform(jax.random.fold_in(key, purpose), (count,))))(keys)


def sum_by_example(values: Array, tokens: Tokens) -> Int[Array, "B E"]:
    """Sums over the tokens of every example."""
    examples = jnp.arange(tokens.keys.shape[1])[None, None, :]
    own = (tokens.example[:, :, None] == examples) & (tokens.segments > 0)[:, :, None]
    return jnp.where(own, values.astype(jnp.int32)[:, :, None], 0).sum(axis=1)
