"""The forms of sentence pairs: `nsp_pairs`, half with a random second segment, and `sop_pairs`, half of them swapped.

The rules are those of `create_pretraining_data.py` (google-research/bert, google-research/albert), drawn for all
documents of a group in lock-step instead of one after the other. A pair is two slices of the corpus; no token is
touched until a batch is made.
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
from bertjax.data.counter_rng import CounterRng, IntArray, binomial_half, permutation, scale
from bertjax.data.formats.base import EpochPlanCache, FormatSettings, assemble_sequences, example_ids, pad_examples
from bertjax.errors import UserError

SPECIALS = 3  # [CLS], [SEP], [SEP]
SHORTEST = 2  # one token on each side
TRIES = 10  # to find a document other than A's
SENTENCES_PER_GROUP = 1 << 20  # bounds memory and is the unit of parallel work; part of what a seed means

Result = TypeVar("Result")


@dataclasses.dataclass(frozen=True)
class PairPlan:
    """Pairs as slices of a corpus, all arrays [num_pairs]; `label` is 1 where B does not follow A.

    13 bytes a pair, up to 2**32 tokens of text and 2**16 of a row.
    """

    a_start: np.ndarray  # uint32, int64
    a_length: np.ndarray  # uint16, int32
    b_start: np.ndarray
    b_length: np.ndarray
    label: np.ndarray  # bool

    @property
    def num_pairs(self) -> int:
        return len(self.a_start)


class PairFormat:
    """One example per row, [CLS] A [SEP] B [SEP], `pair_labels` 0 where B follows A; redrawn `dupe_factor` times.

    `rule` says what else B may be: "nsp" a random text (half of the pairs, and whenever there is only one sentence),
    "sop" what precedes A (half of them).
    """

    def __init__(self, corpus: Corpus, settings: FormatSettings, rule: str) -> None:
        if settings.seq_len < SPECIALS + SHORTEST:
            raise UserError(f"data.seq_len must be at least {SPECIALS + SHORTEST} for pairs, not {settings.seq_len}")
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

    def prepare(self, epoch: int) -> None:
        self._orders.start(epoch)

    def sequences(self, epoch: int, indices: IntArray) -> dict[str, np.ndarray]:
        plan, order = self._orders.get(epoch)
        return self._lay_out(plan, epoch, order[indices], np.ones(len(indices), np.int64))

    @property
    def num_draws(self) -> int:
        return self.settings.dupe_factor

    def lengths(self, epoch: int) -> np.ndarray:
        plan = self._plans.get(epoch % self.settings.dupe_factor)
        return plan.a_length.astype(np.int32) + plan.b_length + SPECIALS

    def examples(self, epoch: int, numbers: IntArray, counts: IntArray) -> dict[str, np.ndarray]:
        return self._lay_out(self._plans.get(epoch % self.settings.dupe_factor), epoch, numbers, counts)

    def _lay_out(self, plan: PairPlan, epoch: int, pairs: IntArray, counts: IntArray) -> dict[str, np.ndarray]:
        columns = (plan.a_start, plan.a_length, plan.b_start, plan.b_length)
        a_start, a_length, b_start, b_length = (column[pairs].astype(np.int64) for column in columns)
        a, b = (a_start, a_length), (b_start, b_length)
        identities = example_ids(self._corpus, a[0])
        batch = assemble_sequences(self._corpus, [a, b], self.settings, identities, epoch, counts)
        return batch | {"pair_labels": pad_examples(plan.label[pairs].astype(np.int32), counts, self.settings)}

    def _plan(self, draw: int) -> PairPlan:
        plan = plan_pairs(self._corpus, self.settings, draw, self._rule)
        self._counts[draw] = plan.num_pairs
        return plan

    def _order(self, epoch: int) -> tuple[PairPlan, IntArray]:
        plan = self._plans.get(epoch % self.settings.dupe_factor)
        return plan, permutation(plan.num_pairs, "order of pairs", self.settings.seed, epoch)


def plan_pairs(corpus: Corpus, settings: FormatSettings, draw: int, rule: str = "nsp") -> PairPlan:
    """All pairs of one pass over the corpus, a pure function of the corpus, `seq_len`, `seed`, `draw` and the rule."""

    def plan_group(group: range) -> PairPlan:
        draws = CounterRng("pairs", settings.seed, draw, settings.seq_len, group.start)
        chunks = _cut_chunks(corpus, settings, group, draws, rule)
        return _small(_truncate(*_slices(corpus, chunks, draws), settings.seq_len - SPECIALS, draws), corpus, settings)

    plans = _for_each_group(corpus, plan_group)
    columns = [field.name for field in dataclasses.fields(PairPlan)]
    return PairPlan(*(np.concatenate([getattr(plan, name) for plan in plans]) for name in columns))


def count_pairs(corpus: Corpus, settings: FormatSettings, draw: int, rule: str = "nsp") -> int:
    """`plan_pairs(...).num_pairs`, cheaper: lengths of epochs long past are needed to find a place in the stream."""

    def count_group(group: range) -> int:
        draws = CounterRng("pairs", settings.seed, draw, settings.seq_len, group.start)
        return len(_cut_chunks(corpus, settings, group, draws, rule).document)

    return sum(_for_each_group(corpus, count_group))


class _Chunks(NamedTuple):
    """Runs of sentences, int64 [n]: the offsets into sentences where A begins, A ends and the run ends."""

    document: IntArray
    first: IntArray
    a_end: IntArray
    last: IntArray
    target: IntArray  # tokens wanted in the pair
    is_random: np.ndarray  # bool: B comes from elsewhere
    is_swapped: np.ndarray  # bool: the second part stands first


def _cut_chunks(
    corpus: Corpus, settings: FormatSettings, group: range, draws: CounterRng, rule: str = "nsp"
) -> _Chunks:
    """Walk all documents of the group at once, one chunk of each per round.

    A chunk takes sentences until it holds the target length or the document ends; A is a random non-empty beginning of
    it. Where B will be random, the sentences after A are put back for the next chunk. With "sop" that is only so where
    a chunk has one sentence, as ALBERT's released code has it; `sop_drop_single_sentences` leaves these out.
    """
    longest = settings.seq_len - SPECIALS
    document = np.arange(group.start, group.stop)
    position = corpus.document_sentences[document]
    end = corpus.document_sentences[document + 1]
    is_short = draws.uniform(len(document)) < settings.short_seq_prob
    target = np.where(is_short, 2 + draws.integers(np.full(len(document), longest - 1)), longest)
    base = position[0]  # bisect among the group's own sentences: they fit the processor's cache
    tokens = corpus.sentence_tokens[base : end[-1] + 1]
    rounds: list[_Chunks] = []
    while document.size:
        last = np.minimum(base + np.searchsorted(tokens, tokens[position - base] + target), end)
        words = draws.words(document.size)
        sentences = last - position
        a_end = position + 1 + scale(words, sentences - 1)
        heads_up = (words & np.uint64(1)) == 0  # `scale` does not use the lowest bit
        alone = sentences == 1
        is_random, is_swapped = (
            (alone, heads_up & ~alone) if rule == "sop" else (alone | heads_up, np.zeros_like(alone))
        )
        found = _Chunks(document, position, a_end, last, target, is_random, is_swapped)
        rounds.append(
            _Chunks(*(x[~alone] for x in found)) if rule == "sop" and settings.sop_drop_single_sentences else found
        )
        position = np.where(is_random, a_end, last)
        going_on = position < end
        if not going_on.all():
            document, position, end, target = (x[going_on] for x in (document, position, end, target))
    return _Chunks(*(np.concatenate(column) for column in zip(*rounds, strict=True)))


def _slices(
    corpus: Corpus, chunks: _Chunks, draws: CounterRng
) -> tuple[IntArray, IntArray, IntArray, IntArray, np.ndarray]:
    """The pairs before truncation: starts and lengths in tokens of A and of B, and the labels."""
    tokens = corpus.sentence_tokens
    a_start, b_start, b_end = tokens[chunks.first], tokens[chunks.a_end], tokens[chunks.last]
    a_length = b_start - a_start
    chosen = np.flatnonzero(chunks.is_random)
    other = _other_documents(chunks.document[chosen], corpus.num_documents, draws)
    begin, end = corpus.document_sentences[other], corpus.document_sentences[other + 1]
    first = begin + draws.integers(end - begin)
    wanted = np.maximum(chunks.target[chosen] - a_length[chosen], 1)  # at least one sentence
    b_start[chosen] = tokens[first]
    b_end[chosen] = tokens[np.minimum(_bisect(tokens, tokens[first] + wanted), end)]
    b_length, swapped = b_end - b_start, chunks.is_swapped
    first, second = np.where(swapped, b_start, a_start), np.where(swapped, a_start, b_start)
    first_length, second_length = np.where(swapped, b_length, a_length), np.where(swapped, a_length, b_length)
    return first, first_length, second, second_length, chunks.is_random | swapped


def _bisect(tokens: IntArray, wanted: IntArray) -> IntArray:
    """`np.searchsorted`, three times faster for values all over a large corpus: sorted ones find the cache warm."""
    order = np.argsort(wanted)
    found = np.empty_like(order)
    found[order] = np.searchsorted(tokens, wanted[order])
    return found


def _other_documents(document: IntArray, num_documents: int, draws: CounterRng) -> IntArray:
    """A random document for each, another one unless ten tries fail (always so in a corpus of one document)."""
    limits = np.full(len(document), num_documents)
    other = draws.integers(limits)
    for _ in range(TRIES - 1):
        same = np.flatnonzero(other == document)
        if not same.size:
            break
        other[same] = draws.integers(limits[same])
    return other


def _truncate(
    a_start: IntArray,
    a_length: IntArray,
    b_start: IntArray,
    b_length: IntArray,
    label: np.ndarray,
    longest: int,
    draws: CounterRng,
) -> PairPlan:
    """Drop tokens one by one from the longer side (B if equal), at its front or back with equal chance, until they fit.

    In closed form: first the difference goes, then both sides take turns, B first.
    """
    excess = np.maximum(a_length + b_length - longest, 0)
    ahead = a_length - b_length
    a_alone, b_alone = np.minimum(excess, np.maximum(ahead, 0)), np.minimum(excess, np.maximum(-ahead, 0))
    shared = excess - a_alone - b_alone
    a_drop, b_drop = a_alone + shared // 2, b_alone + (shared + 1) // 2
    return PairPlan(
        a_start=a_start + binomial_half(a_drop, draws),
        a_length=a_length - a_drop,
        b_start=b_start + binomial_half(b_drop, draws),
        b_length=b_length - b_drop,
        label=label,
    )


def _small(plan: PairPlan, corpus: Corpus, settings: FormatSettings) -> PairPlan:
    """In the least types that hold it: a plan is in memory for as long as its epoch."""
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
    """Runs of whole documents of about a million sentences."""
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
