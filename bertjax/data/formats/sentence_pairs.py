"""Sentence pair formats: `nsp_pairs`, half with a random second segment, and `sop_pairs`, half with swapped segments.

The rules are those of `create_pretraining_data.py` (google-research/bert, google-research/albert), applied to all
documents of a group in lockstep. A pair is two slices of the corpus; tokens are only copied when a batch is made.
"""

from __future__ import annotations

import dataclasses
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, TypeVar

import numpy as np

from bertjax.data.corpus import Corpus
from bertjax.data.counter_rng import CounterRng, IntArray, binomial_half, bits_to_integers, permutation
from bertjax.data.formats.base import (
    EpochPlanCache,
    FormatSettings,
    PackableFormat,
    assemble_sequences,
    example_ids,
    pad_examples,
)
from bertjax.errors import UserError

SPECIALS = 3  # [CLS], [SEP], [SEP]
MIN_TOKENS = 2  # one token per segment
TRIES = 10  # to draw another document than that of A
SENTENCES_PER_GROUP = 1 << 20  # bounds memory, unit of parallel work; changing it changes the batches of a seed

Result = TypeVar("Result")


@dataclasses.dataclass(frozen=True)
class PairPlan:
    """Pairs as slices of a corpus, all arrays [num_pairs]; `label` is 1 where B does not follow A.

    Takes 13 bytes per pair, up to 2**32 tokens of text and 2**16 tokens per sequence.
    """

    a_start: np.ndarray  # uint32, int64
    a_length: np.ndarray  # uint16, int32
    b_start: np.ndarray
    b_length: np.ndarray
    label: np.ndarray  # bool

    @property
    def num_pairs(self) -> int:
        """Number of pairs."""
        return len(self.a_start)


class PairFormat(PackableFormat):
    """One example per sequence, [CLS] A [SEP] B [SEP], with `pair_labels` 0 where B follows A.

    With `rule` "nsp" B is random text for half of the pairs and wherever there is only one sentence; with "sop" B is
    the text before A for half of them. Pairs are drawn again in each of `dupe_factor` epochs.
    """

    def __init__(self, corpus: Corpus, settings: FormatSettings, rule: str) -> None:
        minimum = SPECIALS + MIN_TOKENS
        if settings.seq_len < minimum:
            raise UserError(f"data.seq_len must be at least {minimum} for pairs, not {settings.seq_len}")
        self.settings = settings
        self._corpus = corpus
        self._rule = rule
        self._counts: dict[int, int] = {}
        self._lock = threading.Lock()
        self._plans: EpochPlanCache[int, PairPlan] = EpochPlanCache(self._plan)
        self._orders: EpochPlanCache[int, tuple[PairPlan, IntArray]] = EpochPlanCache(self._order)

    def num_sequences(self, epoch: int) -> int:
        draw = epoch % self.settings.dupe_factor
        with self._lock:
            if draw not in self._counts:
                self._counts[draw] = count_pairs(self._corpus, self.settings, draw, self._rule)
            return self._counts[draw]

    def plan_ahead(self, epoch: int) -> None:
        self._orders.start(epoch)

    def sequences(self, epoch: int, indices: IntArray) -> dict[str, np.ndarray]:
        plan, order = self._orders.get(epoch)
        return self._assemble(plan, epoch, order[indices], np.ones(len(indices), np.int64))

    def lengths(self, epoch: int) -> np.ndarray:
        plan = self._plans.get(epoch % self.settings.dupe_factor)
        return plan.a_length.astype(np.int32) + plan.b_length + SPECIALS

    def examples(self, epoch: int, numbers: IntArray, counts: IntArray) -> dict[str, np.ndarray]:
        return self._assemble(self._plans.get(epoch % self.settings.dupe_factor), epoch, numbers, counts)

    def _assemble(self, plan: PairPlan, epoch: int, pairs: IntArray, counts: IntArray) -> dict[str, np.ndarray]:
        columns = (plan.a_start, plan.a_length, plan.b_start, plan.b_length)
        a_start, a_length, b_start, b_length = (column[pairs].astype(np.int64) for column in columns)
        segments, identities = [(a_start, a_length), (b_start, b_length)], example_ids(self._corpus, a_start)
        batch = assemble_sequences(self._corpus, segments, self.settings, identities, epoch, counts)
        return batch | {"pair_labels": pad_examples(plan.label[pairs].astype(np.int32), counts, self.settings)}

    def _plan(self, draw: int) -> PairPlan:
        plan = plan_pairs(self._corpus, self.settings, draw, self._rule)
        self._counts[draw] = plan.num_pairs
        return plan

    def _order(self, epoch: int) -> tuple[PairPlan, IntArray]:
        plan = self._plans.get(epoch % self.settings.dupe_factor)
        return plan, permutation(plan.num_pairs, "order of pairs", self.settings.seed, epoch)


