"""Formats of contiguous text, [CLS] slice [SEP]: `block`, `full_sentences` and `doc_sentences`.

The examples are the same in every epoch, in another order. Sentences are packed as in RoBERTa (arXiv:1907.11692,
section 4.2): as many as fit, and where a sequence crosses documents, a [SEP] separates them. Sequences of SpanBERT come
from single documents. A sentence longer than a sequence is cut.
"""

from __future__ import annotations

import abc

import numpy as np

from bertjax.data.corpus import Corpus, offsets
from bertjax.data.counter_rng import IntArray, permutation
from bertjax.data.formats.base import (
    EpochPlanCache,
    FormatSettings,
    PackableFormat,
    TokenSource,
    assemble_sequences,
    example_ids,
)
from bertjax.data.formats.xlnet_segments import DocumentStream
from bertjax.errors import UserError

SPECIALS = 2  # [CLS] and the last [SEP]
MIN_TOKENS = 2  # a sequence of one token has no context to predict it from
WALK_WINDOW = 1 << 20
"""Sentences that are walked through together: bounds memory, and changes nothing."""


class ContiguousFormat(PackableFormat):
    """Examples [CLS] slice [SEP]; a subclass defines the slices of `text`.

    `name` goes into messages and into the random order.
    """

    def __init__(self, corpus: Corpus, text: TokenSource, settings: FormatSettings, name: str) -> None:
        minimum = SPECIALS + MIN_TOKENS
        if settings.seq_len < minimum:
            raise UserError(f"data.seq_len must be at least {minimum} for {name}, not {settings.seq_len}")
        self.settings = settings
        self._corpus, self._text, self._name = corpus, text, name
        self._orders: EpochPlanCache[int, IntArray] = EpochPlanCache(self._order)

    @abc.abstractmethod
    def slices(self, numbers: IntArray) -> tuple[IntArray, IntArray]:
        """Returns the starts of examples in the text, and their lengths without special tokens."""

    def plan_ahead(self, epoch: int) -> None:
        self._orders.start(epoch)

    def sequences(self, epoch: int, indices: IntArray) -> dict[str, np.ndarray]:
        return self.examples(epoch, self._orders.get(epoch)[indices])

    @property
    def period(self) -> int:
        return 1

    def examples(self, epoch: int, numbers: IntArray, counts: IntArray | None = None) -> dict[str, np.ndarray]:
        starts, lengths = self.slices(numbers)
        identities = example_ids(self._corpus, starts)
        return assemble_sequences(self._text, [(starts, lengths)], self.settings, identities, epoch, counts)

    def _order(self, epoch: int) -> IntArray:
        return permutation(self.num_sequences(epoch), f"order of {self._name}", self.settings.seed, epoch)


class BlockFormat(ContiguousFormat):
    """Consecutive slices of seq_len - 2 tokens; the last one of a document is shorter, and none crosses documents.

    Slices of a single token are left out and counted in `dropped_examples`.
    """

    def __init__(self, corpus: Corpus, settings: FormatSettings) -> None:
        super().__init__(corpus, corpus, settings, "blocks")
        self._size = settings.seq_len - SPECIALS
        self._begins = corpus.document_tokens
        lengths = np.diff(self._begins)
        has_tail = lengths % self._size >= MIN_TOKENS
        self._slices = offsets(lengths // self._size + has_tail)  # of each document, in the order of the corpus
        self.dropped_examples = int(((lengths % self._size > 0) & ~has_tail).sum())

    def num_sequences(self, epoch: int) -> int:
        return int(self._slices[-1])

    def lengths(self, epoch: int) -> np.ndarray:
        lengths = np.full(self.num_sequences(epoch), self.settings.seq_len, np.int32)
        last = self._slices[1:][np.diff(self._slices) > 0] - 1
        lengths[last] = self.slices(last)[1] + SPECIALS
        return lengths

    def slices(self, numbers: IntArray) -> tuple[IntArray, IntArray]:
        document = np.searchsorted(self._slices, numbers, side="right") - 1
        starts = self._begins[document] + (numbers - self._slices[document]) * self._size
        return starts, np.minimum(self._size, self._begins[document + 1] - starts)


class SentenceFormat(ContiguousFormat):
    """Format of whole sentences, as many as fit. `crossing` continues in the next document, after a [SEP].

    Sequences of a single token are left out and counted in `dropped_examples`.
    """

    def __init__(self, corpus: Corpus, settings: FormatSettings, crossing: bool) -> None:
        super().__init__(corpus, DocumentStream(corpus, settings.sep_id), settings, "sentences")
        begins, ends = _fill(corpus, settings.seq_len - SPECIALS, crossing)
        is_long_enough = ends - begins >= MIN_TOKENS
        self.dropped_examples = int((~is_long_enough).sum())
        self._starts, self._lengths = begins[is_long_enough], (ends - begins)[is_long_enough].astype(np.int32)

    def num_sequences(self, epoch: int) -> int:
        return len(self._starts)

    def lengths(self, epoch: int) -> np.ndarray:
        return self._lengths + SPECIALS

    def slices(self, numbers: IntArray) -> tuple[IntArray, IntArray]:
        return self._starts[numbers], self._lengths[numbers].astype(np.int64)


def _fill(corpus: Corpus, max_tokens: int, crossing: bool) -> tuple[IntArray, IntArray]:
    """Returns begins and ends of sequences in the `DocumentStream`; the token after a document is not in the end."""
    begins, ends, document = _sentences(corpus, max_tokens)
    if not len(begins):
        return begins, ends
    after = np.searchsorted(ends, begins + max_tokens, side="right")  # the first sentence that does not fit
    if not crossing:
        after = np.minimum(after, np.searchsorted(document, document, side="right"))
    first = _walk(after)
    return begins[first], ends[after[first] - 1]


def _sentences(corpus: Corpus, max_tokens: int) -> tuple[IntArray, IntArray, IntArray]:
    """Returns begins, ends and documents of the sentences of the `DocumentStream`; too long ones are cut."""
    lengths = np.diff(corpus.sentence_tokens)
    document = np.repeat(np.arange(corpus.num_documents), np.diff(corpus.document_sentences))
    cuts = -(-lengths // max_tokens)
    sentence = np.repeat(np.arange(len(lengths)), cuts)
    offset = (np.arange(len(sentence)) - (np.cumsum(cuts) - cuts)[sentence]) * max_tokens
    begins = corpus.sentence_tokens[sentence] + document[sentence] + offset
    return begins, begins + np.minimum(max_tokens, lengths[sentence] - offset), document[sentence]


def _walk(after: IntArray, window: int = WALK_WINDOW) -> IntArray:
    """Returns the numbers 0, after[0], after[after[0]] ... below len(after), where after[i] > i.

    Uses doubling: from the first 2**k numbers and the targets of 2**k steps follow the next 2**k numbers.
    """
    numbers, begin = [], 0
    while begin < len(after):
        targets = after[begin : begin + window]
        leap = np.append(np.minimum(targets - begin, len(targets)), len(targets))  # targets outside stay at the end
        visited = np.zeros(1, np.int64)
        while visited[-1] < len(targets):
            visited = np.concatenate([visited, leap[visited]])
            leap = leap[leap]
        visited = visited[visited < len(targets)]
        numbers.append(begin + visited)
        begin = int(targets[visited[-1]])
    return np.concatenate(numbers)
