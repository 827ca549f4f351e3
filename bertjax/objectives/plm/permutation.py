"""Targets, order of prediction and visibility of XLNet (zihangdai/xlnet:data_utils.py).

`_sample_mask` there lays spans from left to right, each at a random position of a context of its own. The next step
depends only on where a span's context begins, so every position of the sequence gets the random numbers of a context
that would begin there and, from them, the position where the next one would begin. The contexts of a sequence are then
the positions reached from the first one, found by doubling: 1, 2, 4, ... steps at a time, a few gathers and no loop
along the sequence.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, UInt32

from bertjax.models.attention_context import PredictionRanks
from bertjax.objectives.masking.ngrams import sample_ngram_lengths
from bertjax.objectives.plm.settings import PlmSettings

NUM_DRAWS = 4
"""Random numbers per token: length of a span, its position in the context, single tokens, order of prediction."""


class SequencePart(NamedTuple):
    """A part of every sequence, of P tokens, in reading order: reversed where sequences are read backwards.

    Attributes:
        starts: where a token starts a word.
        lengths: real tokens, which come first.
        goals: real tokens that are to be predicted.
        bits: K = `NUM_DRAWS` random numbers per token.
    """

    starts: Bool[Array, "B P"]
    lengths: Int[Array, "B"]
    goals: Int[Array, "B"]
    bits: UInt32[Array, "K B P"]


def sample_targets(part: SequencePart, config: PlmSettings, max_targets: int) -> Bool[Array, "B P"]:
    """Selects `goals` tokens per sequence: spans, and single tokens where spans are too few.

    Special tokens can be among the single tokens; a caller that excludes them predicts fewer.

    Args:
        part: the part.
        config: the objective's config.
        max_targets: the largest of `goals`.
    """
    spans = _sample_spans(part, config, max_targets)
    position = jnp.arange(spans.shape[1])[None, :]
    is_open = (position < part.lengths[:, None]) & ~spans
    keys = jnp.where(is_open, _unique(part.bits[2]), jnp.uint32(0xFFFFFFFF))
    missing = (part.goals - spans.sum(axis=1))[:, None]
    last = jnp.take_along_axis(jnp.sort(keys, axis=1), jnp.maximum(missing - 1, 0), axis=1)
    return spans | (is_open & (keys <= last) & (missing > 0))


def _sample_spans(part: SequencePart, config: PlmSettings, max_targets: int) -> Bool[Array, "B P"]:
    """Returns True for tokens of spans. The last one is cut to the goal; one that meets the end is dropped."""
    batch_size, length = part.starts.shape
    here = jnp.broadcast_to(jnp.arange(length)[None, :], (batch_size, length))
    everywhere = _Contexts(part, config, here)
    number = min(max_targets, -(-length // (1 + config.mask_alpha // config.mask_beta)))
    positions = _reached(everywhere.next_positions(jnp.full((batch_size, 1), length)), number)
    contexts = _Contexts(part, config, positions)
    size = contexts.size(contexts.ngram)
    budget = jnp.maximum(part.goals[:, None] - (jnp.cumsum(size, axis=1) - size), 0)
    start, end = contexts.span(jnp.minimum(contexts.ngram, budget))
    is_used = (budget > 0) & (end < part.lengths[:, None])
    start, end = jnp.where(is_used, start, length), jnp.where(is_used, jnp.minimum(end, start + budget), length)
    sequence = jnp.arange(batch_size)[:, None]
    edges = jnp.zeros((batch_size, length + 1), jnp.int32).at[sequence, start].add(1).at[sequence, end].add(-1)
    return jnp.cumsum(edges, axis=1)[:, :length] > 0


class _Contexts:
    """Contexts that begin at `positions` [B, C] of a part: the lengths of their spans, and where these lie."""

    def __init__(self, part: SequencePart, config: PlmSettings, positions: Int[Array, "B C"]):
        self.part, self.config, self.positions = part, config, positions
        length = part.starts.shape[1]
        bits = [jnp.take_along_axis(each, jnp.minimum(positions, length - 1), axis=1) for each in part.bits[:2]]
        length_noise, self.noise = (_uniform(each) for each in bits)
        self.ngram = sample_ngram_lengths(length_noise, config.max_ngram)
        index = jnp.broadcast_to(jnp.arange(length)[None, :], part.starts.shape)
        self.next_start = jax.lax.cummin(jnp.where(part.starts, index, length), axis=1, reverse=True)
        if config.whole_words:
            self.word = jnp.cumsum(part.starts, axis=1) - 1
            slot = jnp.where(part.starts, self.word, length)
            sequence = jnp.arange(len(slot))[:, None]
            self.word_start = jnp.full(slot.shape, length).at[sequence, slot].set(index, mode="drop")

    def span(self, ngram: Int[Array, "B C"]) -> tuple[Int[Array, "B C"], Int[Array, "B C"]]:
        """Returns [start, end) of spans of `ngram` tokens or words; `end` is at least P where there is none."""
        length = self.part.starts.shape[1]
        start = _lookup(self.next_start, self.positions + self._left(ngram), length)
        if not self.config.whole_words:
            return start, start + ngram
        word = _lookup(self.word, start, length)
        return start, _lookup(self.word_start, word + ngram, length)

    def size(self, ngram: Int[Array, "B C"]) -> Int[Array, "B C"]:
        """Returns the tokens of such a span."""
        start, end = self.span(ngram)
        return jnp.maximum(end - start, 0)

    def next_positions(self, nowhere: Int[Array, "B 1"]) -> Int[Array, "B C"]:
        """Returns where the next contexts begin; `nowhere` after one whose span meets the end of the sequence."""
        _, end = self.span(self.ngram)
        following = end + self._context(self.ngram) - self._left(self.ngram)
        return jnp.where(end < self.part.lengths[:, None], jnp.minimum(following, nowhere), nowhere)

    def _context(self, ngram: Array) -> Array:
        return ngram * self.config.mask_alpha // self.config.mask_beta

    def _left(self, ngram: Array) -> Array:
        """Returns the tokens of the context before the span, or before the word at which it then begins."""
        context = self._context(ngram)
        return jnp.minimum((self.noise * context).astype(jnp.int32), context - 1)


def _reached(jump: Int[Array, "B P"], number: int) -> Int[Array, "B C"]:
    """Returns the first `number` positions reached from position 0 by repeated jumps, P where there are no more."""
    batch_size, length = jump.shape
    positions = jnp.zeros((batch_size, 1), jump.dtype)
    while positions.shape[1] < number:  # log2(number) times
        positions = jnp.concatenate([positions, _lookup(jump, positions, length)], axis=1)
        jump = _lookup(jump, jump, length)
    return positions[:, :number]


def _lookup(table: Int[Array, "B P"], positions: Int[Array, "B C"], default: int) -> Int[Array, "B C"]:
    """Returns entries of a sequence's table; `default` after its end."""
    length = table.shape[1]
    entries = jnp.take_along_axis(table, jnp.minimum(positions, length - 1), axis=1)
    return jnp.where(positions < length, entries, default)


