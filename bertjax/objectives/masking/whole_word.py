"""Pieces and words taken in random order until the example's budget is spent.

Greedy rules are sequential. Here their results come from a few passes over whole rows: things are sorted by example
and random number once, and every pass settles whatever no earlier thing can change any more.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from bertjax.config.objectives.masking import MaskingConfig
from bertjax.objectives.masking.tokens import DRAWS, Tokens, Words, draw_uniforms
from bertjax.types import Vocabulary

PASSES = 8
"""Passes of the whole-word budget; each fills the room that is left with the next words that fit. On random words one
to three are enough for most rows, and eight were for 5,000 rows of 512 tokens; a row that needed more would predict a
few tokens less."""


class Order:
    """The words of every row sorted by example, then by `noise`: `order` [B, S] lists them, `rank` is the inverse."""

    def __init__(self, words: Words, noise: Float[Array, "B S"]):
        index = jnp.broadcast_to(jnp.arange(noise.shape[1], dtype=jnp.int32)[None, :], noise.shape)
        self.example, _, self.order = jax.lax.sort((words.example, noise, index), dimension=1, num_keys=2)
        self.rank = jnp.zeros_like(self.order).at[jnp.arange(len(noise))[:, None], self.order].set(index)
        before = jnp.pad(self.example[:, :-1], ((0, 0), (1, 0)), constant_values=-1)
        self._is_first = self.example != before

    def sort(self, values: Array) -> Array:
        """Values of words in this order."""
        return jnp.take_along_axis(values, self.order, axis=1)

    def unsort(self, values: Array) -> Array:
        """Sorted values back in the order of the text."""
        return jnp.take_along_axis(values, self.rank, axis=1)

    def cumulative(self, values: Int[Array, "B S"]) -> Int[Array, "B S"]:
        """Of sorted values >= 0: sums up to and with each, within its example."""
        total = jnp.cumsum(values, axis=1)
        return total - jax.lax.cummax(jnp.where(self._is_first, total - values, 0), axis=1)

    def totals(self, values: Int[Array, "B S"], num_examples: int) -> Int[Array, "B S"]:
        """Of sorted values: for each, the sum over its example."""
        rows = jnp.arange(len(values))[:, None]
        sums = jnp.zeros((len(values), num_examples + 1), values.dtype).at[rows, self.example].add(values)
        return jnp.take_along_axis(sums, self.example, axis=1)


def room_of(budget: Int[Array, "B E"], example: Int[Array, "B S"]) -> Int[Array, "B S"]:
    """The budget of everything's example; 0 where there is none."""
    return jnp.take_along_axis(jnp.pad(budget, ((0, 0), (0, 1))), example, axis=1)


def fill(
    words: Words, noise: Float[Array, "B S"], cost: Int[Array, "B S"], budget: Int[Array, "B E"], passes: int
) -> Bool[Array, "B S"]:
    """Words of every example in the order of their noise, taken while their cost fits.

    One that does not fit is skipped and the next is tried (google-research/bert:create_pretraining_data.py). Where all
    cost the same, one pass is exact.
    """
    order = Order(words, noise)
    cost, room = order.sort(cost), room_of(budget, order.example)
    open_words = order.sort(words.size) > 0
    taken = jnp.zeros_like(open_words)
    for _ in range(passes):
        open_words &= cost <= room
        used = order.cumulative(jnp.where(open_words, cost, 0))
        too_much = order.cumulative((open_words & (used > room)).astype(jnp.int32))
        fits = open_words & (too_much == 0)
        taken |= fits
        if passes > 1:
            room = room - order.totals(jnp.where(fits, cost, 0), budget.shape[1])
            open_words &= ~fits
    return order.unsort(taken)


def favor_rare_tokens(
    noise: Float[Array, "B S"], ids: Int[Array, "B S"], power: float, vocabulary: Vocabulary
) -> Array:
    """Noise whose smallest values are a sample without replacement with weights count ** -power (DistilBERT).

    Exponential times with these rates arrive in the order of such a sample. Counts are at least 1
    (huggingface/transformers-research-projects:distillation/train.py).
    """
    counts = np.pad(np.maximum(vocabulary.counts, 1), (0, vocabulary.padded_size - vocabulary.size), constant_values=1)
    slowness = jnp.asarray((counts / counts.max()) ** power, jnp.float32)
    return -jnp.log1p(-noise) * slowness[ids]


def with_replacement(
    config: MaskingConfig, tokens: Tokens, words: Words, budget: Int[Array, "B E"]
) -> Int[Array, "B S"]:
    """How often every token is drawn (google-research/electra:pretrain/pretrain_helpers.py)."""
    rows, length = tokens.ids.shape
    examples = jnp.arange(budget.shape[1])
    own = words.example[:, :, None] == examples[None, None, :]
    many, before = own.sum(axis=1), (words.example[:, :, None] < examples[None, None, :]).sum(axis=1)
    draws = draw_uniforms(tokens.keys, DRAWS, config.max_predictions)
    drawn = jnp.floor(draws * many[:, :, None]).astype(jnp.int32) + before[:, :, None]
    counted = (jnp.arange(config.max_predictions)[None, None, :] < budget[:, :, None]) & (many > 0)[:, :, None]
    word = jnp.where(counted, drawn, length).reshape(rows, -1)
    times = jnp.zeros((rows, length), jnp.int32).at[jnp.arange(rows)[:, None], word].add(1, mode="drop")
    return jnp.where(tokens.candidates, jnp.take_along_axis(times, words.of_token, axis=1), 0)
