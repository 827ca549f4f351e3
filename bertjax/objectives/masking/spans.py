"""SpanBERT's spans (facebookresearch/SpanBERT:pretraining/fairseq/data/masking.py; arXiv:1907.10529, section 3.1)."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from bertjax.objectives.masking.ngrams import first_span, following_words
from bertjax.objectives.masking.tokens import Tokens, Words
from bertjax.objectives.masking.whole_word import RandomOrder, lookup_by_example

SPAN_PASSES = 12
"""Passes over a sequence, two per link of a chain of spans that begin inside each other: few chains are longer than
three. A span that is still open after the last pass, late in the order, becomes a span of one word."""


def span_length_probabilities(p: float, max_span: int, min_span: int = 1) -> np.ndarray:
    """Returns the truncated geometric probabilities of 1 .. max_span words, float64 [max_span] (p = 0.2: mean 3.80).

    Args:
        p: as of the geometric distribution.
        max_span: longest span.
        min_span: shortest span; shorter ones have probability 0.
    """
    lengths = np.arange(max_span)
    shares = np.where(lengths + 1 >= min_span, p * (1.0 - p) ** lengths, 0.0)
    return shares / shares.sum()


def select_spans(
    tokens: Tokens,
    words: Words,
    noise: Float[Array, "B S"],
    lengths: Int[Array, "B S"],
    budget: Int[Array, "B E"],
    max_span: int,
) -> Bool[Array, "B S"]:
    """Returns True for the tokens of spans, exactly as many as the budget: the last span is cut, even inside a word.

    The authors draw tokens that are not masked yet, uniformly, and begin a span at the word of each. This is the same
    as going through all tokens in random order and skipping the masked ones; of a word's tokens only the first in that
    order counts. A span is identified by the rank of its first word: `when` is the rank of the first span that masks a
    word.

    Args:
        tokens: the tokens.
        words: the words.
        noise: random numbers of the tokens.
        lengths: the length, in words, of the span that begins at each word.
        budget: the number of predictions per example.
        max_span: the largest length.
    """
    order = RandomOrder(words, _min_in_word(tokens, words, noise))
    rank, last = order.rank, noise.shape[1]
    is_word = words.size > 0
    reach = following_words(words, max_span) & (jnp.arange(max_span)[:, None, None] < lengths[None])

    def settle(_: Array, state: tuple[Array, Array]) -> tuple[Array, Array]:
        is_span, is_open = state
        is_masked = first_span(jnp.where(is_span, rank, last), reach) < rank
        is_threatened = first_span(jnp.where(is_span | is_open, rank, last), reach) < rank
        return is_span | (is_open & ~is_threatened), is_open & is_threatened & ~is_masked

    # A loop instead of unrolled passes, which XLA would recompute for every neighbor that reads them.
    is_span, _ = jax.lax.fori_loop(0, SPAN_PASSES, settle, (jnp.zeros_like(is_word), is_word))
    when = first_span(jnp.where(is_span, rank, last), reach)
    when = jnp.where(is_word & (when == last), rank, when)
    return _first_tokens(tokens, words, order, when, budget)


def _min_in_word(tokens: Tokens, words: Words, noise: Float[Array, "B S"]) -> Float[Array, "B S"]:
    sequence = jnp.arange(len(noise))[:, None]
    return jnp.ones_like(noise).at[sequence, words.word_of_token].min(jnp.where(tokens.candidates, noise, 1.0))


def _first_tokens(
    tokens: Tokens, words: Words, order: RandomOrder, when: Int[Array, "B S"], budget: Int[Array, "B E"]
) -> Bool[Array, "B S"]:
    """Selects the first `budget` tokens of every example in the order of their spans, left to right in each."""
    sequence = jnp.arange(len(when))[:, None]
    added = jnp.zeros(when.shape, jnp.int32).at[sequence, jnp.where(words.size > 0, when, 0)].add(words.size)
    total = order.cumulative(added)  # tokens masked by the span of each rank and those before it
    limit = lookup_by_example(budget, order.example)
    token_when = jnp.take_along_axis(when, words.word_of_token, axis=1)
    total, added, limit = (jnp.take_along_axis(x, token_when, axis=1) for x in (total, added, limit))
    is_cut = tokens.candidates & (total > limit) & (total - added < limit)  # at most one span per example
    counted = jnp.cumsum(is_cut, axis=1)
    others = jax.lax.cummax(jnp.where(tokens.positions == 0, counted - is_cut, 0), axis=1)
    return tokens.candidates & ((total <= limit) | (is_cut & (counted - others <= limit - (total - added))))