def _uniform(bits: UInt32[Array, "*b"]) -> Float[Array, "*b"]:
    """Returns uniform numbers in [0, 1), of the 24 bits that a float32 holds."""
    return (bits >> 8).astype(jnp.float32) * 2.0**-24


def _unique(bits: UInt32[Array, "B P"]) -> UInt32[Array, "B P"]:
    """Puts the position into the low bits: the order stays random, and no two numbers of a sequence are equal."""
    length = bits.shape[1]
    low = (1 << (length - 1).bit_length()) - 1
    return (bits & jnp.uint32(~low & 0xFFFFFFFF)) | jnp.arange(length, dtype=jnp.uint32)[None, :]


def sample_order(bits: UInt32[Array, "B P"], perm_size: int) -> Int[Array, "B P"]:
    """Returns when each token of a part would be predicted: distinct numbers >= 0, of which only the order matters.

    Blocks of `perm_size` tokens come one after the other, all in the same permutation, as in the original.
    """
    batch_size, length = bits.shape
    block_bits = (length // perm_size - 1).bit_length()
    within = _unique(bits[:, :perm_size] >> (1 + block_bits))
    block = jnp.arange(length // perm_size, dtype=jnp.uint32) << (31 - block_bits)
    return (block[None, :, None] | within[:, None, :]).reshape(batch_size, length).astype(jnp.int32)


def permutation_ranks(
    order: Int[Array, "B S"], is_functional: Bool[Array, "B S"], part_lengths: tuple[int, ...]
) -> PredictionRanks:
    """Returns the order of prediction as ranks: token i may attend to the tokens of a lower rank.

    That is 1 - `perm_mask` of the original, without an array [B, S, S].

    Args:
        order: when targets and functional tokens are predicted, distinct numbers; -1 = visible to all.
        is_functional: [SEP] and [CLS], which are never targets: visible from their turn on, even to themselves, and to
            no token that is visible to all.
        part_lengths: tokens of the parts; a token attends to all earlier parts and to no later one.
    """
    keys: list[Array] = []
    start = 0
    for length in part_lengths:
        part = order[:, start : start + length]
        earlier = (part[:, None, :] < part[:, :, None]).sum(axis=2, dtype=jnp.int32)
        keys.append(2 * (start + jnp.where(part < 0, 0, 1 + earlier) + len(keys)))
        start += length
    ranks = jnp.concatenate(keys, axis=1)
    return PredictionRanks(ranks + ((order < 0) | is_functional), ranks)
