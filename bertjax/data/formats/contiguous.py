"""What forms share whose examples are the same slices of a text in every epoch, each time in another order."""

from __future__ import annotations

import abc

import numpy as np

from bertjax.data.corpus import Corpus, offsets
from bertjax.data.counter_rng import IntArray, permutation
from bertjax.data.formats.base import EpochPlanCache, FormatSettings, TokenSource, assemble_sequences, example_ids
from bertjax.data.formats.xlnet_segments import DocumentStream
from bertjax.errors import UserError

SPECIALS = 2  # [CLS] and the last [SEP]
SHORTEST = 2  # a row of one token has no context to predict it from
STEP = 1 << 20
"""Sentences that are walked through together: bounds memory, and changes nothing."""


class ContiguousFormat(abc.ABC):
    """Examples [CLS] slice [SEP]; a subclass says where in its `text` they lie, and how many there are.

    `name` is of the form: it goes into messages and into the draw of the order.
    """

    def __init__(self, corpus: Corpus, text: TokenSource, settings: FormatSettings, name: str) -> None:
        if settings.seq_len < SPECIALS + SHORTEST:
            raise UserError(f"data.seq_len must be at least {SPECIALS + SHORTEST} for {name}, not {settings.seq_len}")
        self.settings = settings
        self._corpus, self._text, self._name = corpus, text, name
        self._orders: EpochPlanCache[int, IntArray] = EpochPlanCache(self._order)

    @abc.abstractmethod
    def num_sequences(self, epoch: int) -> int:
        """Examples of an epoch, one in each row."""

    @abc.abstractmethod
    def slices(self, numbers: IntArray) -> tuple[IntArray, IntArray]:
        """Where examples begin in the text, and their tokens without specials."""

    def prepare(self, epoch: int) -> None:
        self._orders.start(epoch)

    def sequences(self, epoch: int, indices: IntArray) -> dict[str, np.ndarray]:
        return self.examples(epoch, self._orders.get(epoch)[indices])

    @property
    def num_draws(self) -> int:
        return 1

    def examples(self, epoch: int, numbers: IntArray, counts: IntArray | None = None) -> dict[str, np.ndarray]:
        starts, lengths = self.slices(numbers)
        identities = example_ids(self._corpus, starts)
        return assemble_sequences(self._text, [(starts, lengths)], self.settings, identities, epoch, counts)

    def _order(self, epoch: int) -> IntArray:
        return permutation(self.num_sequences(epoch), f"order of {self._name}", self.settings.seed, epoch)


class BlockFormat(ContiguousFormat):
    """Consecutive pieces of seq_len - 2 tokens; a document's last piece is shorter and no piece crosses documents.

    Pieces of a single token are left out and counted in `dropped_pieces`.
    """

    def __init__(self, corpus: Corpus, settings: FormatSettings) -> None:
        super().__init__(corpus, corpus, settings, "blocks")
        self._piece = settings.seq_len - SPECIALS
        self._begins = corpus.document_tokens
        lengths = np.diff(self._begins)
        has_tail = lengths % self._piece >= SHORTEST
        self._pieces = offsets(lengths // self._piece + has_tail)  # of each document, in the order of the corpus
        self.dropped_pieces = int(((lengths % self._piece > 0) & ~has_tail).sum())

    def num_sequences(self, epoch: int) -> int:
        return int(self._pieces[-1])

    def lengths(self, epoch: int) -> np.ndarray:
        lengths = np.full(self.num_sequences(epoch), self.settings.seq_len, np.int32)
        has_pieces = np.diff(self._pieces) > 0
        last = self._pieces[1:][has_pieces] - 1
        lengths[last] = self.slices(last)[1] + SPECIALS
        return lengths

    def slices(self, numbers: IntArray) -> tuple[IntArray, IntArray]:
        document = np.searchsorted(self._pieces, numbers, side="right") - 1
        starts = self._begins[document] + (numbers - self._pieces[document]) * self._piece
        return starts, np.minimum(self._piece, self._begins[document + 1] - starts)


class SentenceFormat(ContiguousFormat):
    """[CLS] sentences [SEP], as many as fit; the same rows in every epoch, in another order.

    Where `crossing`, rows run over the ends of documents, with a [SEP] for each. Rows of a single token are left out
    and counted in `dropped_rows`.
    """

    def __init__(self, corpus: Corpus, settings: FormatSettings, crossing: bool) -> None:
        super().__init__(corpus, DocumentStream(corpus, settings.sep_id), settings, "sentences")
        begins, ends = _fill(corpus, settings.seq_len - SPECIALS, crossing)
        keep = ends - begins >= SHORTEST
        self.dropped_rows = int((~keep).sum())
        self._starts, self._lengths = begins[keep], (ends - begins)[keep].astype(np.int32)

    def num_sequences(self, epoch: int) -> int:
        return len(self._starts)

    def lengths(self, epoch: int) -> np.ndarray:
        return self._lengths + SPECIALS

    def slices(self, numbers: IntArray) -> tuple[IntArray, IntArray]:
        return self._starts[numbers], self._lengths[numbers].astype(np.int64)


def _fill(corpus: Corpus, longest: int, crossing: bool) -> tuple[IntArray, IntArray]:
    """Where the rows begin and end in the text that has a piece behind every document; that piece is not in the end."""
    begins, ends, document = _sentences(corpus, longest)
    if not len(begins):
        return begins, ends
    after = np.searchsorted(ends, begins + longest, side="right")  # the first sentence that does not fit
    if not crossing:
        after = np.minimum(after, np.searchsorted(document, document, side="right"))
    first = _walk(after)
    return begins[first], ends[after[first] - 1]


def _sentences(corpus: Corpus, longest: int) -> tuple[IntArray, IntArray, IntArray]:
    """Where the sentences of that text begin and end, and their documents; too long ones are cut."""
    lengths = np.diff(corpus.sentence_tokens)
    document = np.repeat(np.arange(corpus.num_documents), np.diff(corpus.document_sentences))
    pieces = -(-lengths // longest)
    sentence = np.repeat(np.arange(len(lengths)), pieces)
    offset = (np.arange(len(sentence)) - (np.cumsum(pieces) - pieces)[sentence]) * longest
    begins = corpus.sentence_tokens[sentence] + document[sentence] + offset
    return begins, begins + np.minimum(longest, lengths[sentence] - offset), document[sentence]


def _walk(after: IntArray, step: int = STEP) -> IntArray:
    """The numbers 0, after[0], after[after[0]] ... below len(after), where after[i] > i.

    Found by doubling: with the first 2**k of them and where 2**k steps lead from anywhere, the next 2**k are known.
    """
    found, begin = [], 0
    while begin < len(after):
        own = after[begin : begin + step]
        leap = np.append(np.minimum(own - begin, len(own)), len(own))  # what leaves the window stays at its end
        visited = np.zeros(1, np.int64)
        while visited[-1] < len(own):
            visited = np.concatenate([visited, leap[visited]])
            leap = leap[leap]
        visited = visited[visited < len(own)]
        found.append(begin + visited)
        begin = int(own[visited[-1]])
    return np.concatenate(found)
