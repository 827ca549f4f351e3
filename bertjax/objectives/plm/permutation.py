"""What XLNet predicts, in which order, and what may be seen of a row (zihangdai/xlnet:data_utils.py).

`_sample_mask` lays spans from left to right, each at a random place of a context of its own. Where a span's context
begins is all that the next step depends on, so every place of the row gets the random numbers of a context that would
begin there, and with them the place where the next one would. The contexts of a row are then the places reached from
the first, found by doubling: 1, 2, 4, ... steps at a time, a few gathers and no loop along the row.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, UInt32

from bertjax.config.objectives.plm import PlmConfig

DRAWS = 4
"""Random words of a token: length of a span, its place in the context, top-up, order of prediction."""


class Part(NamedTuple):
    """A part of every row, as it is read: where rows are backward, turned round.

    `starts` says where a piece opens a word, `lengths` how many tokens are real (they come first), `goals` how many of
    them are to be predicted, `bits` are the random words of every token.
    """

    starts: Bool[Array, "B P"]
    lengths: Int[Array, "B"]
    goals: Int[Array, "B"]
    bits: UInt32[Array, "K B P"]


def sample_mask(part: Part, config: PlmConfig, most: int) -> Bool[Array, "B P"]:
    """`goals` tokens of every row, at most `most`: spans, and single tokens where these are too few.

    Specials can be among the single tokens: whoever hides them predicts less.
    """
    spans = _spans(part, config, most)
    place = jnp.arange(spans.shape[1])[None, :]
    open_places = (place < part.lengths[:, None]) & ~spans
    keys = jnp.where(open_places, _unique(part.bits[2]), jnp.uint32(0xFFFFFFFF))
    missing = (part.goals - spans.sum(axis=1))[:, None]
    last = jnp.take_along_axis(jnp.sort(keys, axis=1), jnp.maximum(missing - 1, 0), axis=1)
    return spans | (open_places & (keys <= last) & (missing > 0))


def _spans(part: Part, config: PlmConfig, most: int) -> Bool[Array, "B P"]:
    """True for the tokens of spans. The last one is cut to what the goal leaves; one that meets the end is dropped."""
    rows, width = part.starts.shape
    here = jnp.broadcast_to(jnp.arange(width)[None, :], (rows, width))
    everywhere = _Contexts(part, config, here)
    number = min(most, -(-width // (1 + config.mask_alpha // config.mask_beta)))
    places = _reached(everywhere.following(jnp.full((rows, 1), width)), number)
    contexts = _Contexts(part, config, places)
    size = contexts.size(contexts.ngram)
    room = jnp.maximum(part.goals[:, None] - (jnp.cumsum(size, axis=1) - size), 0)
    begin, end = contexts.span(jnp.minimum(contexts.ngram, room))
    used = (room > 0) & (end < part.lengths[:, None])
    begin, end = jnp.where(used, begin, width), jnp.where(used, jnp.minimum(end, begin + room), width)
    row = jnp.arange(rows)[:, None]
    edges = jnp.zeros((rows, width + 1), jnp.int32).at[row, begin].add(1).at[row, end].add(-1)
    return jnp.cumsum(edges, axis=1)[:, :width] > 0


class _Contexts:
    """Contexts that begin at `places` [B, C] of a part: how long a span they hold, and where."""

    def __init__(self, part: Part, config: PlmConfig, places: Int[Array, "B C"]):
        self.part, self.config, self.places = part, config, places
        width = part.starts.shape[1]
        drawn = [jnp.take_along_axis(bits, jnp.minimum(places, width - 1), axis=1) for bits in part.bits[:2]]
        length_noise, self.noise = (_fraction(bits) for bits in drawn)
        shares = 1.0 / np.arange(1, config.max_ngram + 1)
        limits = jnp.asarray(np.cumsum(shares / shares.sum())[:-1], jnp.float32)
        self.ngram = 1 + (length_noise[..., None] >= limits[None, None, :]).sum(axis=-1)
        index = jnp.broadcast_to(jnp.arange(width)[None, :], part.starts.shape)
        self.next_start = jax.lax.cummin(jnp.where(part.starts, index, width), axis=1, reverse=True)
        if config.whole_words:
            self.number = jnp.cumsum(part.starts, axis=1) - 1
            slot = jnp.where(part.starts, self.number, width)
            row = jnp.arange(len(slot))[:, None]
            self.word_start = jnp.full(slot.shape, width).at[row, slot].set(index, mode="drop")

    def span(self, ngram: Int[Array, "B C"]) -> tuple[Int[Array, "B C"], Int[Array, "B C"]]:
        """[begin, end) of spans of so many pieces or words; `end` is at least P where there is none."""
        width = self.part.starts.shape[1]
        begin = _at(self.next_start, self.places + self._left(ngram), width)
        if not self.config.whole_words:
            return begin, begin + ngram
        number = _at(self.number, begin, width)
        return begin, _at(self.word_start, number + ngram, width)

    def size(self, ngram: Int[Array, "B C"]) -> Int[Array, "B C"]:
        """Tokens of such a span."""
        begin, end = self.span(ngram)
        return jnp.maximum(end - begin, 0)

    def following(self, nowhere: Int[Array, "B 1"]) -> Int[Array, "B C"]:
        """Where the next contexts begin; `nowhere` behind one whose span meets the end of the row."""
        _, end = self.span(self.ngram)
        after = end + self._context(self.ngram) - self._left(self.ngram)
        return jnp.where(end < self.part.lengths[:, None], jnp.minimum(after, nowhere), nowhere)

    def _context(self, ngram: Array) -> Array:
        return ngram * self.config.mask_alpha // self.config.mask_beta

    def _left(self, ngram: Array) -> Array:
        """Tokens of the context before the span, or before the word at which it then begins."""
        context = self._context(ngram)
        return jnp.minimum((self.noise * context).astype(jnp.int32), context - 1)


def _reached(jump: Int[Array, "B P"], number: int) -> Int[Array, "B C"]:
    """The first places reached from place 0, P where there are no more."""
    rows, width = jump.shape
    places = jnp.zeros((rows, 1), jump.dtype)
    while places.shape[1] < number:  # log2(number) times
        places = jnp.concatenate([places, _at(jump, places, width)], axis=1)
        jump = _at(jump, jump, width)
    return places[:, :number]


def _at(table: Int[Array, "B P"], places: Int[Array, "B C"], otherwise: int) -> Int[Array, "B C"]:
    """Entries of a row's table; `otherwise` behind its end."""
    width = table.shape[1]
    found = jnp.take_along_axis(table, jnp.minimum(places, width - 1), axis=1)
    return jnp.where(places < width, found, otherwise)


