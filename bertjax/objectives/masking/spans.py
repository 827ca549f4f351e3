"""SpanBERT's spans (facebookresearch/SpanBERT:pretraining/fairseq/data/masking.py; arXiv:1907.10529, section 3.1)."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from bertjax.objectives.masking.ngrams import ahead, behind
from bertjax.objectives.masking.tokens import Tokens, Words
from bertjax.objectives.masking.whole_word import Order, room_of

SPAN_PASSES = 12
"""Passes over a row, two for every link of a chain of spans that begin inside each other: few chains are longer than
three. What is still open after the last pass, late in the order, becomes a span of one word."""


def span_length_probabilities(p: float, longest: int) -> np.ndarray:
    """Geometric probabilities of 1 .. longest words, truncated and scaled to sum to 1 (p = 0.2: mean 3.80)."""
    shares = p * (1.0 - p) ** np.arange(longest)
    return shares / shares.sum()


def spans(
    tokens: Tokens,
    words: Words,
    noise: Float[Array, "B S"],
    lengths: Int[Array, "B S"],
    budget: Int[Array, "B E"],
    longest: int,
) -> Bool[Array, "B S"]:
    """True for the tokens of spans, as many as the budget says, exactly: the last span is cut, even inside a word.

    The authors draw tokens that are not hidden yet, uniformly, and begin a span at the word of each. That is to take
    all tokens in random order and skip the hidden ones; of a word's tokens only the first in that order counts. A span
    is told by the rank of its word: `when` is the rank of the first span that hides a word.
    """
    order = Order(words, _smallest_in_word(tokens, words, noise))
    rank, last = order.rank, noise.shape[1]
    is_word = words.size > 0
    # reach[k][w]: a span from w on holds the word k places further, in the same example
    own = [(ahead(words.example, k) == words.example) & (ahead(words.size, k) > 0) for k in range(longest)]
    reach = jnp.stack([own[k] & (lengths > k) for k in range(longest)])

    def settle(_: Array, state: tuple[Array, Array]) -> tuple[Array, Array]:
        spanning, waiting = state
        hidden = _first_holder(jnp.where(spanning, rank, last), reach) < rank
        threatened = _first_holder(jnp.where(spanning | waiting, rank, last), reach) < rank
        return spanning | (waiting & ~threatened), waiting & threatened & ~hidden

    # A loop, and not passes one below the other: XLA would compute each anew for every neighbour that reads it.
    spanning, _ = jax.lax.fori_loop(0, SPAN_PASSES, settle, (jnp.zeros_like(is_word), is_word))
    when = _first_holder(jnp.where(spanning, rank, last), reach)
    when = jnp.where(is_word & (when == last), rank, when)
    return _first_tokens(tokens, words, order, when, budget)


def _smallest_in_word(tokens: Tokens, words: Words, noise: Float[Array, "B S"]) -> Float[Array, "B S"]:
    row = jnp.arange(len(noise))[:, None]
    return jnp.ones_like(noise).at[row, words.of_token].min(jnp.where(tokens.candidates, noise, 1.0))


def _first_holder(ranks: Int[Array, "B S"], reach: Bool[Array, "n B S"]) -> Int[Array, "B S"]:
    """For every word the smallest rank of the spans that hold it; S where none does."""
    last = ranks.shape[1]
    held = [behind(jnp.where(reach[k], ranks, last), k, last) for k in range(len(reach))]
    return functools.reduce(jnp.minimum, held)


def _first_tokens(
    tokens: Tokens, words: Words, order: Order, when: Int[Array, "B S"], budget: Int[Array, "B E"]
) -> Bool[Array, "B S"]:
    """The first `budget` tokens of every example in the order in which spans hide them, left to right in each."""
    row = jnp.arange(len(when))[:, None]
    added = jnp.zeros(when.shape, jnp.int32).at[row, jnp.where(words.size > 0, when, 0)].add(words.size)
    after = order.cumulative(added)  # tokens hidden by the span of each rank and those before it
    cut_off = room_of(budget, order.example)
    token_when = jnp.take_along_axis(when, words.of_token, axis=1)
    after, added, room = (jnp.take_along_axis(x, token_when, axis=1) for x in (after, added, cut_off))
    is_cut = tokens.candidates & (after > room) & (after - added < room)  # at most one span an example
    counted = jnp.cumsum(is_cut, axis=1)
    others = jax.lax.cummax(jnp.where(tokens.positions == 0, counted - is_cut, 0), axis=1)
    return tokens.candidates & ((after <= room) | (is_cut & (counted - others <= room - (after - added))))
