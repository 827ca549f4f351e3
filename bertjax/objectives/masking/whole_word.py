"""Selection of tokens and words in random order until the number of predictions of their example is reached.

Greedy rules are sequential. Here their results come from a few passes over whole sequences: words are sorted by example
and random number once, and every pass settles those that no earlier one can affect any more.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from bertjax.objectives.masking.settings import Masking
from bertjax.objectives.masking.tokens import DRAWS, Tokens, Words, draw_uniforms
from bertjax.types import Vocabulary

WHOLE_WORD_PASSES = 8
"""Passes of whole-word masking; each fills what is left of the budget with the next words that fit. With random words
one to three suffice for most sequences, and eight did for 5,000 sequences of 512 tokens; one that needed more would
predict a few tokens less."""


class RandomOrder:
    """The words of every sequence sorted by example, then by noise.

    Attributes:
        order: [B, S], the words in this order.
        rank: [B, S], its inverse.
        example: [B, S], the examples in this order.
    """

    def __init__(self, words: Words, noise: Float[Array, "B S"]):
        index = jnp.broadcast_to(jnp.arange(noise.shape[1], dtype=jnp.int32)[None, :], noise.shape)
        self.example, _, self.order = jax.lax.sort((words.example, noise, index), dimension=1, num_keys=2)
        self.rank = jnp.zeros_like(self.order).at[jnp.arange(len(noise))[:, None], self.order].set(index)
        previous = jnp.pad(self.example[:, :-1], ((0, 0), (1, 0)), constant_values=-1)
        self._is_first = self.example != previous

    def sort(self, values: Array) -> Array:
        """Returns values of words [B, S] in this order."""
        return jnp.take_along_axis(values, self.order, axis=1)

    def unsort(self, values: Array) -> Array:
        """Returns sorted values [B, S] in the order of the text."""
        return jnp.take_along_axis(values, self.rank, axis=1)

    def cumulative(self, values: Int[Array, "B S"]) -> Int[Array, "B S"]:
        """Returns cumulative sums, within each example, of sorted values >= 0."""
        total = jnp.cumsum(values, axis=1)
        return total - jax.lax.cummax(jnp.where(self._is_first, total - values, 0), axis=1)

    def totals(self, values: Int[Array, "B S"], num_examples: int) -> Int[Array, "B S"]:
        """Returns for each word the sum of the sorted values of its example."""
        sequence = jnp.arange(len(values))[:, None]
        sums = jnp.zeros((len(values), num_examples + 1), values.dtype).at[sequence, self.example].add(values)
        return jnp.take_along_axis(sums, self.example, axis=1)


def lookup_by_example(values: Int[Array, "B E"], example: Int[Array, "B S"]) -> Int[Array, "B S"]:
    """Returns the value of each word's example; 0 where there is none."""
    return jnp.take_along_axis(jnp.pad(values, ((0, 0), (0, 1))), example, axis=1)


def select_in_random_order(
    words: Words, noise: Float[Array, "B S"], cost: Int[Array, "B S"], budget: Int[Array, "B E"], passes: int
) -> Bool[Array, "B S"]:
    """Selects words of every example in the order of their noise, as long as their cost fits.

    A word that does not fit is skipped and the next is tried (google-research/bert:create_pretraining_data.py).

    Args:
        words: the words.
        noise: random numbers of the words.
        cost: what a word takes from the budget.
        budget: the number of predictions per example.
        passes: one is exact where all words cost the same.
    """
    order = RandomOrder(words, noise)
    cost, budget_left = order.sort(cost), lookup_by_example(budget, order.example)
    is_open = order.sort(words.size) > 0
    selected = jnp.zeros_like(is_open)
    for _ in range(passes):
        is_open &= cost <= budget_left
        used = order.cumulative(jnp.where(is_open, cost, 0))
        too_much = order.cumulative((is_open & (used > budget_left)).astype(jnp.int32))
        fits = is_open & (too_much == 0)
        selected |= fits
        if passes > 1:
            budget_left = budget_left - order.totals(jnp.where(fits, cost, 0), budget.shape[1])
            is_open &= ~fits
    return order.unsort(selected)


def favor_rare_tokens(
    noise: Float[Array, "B S"], ids: Int[Array, "B S"], power: float, vocabulary: Vocabulary
) -> Array:
    """Turns uniform noise into noise whose smallest values are a weighted sample without replacement (DistilBERT).

    Exponential times with these rates arrive in the order of such a sample. Counts are at least 1
    (huggingface/transformers-research-projects:distillation/train.py).

    Args:
        noise: uniform in [0, 1).
        ids: token ids.
        power: the weight of a token is count ** -power.
        vocabulary: the tokenizer's vocabulary.
    """
    counts = np.pad(np.maximum(vocabulary.counts, 1), (0, vocabulary.padded_size - vocabulary.size), constant_values=1)
    slowness = jnp.asarray((counts / counts.max()) ** power, jnp.float32)
    return -jnp.log1p(-noise) * slowness[ids]


def sample_with_replacement(
    config: Masking, tokens: Tokens, words: Words, budget: Int[Array, "B E"]
) -> Int[Array, "B S"]:
    """Returns how often each token is drawn (google-research/electra:pretrain/pretrain_helpers.py).

    Args:
        config: the masking.
        tokens: the tokens.
        words: single tokens as words.
        budget: the number of draws per example.
    """
    batch_size, length = tokens.ids.shape
    examples, limit = jnp.arange(budget.shape[1])[None, None, :], config.predictions_limit
    number = (words.example[:, :, None] == examples).sum(axis=1)
    before = (words.example[:, :, None] < examples).sum(axis=1)
    draws = draw_uniforms(tokens.keys, DRAWS, limit)
    drawn = jnp.floor(draws * number[:, :, None]).astype(jnp.int32) + before[:, :, None]
    is_counted = (jnp.arange(limit)[None, None, :] < budget[:, :, None]) & (number > 0)[:, :, None]
    word = jnp.where(is_counted, drawn, length).reshape(batch_size, -1)
    sequence = jnp.arange(batch_size)[:, None]
    times = jnp.zeros((batch_size, length), jnp.int32).at[sequence, word].add(1, mode="drop")
    return jnp.where(tokens.candidates, jnp.take_along_axis(times, words.word_of_token, axis=1), 0)