def plan_pairs(corpus: Corpus, settings: FormatSettings, draw: int, rule: str = "nsp") -> PairPlan:
    """Draws all pairs of one pass over the corpus.

    Args:
        corpus: the text.
        settings: settings of the format; `seq_len`, `seed` and `short_seq_prob` matter.
        draw: epoch modulo `dupe_factor`.
        rule: "nsp" or "sop".
    """
    max_tokens = settings.seq_len - SPECIALS

    def plan_group(group: range) -> PairPlan:
        rng = CounterRng("pairs", settings.seed, draw, settings.seq_len, group.start)
        chunks = _cut_chunks(corpus, settings, group, rng, rule)
        return _compress(_truncate(_choose_segments(corpus, chunks, rng), max_tokens, rng), corpus, settings)

    plans = _for_each_group(corpus, plan_group)
    columns = [field.name for field in dataclasses.fields(PairPlan)]
    return PairPlan(*(np.concatenate([getattr(plan, name) for plan in plans]) for name in columns))


def count_pairs(corpus: Corpus, settings: FormatSettings, draw: int, rule: str = "nsp") -> int:
    """Returns `plan_pairs(...).num_pairs` at lower cost; all epochs before a cursor are counted.

    Args:
        corpus, settings, draw, rule: those of `plan_pairs`.
    """

    def count_group(group: range) -> int:
        rng = CounterRng("pairs", settings.seed, draw, settings.seq_len, group.start)
        return len(_cut_chunks(corpus, settings, group, rng, rule).document)

    return sum(_for_each_group(corpus, count_group))


class _Chunks(NamedTuple):
    """Runs of sentences, int64 [n]: the offsets into sentences where A begins, A ends and the run ends."""

    document: IntArray
    first: IntArray
    a_end: IntArray
    last: IntArray
    target: IntArray  # intended tokens of the pair
    is_random: np.ndarray  # bool: B is text from another document
    is_swapped: np.ndarray  # bool: the second segment comes first


def _cut_chunks(corpus: Corpus, settings: FormatSettings, group: range, rng: CounterRng, rule: str) -> _Chunks:
    """Walks through all documents of the group at once, one chunk of each per round.

    A chunk takes sentences until it has the target length or the document ends; A is a random non-empty beginning of
    it. Where B will be random, the sentences after A are left for the next chunk. With "sop" that is only so where a
    chunk has one sentence, as in ALBERT's released code; `sop_drop_single_sentences` leaves these out.
    """
    max_tokens = settings.seq_len - SPECIALS
    document = np.arange(group.start, group.stop)
    position = corpus.document_sentences[document]
    end = corpus.document_sentences[document + 1]
    is_short = rng.uniform(len(document)) < settings.short_seq_prob
    target = np.where(is_short, 2 + rng.integers(np.full(len(document), max_tokens - 1)), max_tokens)
    base = position[0]  # bisect among the sentences of the group: they fit into the processor's cache
    tokens = corpus.sentence_tokens[base : end[-1] + 1]
    rounds: list[_Chunks] = []
    while document.size:
        last = np.minimum(base + np.searchsorted(tokens, tokens[position - base] + target), end)
        bits = rng.random_bits(document.size)
        sentences = last - position
        a_end = position + 1 + bits_to_integers(bits, sentences - 1)
        coin = (bits & np.uint64(1)) == 0  # `bits_to_integers` does not use the lowest bit
        is_single = sentences == 1
        if rule == "sop":
            is_random, is_swapped = is_single, coin & ~is_single
        else:
            is_random, is_swapped = is_single | coin, np.zeros_like(is_single)
        chunks = _Chunks(document, position, a_end, last, target, is_random, is_swapped)
        drops_single = rule == "sop" and settings.sop_drop_single_sentences
        rounds.append(_Chunks(*(column[~is_single] for column in chunks)) if drops_single else chunks)
        position = np.where(is_random, a_end, last)
        has_more = position < end
        if not has_more.all():
            document, position, end, target = (x[has_more] for x in (document, position, end, target))
    return _Chunks(*(np.concatenate(column) for column in zip(*rounds, strict=True)))