def _fraction(bits: UInt32[Array, "*b"]) -> Float[Array, "*b"]:
    """Uniform in [0, 1), of the 24 bits that a float32 holds."""
    return (bits >> 8).astype(jnp.float32) * 2.0**-24


def _unique(bits: UInt32[Array, "B P"]) -> UInt32[Array, "B P"]:
    """Random words with the position in their low bits: in random order, and no two of a row are equal."""
    width = bits.shape[1]
    low = (1 << (width - 1).bit_length()) - 1
    return (bits & jnp.uint32(~low & 0xFFFFFFFF)) | jnp.arange(width, dtype=jnp.uint32)[None, :]


def sample_order(bits: UInt32[Array, "B P"], perm_size: int) -> Int[Array, "B P"]:
    """When every token of a part would be predicted: numbers >= 0 that differ, of which only the order matters.

    Blocks of `perm_size` come one after the other, and all are permuted alike, as the original's are.
    """
    rows, width = bits.shape
    block_bits = (width // perm_size - 1).bit_length()
    within = _unique(bits[:, :perm_size] >> (1 + block_bits))
    block = jnp.arange(width // perm_size, dtype=jnp.uint32) << (31 - block_bits)
    return (block[None, :, None] | within[:, None, :]).reshape(rows, width).astype(jnp.int32)


def permutation_visibility(
    order: Int[Array, "B S"], functional: Bool[Array, "B S"], parts: tuple[int, ...]
) -> Bool[Array, "B S S"]:
    """True where token i (second axis) may look at token j (third): 1 - `perm_mask` of the original.

    order       when tokens that are hidden or functional are predicted; -1 = seen by everybody
    functional  [SEP] and [CLS], which are never targets: seen in their turn, even by themselves, and by no token that
                is seen by everybody
    parts       a token sees nothing of the parts behind its own, and all of those before it
    """
    part = np.repeat(np.arange(len(parts)), parts)
    own, before = jnp.asarray(part[:, None] == part[None, :]), jnp.asarray(part[:, None] > part[None, :])
    earlier = order[:, :, None] > order[:, None, :]
    itself = functional[:, :, None] & (order[:, :, None] == order[:, None, :])
    return before[None] | (own[None] & ((order < 0)[:, None, :] | earlier | itself))
