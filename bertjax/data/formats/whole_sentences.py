"""The forms of whole sentences: `full_sentences`, over the ends of documents, and `doc_sentences`, within documents.

RoBERTa (arXiv:1907.11692, section 4.2) packs as many sentences as fit; where a row crosses documents, a [SEP] stands
between them. Rows of SpanBERT are those of single documents. A sentence that no row has room for is cut.
"""

from __future__ import annotations

import numpy as np

from bertjax.data.corpus import Corpus
from bertjax.data.counter_rng import IntArray
from bertjax.data.formats.base import FormSettings
from bertjax.data.formats.slices import SHORTEST, SPECIALS, Slices
from bertjax.data.formats.xlnet_segments import Text

STEP = 1 << 20
"""Sentences that are walked through together: bounds memory, and changes nothing."""


class Sentences(Slices):
    """[CLS] sentences [SEP], as many as fit; the same rows in every epoch, in another order.

    Where `crossing`, rows run over the ends of documents, with a [SEP] for each. Rows of a single token are left out
    and counted in `dropped_rows`.
    """

    def __init__(self, corpus: Corpus, settings: FormSettings, crossing: bool) -> None:
        super().__init__(corpus, Text(corpus, settings.sep_id), settings, "sentences")
        begins, ends = _fill(corpus, settings.seq_len - SPECIALS, crossing)
        keep = ends - begins >= SHORTEST
        self.dropped_rows = int((~keep).sum())
        self._starts, self._lengths = begins[keep], (ends - begins)[keep].astype(np.int32)

    def num_rows(self, epoch: int) -> int:
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