def _choose_segments(corpus: Corpus, chunks: _Chunks, rng: CounterRng) -> PairPlan:
    """Returns the pairs before truncation."""
    tokens = corpus.sentence_tokens
    a_start, b_start, b_end = tokens[chunks.first], tokens[chunks.a_end], tokens[chunks.last]
    a_length = b_start - a_start
    random = np.flatnonzero(chunks.is_random)
    other = _other_documents(chunks.document[random], corpus.num_documents, rng)
    begin, end = corpus.document_sentences[other], corpus.document_sentences[other + 1]
    first = begin + rng.integers(end - begin)
    target = np.maximum(chunks.target[random] - a_length[random], 1)  # at least one sentence
    b_start[random] = tokens[first]
    b_end[random] = tokens[np.minimum(_sorted_search(tokens, tokens[first] + target), end)]
    b_length, swapped = b_end - b_start, chunks.is_swapped
    return PairPlan(
        a_start=np.where(swapped, b_start, a_start),
        a_length=np.where(swapped, b_length, a_length),
        b_start=np.where(swapped, a_start, b_start),
        b_length=np.where(swapped, a_length, b_length),
        label=chunks.is_random | swapped,
    )


def _sorted_search(tokens: IntArray, values: IntArray) -> IntArray:
    """Returns `np.searchsorted`, three times faster for values all over a large corpus: sorted ones hit the cache."""
    order = np.argsort(values)
    indices = np.empty_like(order)
    indices[order] = np.searchsorted(tokens, values[order])
    return indices


def _other_documents(document: IntArray, num_documents: int, rng: CounterRng) -> IntArray:
    """Draws another document for each; the same one if ten tries fail (always in a corpus of one document)."""
    limits = np.full(len(document), num_documents)
    other = rng.integers(limits)
    for _ in range(TRIES - 1):
        same = np.flatnonzero(other == document)
        if not same.size:
            break
        other[same] = rng.integers(limits[same])
    return other


def truncate_lengths(a_length: IntArray, b_length: IntArray, excess: IntArray) -> tuple[IntArray, IntArray]:
    """Removes tokens one by one from the longer segment, from B if they are equal, in closed form.

    First the difference is removed, then both segments lose tokens in turn, B first.

    Args:
        a_length, b_length: int64 [n].
        excess: int64 [n], tokens to remove.

    Returns:
        The remaining lengths.
    """
    difference = a_length - b_length
    only_a, only_b = np.minimum(excess, np.maximum(difference, 0)), np.minimum(excess, np.maximum(-difference, 0))
    shared = excess - only_a - only_b
    return a_length - only_a - shared // 2, b_length - only_b - (shared + 1) // 2


def _truncate(plan: PairPlan, max_tokens: int, rng: CounterRng) -> PairPlan:
    """Truncates pairs; each removed token comes from the front or the back of its segment with equal probability."""
    excess = np.maximum(plan.a_length + plan.b_length - max_tokens, 0)
    a_length, b_length = truncate_lengths(plan.a_length, plan.b_length, excess)
    return PairPlan(
        a_start=plan.a_start + binomial_half(plan.a_length - a_length, rng),
        a_length=a_length,
        b_start=plan.b_start + binomial_half(plan.b_length - b_length, rng),
        b_length=b_length,
        label=plan.label,
    )


def _compress(plan: PairPlan, corpus: Corpus, settings: FormatSettings) -> PairPlan:
    """Converts to the smallest types: a plan stays in memory for the whole epoch."""
    start = np.uint32 if corpus.num_tokens < 1 << 32 else np.int64
    length = np.uint16 if settings.seq_len < 1 << 16 else np.int32
    return PairPlan(
        a_start=plan.a_start.astype(start),
        a_length=plan.a_length.astype(length),
        b_start=plan.b_start.astype(start),
        b_length=plan.b_length.astype(length),
        label=plan.label,
    )


def _groups(corpus: Corpus) -> Iterator[range]:
    """Yields ranges of whole documents with about a million sentences."""
    if not corpus.num_documents:
        return
    group = corpus.document_sentences[:-1] // SENTENCES_PER_GROUP
    limits = np.flatnonzero(np.diff(group, prepend=-1, append=group[-1] + 1))
    for first, last in zip(limits[:-1].tolist(), limits[1:].tolist(), strict=True):
        yield range(first, last)


def _for_each_group(corpus: Corpus, work: Callable[[range], Result]) -> list[Result]:
    groups = list(_groups(corpus))
    if len(groups) <= 1:
        return [work(group) for group in groups]
    with ThreadPoolExecutor(min(len(groups), os.cpu_count() or 1)) as pool:
        return list(pool.map(work, groups))
