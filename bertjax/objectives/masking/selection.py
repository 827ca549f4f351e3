"""Selection of tokens, words, n-grams and spans until the number of predictions of their example is reached.

Greedy rules are sequential. Here their results come from a few passes over whole sequences: words are sorted by example
and random number once, and every pass settles those that no earlier one can affect any more.

N-grams are of whole words: ALBERT's in random order, DeBERTa's one per window. Spans are those of
facebookresearch/SpanBERT:pretraining/fairseq/data/masking.py (arXiv:1907.10529, section 3.1).
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from bertjax.objectives.masking.settings import Masking
from bertjax.objectives.masking.tokens import DRAWS, WINDOWS, Tokens, Words, draw_uniforms
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


NGRAM_PASSES = 10
"""Passes over a sequence; most are settled after four."""


def sample_ngram_lengths(noise: Array, max_ngram: int) -> Array:
    """Returns lengths 1 .. max_ngram with probabilities proportional to 1 / n, from uniform noise [...]."""
    shares = 1.0 / np.arange(1, max_ngram + 1)
    return sample_lengths(noise, shares / shares.sum())


def sample_lengths(noise: Array, shares: np.ndarray) -> Array:
    """Returns 1 + the index that uniform noise [...] draws from the distribution `shares` [lengths], int32 [...]."""
    limits = jnp.asarray(np.cumsum(shares)[:-1], jnp.float32)
    return 1 + (noise[..., None] >= jnp.expand_dims(limits, range(noise.ndim))).sum(axis=-1, dtype=jnp.int32)


def shift_left(values: Array, steps: int) -> Array:
    """Returns values[:, w + steps], 0 after the end."""
    return jnp.pad(values[:, steps:], ((0, 0), (0, steps)))


def shift_right(values: Array, steps: int, fill: int) -> Array:
    """Returns values[:, w - steps].

    Args:
        values: [B, W].
        steps: Distance.
        fill: Value before the beginning.
    """
    return jnp.pad(values[:, : values.shape[1] - steps], ((0, 0), (steps, 0)), constant_values=fill)


def following_words(words: Words, count: int) -> Bool[Array, "n B S"]:
    """Returns True where a sequence has a word k positions after word w, in the same example, for k < `count`."""
    return jnp.stack(
        [(shift_left(words.example, k) == words.example) & (shift_left(words.size, k) > 0) for k in range(count)]
    )


def first_span(ranks: Int[Array, "B S"], reach: Bool[Array, "n B S"]) -> Int[Array, "B S"]:
    """Returns for every word the smallest rank of the spans that contain it; S where none does.

    A span from w on has the rank of w, and contains the word k positions further where `reach[k][w]`.
    """
    last = ranks.shape[1]
    held = [shift_right(jnp.where(reach[k], ranks, last), k, last) for k in range(len(reach))]
    return functools.reduce(jnp.minimum, held)


def select_random_ngrams(
    words: Words, noise: Float[Array, "B S"], lengths: Int[Array, "B S"], budget: Int[Array, "B E"], max_ngram: int
) -> Bool[Array, "B S"]:
    """Returns True for the words of ALBERT's n-grams (google-research/albert:create_pretraining_data.py).

    Every word may begin one, of the length drawn for it; they come in random order. One that exceeds the rest of the
    budget is shortened until it fits, and skipped if not even its first word does; one that then overlaps a selected
    one is skipped. N-grams run over [SEP], like the authors', and never leave their example.

    A pass settles the n-grams that fit whatever becomes of all earlier ones, unless an unsettled earlier one claims one
    of their words, and the very first one, at its final length.

    Args:
        words: the words.
        noise: random numbers of the words.
        lengths: the length of the n-gram that begins at each word.
        budget: the number of predictions per example.
        max_ngram: the largest length.
    """
    order = RandomOrder(words, noise)
    num_examples = budget.shape[1]
    rank, budget_left = order.rank, lookup_by_example(budget, words.example)
    offsets = range(max_ngram)
    inside = following_words(words, max_ngram)
    # sizes[n - 1][w]: tokens of the n words from w on
    sizes = jnp.cumsum(jnp.stack([jnp.where(inside[k], shift_left(words.size, k), 0) for k in offsets]), axis=0)
    step = jnp.arange(max_ngram, dtype=jnp.int32)[:, None, None]
    cost = jnp.take_along_axis(sizes, (lengths - 1)[None], axis=0)[0]
    is_open, covered = words.size > 0, jnp.zeros(words.size.shape, bool)
    last = words.size.shape[1]
    for _ in range(NGRAM_PASSES):
        is_open &= ~covered & (words.size <= budget_left)
        used = order.unsort(order.cumulative(order.sort(jnp.where(is_open, cost, 0))))
        fits = is_open & (used <= budget_left)
        location = order.unsort(order.cumulative(order.sort(is_open.astype(jnp.int32))))
        is_head = is_open & (location == 1)
        fitting = ((sizes <= budget_left[None]) & (step < lengths[None])).sum(axis=0, dtype=jnp.int32)
        length = jnp.where(fits, lengths, fitting)
        claimed = inside & (step < length[None])
        overlaps = _overlaps(claimed, covered)
        rival = first_span(jnp.where(is_open, rank, last), inside & (step < lengths[None]))
        is_beaten = (jnp.stack([shift_left(rival, k) for k in offsets]) < rank[None]) & claimed
        selected = ~overlaps & ((fits & ~is_beaten.any(axis=0)) | is_head) & is_open
        covered |= _cover(selected, length, inside)
        is_open &= ~selected & ~((fits | is_head) & overlaps)
        spent = jnp.where(selected, jnp.take_along_axis(sizes, jnp.maximum(length - 1, 0)[None], axis=0)[0], 0)
        budget_left = budget_left - order.unsort(order.totals(order.sort(spent), num_examples))
    return covered


def _overlaps(claimed: Bool[Array, "n B S"], covered: Bool[Array, "B S"]) -> Bool[Array, "B S"]:
    """Returns True where one of the words that an n-gram claims is covered."""
    return jnp.stack([claimed[k] & shift_left(covered, k) for k in range(len(claimed))]).any(axis=0)


def _cover(selected: Bool[Array, "B S"], length: Int[Array, "B S"], inside: Bool[Array, "n B S"]) -> Bool[Array, "B S"]:
    """Returns True for the words of the selected n-grams."""
    held = [(selected & inside[k] & (length > k)).astype(jnp.int32) for k in range(len(inside))]
    return jnp.stack([shift_right(held[k], k, 0) for k in range(len(inside))]).any(axis=0)


def select_window_ngrams(
    config: Masking, tokens: Tokens, words: Words, budget: Int[Array, "B E"]
) -> Bool[Array, "B S"]:
    """Returns True for the words of DeBERTa's n-grams (microsoft/DeBERTa:DeBERTa/apps/tasks/mlm_task.py).

    Windows of n * int(1 / mask_rate) words follow each other, with a new n for each; the n-gram begins anywhere in its
    window, and one that exceeds it shifts the next window. Words are masked from the left until the budget is reached,
    the last one whole. As windows mask 1 in int(1 / mask_rate) words, fewer are masked at the end of a long text.

    Args:
        config: the masking.
        tokens: the tokens.
        words: the words.
        budget: the number of predictions per example.
    """
    batch_size, length = tokens.ids.shape
    period = int(1.0 / config.mask_rate)
    examples = jnp.arange(budget.shape[1])[None, None, :]
    number = (words.example[:, :, None] == examples).sum(axis=1)[:, :, None]
    before = (words.example[:, :, None] < examples).sum(axis=1)[:, :, None]
    noise = draw_uniforms(tokens.keys, WINDOWS, 2 * (length // period + 1))
    length_noise, offset_noise = jnp.split(noise, 2, axis=-1)
    n = sample_ngram_lengths(length_noise, config.max_ngram)
    window = n * period
    advance = jnp.maximum(window, jnp.floor(offset_noise * window).astype(jnp.int32) + n)
    start = jnp.cumsum(advance, axis=-1) - advance  # of the window: only the last can be shorter than the others
    position = start + jnp.floor(offset_noise * jnp.clip(number - start, 0, window)).astype(jnp.int32)
    exists = start < number
    begin = jnp.where(exists, position + before, length).reshape(batch_size, -1)
    end = jnp.where(exists, jnp.minimum(position + n, number) + before, length).reshape(batch_size, -1)
    sequence = jnp.arange(batch_size)[:, None]
    edges = jnp.zeros((batch_size, length + 1), jnp.int32).at[sequence, begin].add(1).at[sequence, end].add(-1)
    selected = jnp.cumsum(edges, axis=1)[:, :length] > 0
    size = jnp.where(selected, words.size, 0)
    total = jnp.cumsum(size, axis=1) - size
    is_first = words.example != shift_right(words.example, 1, -1)
    used = total - jax.lax.cummax(jnp.where(is_first, total, 0), axis=1)
    return selected & (used < lookup_by_example(budget, words.example))


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
