"""N-grams of whole words: ALBERT's in random order, DeBERTa's one in every window."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from bertjax.config.objectives.masking import MaskingConfig
from bertjax.objectives.masking.tokens import WINDOWS, Tokens, Words, draw_uniforms
from bertjax.objectives.masking.whole_word import Order, room_of

NGRAM_PASSES = 10
"""Passes over a row; most rows are settled after four."""


def sample_ngram_lengths(noise: Array, max_ngram: int) -> Array:
    """Lengths 1 .. max_ngram with probabilities in proportion to 1 / n, from uniform noise."""
    shares = 1.0 / np.arange(1, max_ngram + 1)
    return sample_lengths(noise, shares / shares.sum())


def sample_lengths(noise: Array, shares: np.ndarray) -> Array:
    """1 + the index that uniform noise draws from a distribution."""
    limits = jnp.asarray(np.cumsum(shares)[:-1], jnp.float32)
    return 1 + (noise[..., None] >= jnp.expand_dims(limits, range(noise.ndim))).sum(axis=-1, dtype=jnp.int32)


def ahead(values: Array, steps: int) -> Array:
    """values[:, w + steps], zero behind the end."""
    return jnp.pad(values[:, steps:], ((0, 0), (0, steps)))


def behind(values: Array, steps: int, fill: int) -> Array:
    """values[:, w - steps], `fill` before the beginning."""
    kept = values[:, : values.shape[1] - steps]
    return jnp.pad(kept, ((0, 0), (steps, 0)), constant_values=fill)


def select_random_ngrams(
    words: Words, noise: Float[Array, "B S"], lengths: Int[Array, "B S"], budget: Int[Array, "B E"], most: int
) -> Bool[Array, "B S"]:
    """True for the words of ALBERT's n-grams (google-research/albert:create_pretraining_data.py).

    Every word may begin one, of the length drawn for it; they come in random order. One that exceeds what is left of
    the budget is shortened until it fits, and skipped if not even its first word does; one that then overlaps a taken
    one is skipped. N-grams run over [SEP], as the authors' do, and never leave their example.

    A pass settles those that all before them in the order leave enough room for, unless an unsettled one before them
    wants one of their words; and the very first one, at its final length.
    """
    order = Order(words, noise)
    num_examples = budget.shape[1]
    rank, room = order.rank, room_of(budget, words.example)
    own = [(ahead(words.example, k) == words.example) & (ahead(words.size, k) > 0) for k in range(most)]
    # sizes[n - 1][w]: tokens of the n words from w on
    sizes = jnp.cumsum(jnp.stack([jnp.where(own[k], ahead(words.size, k), 0) for k in range(most)]), axis=0)
    inside = jnp.stack(own)  # [most, B, S]
    step = jnp.arange(most, dtype=jnp.int32)[:, None, None]
    cost = jnp.take_along_axis(sizes, (lengths - 1)[None], axis=0)[0]
    unsettled, covered = words.size > 0, jnp.zeros(words.size.shape, bool)
    last = words.size.shape[1]
    for _ in range(NGRAM_PASSES):
        unsettled &= ~covered & (words.size <= room)
        used = order.unsort(order.cumulative(order.sort(jnp.where(unsettled, cost, 0))))
        sure = unsettled & (used <= room)
        place = order.unsort(order.cumulative(order.sort(unsettled.astype(jnp.int32))))
        head = unsettled & (place == 1)
        fitting = ((sizes <= room[None]) & (step < lengths[None])).sum(axis=0, dtype=jnp.int32)
        length = jnp.where(sure, lengths, fitting)
        wanted = inside & (step < length[None])
        overlaps = _any_ahead(wanted, covered)
        claims = jnp.where(unsettled, rank, last)
        rival = _first_claim(claims, lengths, inside)
        beaten = (jnp.stack([ahead(rival, k) for k in range(most)]) < rank[None]) & wanted
        taken = ~overlaps & ((sure & ~beaten.any(axis=0)) | head) & unsettled
        covered |= _cover(taken, length, inside)
        unsettled &= ~taken & ~((sure | head) & overlaps)
        spent = jnp.where(taken, jnp.take_along_axis(sizes, jnp.maximum(length - 1, 0)[None], axis=0)[0], 0)
        room = room - order.unsort(order.totals(order.sort(spent), num_examples))
    return covered


def _any_ahead(wanted: Bool[Array, "n B S"], covered: Bool[Array, "B S"]) -> Bool[Array, "B S"]:
    """True where one of the wanted words, counted from each, is covered."""
    return jnp.stack([wanted[k] & ahead(covered, k) for k in range(len(wanted))]).any(axis=0)


def _first_claim(
    claims: Int[Array, "B S"], lengths: Int[Array, "B S"], inside: Bool[Array, "n B S"]
) -> Int[Array, "B S"]:
    """For every word the smallest of the claims of the n-grams that hold it."""
    last = claims.shape[1]
    held = [jnp.where(inside[k] & (lengths > k), claims, last) for k in range(len(inside))]
    return jnp.stack([behind(held[k], k, last) for k in range(len(inside))]).min(axis=0)


def _cover(taken: Bool[Array, "B S"], length: Int[Array, "B S"], inside: Bool[Array, "n B S"]) -> Bool[Array, "B S"]:
    """True for the words of the taken n-grams."""
    held = [(taken & inside[k] & (length > k)).astype(jnp.int32) for k in range(len(inside))]
    return jnp.stack([behind(held[k], k, 0) for k in range(len(inside))]).any(axis=0)


def select_window_ngrams(
    config: MaskingConfig, tokens: Tokens, words: Words, budget: Int[Array, "B E"]
) -> Bool[Array, "B S"]:
    """True for the words of DeBERTa's n-grams (microsoft/DeBERTa:DeBERTa/apps/tasks/mlm_task.py).

    Windows of n * int(1 / mask_rate) words follow each other, n drawn anew for each; the n-gram begins anywhere in its
    window, and one that hangs over pushes the next window on. Words are hidden from the left until the budget is
    reached, the last one whole: as windows hide 1 in int(1 / mask_rate) words, the end of a long text is hidden less.
    """
    rows, length = tokens.ids.shape
    period = int(1.0 / config.mask_rate)
    examples = jnp.arange(budget.shape[1])[None, None, :]
    many = (words.example[:, :, None] == examples).sum(axis=1)[:, :, None]
    before = (words.example[:, :, None] < examples).sum(axis=1)[:, :, None]
    noise = draw_uniforms(tokens.keys, WINDOWS, 2 * (length // period + 1))
    lengths_noise, places_noise = jnp.split(noise, 2, axis=-1)
    n = sample_ngram_lengths(lengths_noise, config.max_ngram)
    whole = n * period
    moved = jnp.maximum(whole, jnp.floor(places_noise * whole).astype(jnp.int32) + n)
    start = jnp.cumsum(moved, axis=-1) - moved  # of the window: only the last can be shorter than whole
    place = start + jnp.floor(places_noise * jnp.clip(many - start, 0, whole)).astype(jnp.int32)
    there = start < many
    begin = jnp.where(there, place + before, length).reshape(rows, -1)
    end = jnp.where(there, jnp.minimum(place + n, many) + before, length).reshape(rows, -1)
    row = jnp.arange(rows)[:, None]
    edges = jnp.zeros((rows, length + 1), jnp.int32).at[row, begin].add(1).at[row, end].add(-1)
    hidden = jnp.cumsum(edges, axis=1)[:, :length] > 0
    size = jnp.where(hidden, words.size, 0)
    total = jnp.cumsum(size, axis=1) - size
    is_first = words.example != behind(words.example, 1, -1)
    used = total - jax.lax.cummax(jnp.where(is_first, total, 0), axis=1)
    return hidden & (used < room_of(budget, words.example))
