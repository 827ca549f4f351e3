"""The form `block`: every document cut into full rows, [CLS] tokens [SEP]."""

from __future__ import annotations

import numpy as np

from bertjax.data.corpus import Corpus, offsets
from bertjax.data.counter_rng import IntArray
from bertjax.data.formats.base import FormSettings
from bertjax.data.formats.slices import SHORTEST, SPECIALS, Slices


class Blocks(Slices):
    """Consecutive pieces of seq_len - 2 tokens; a document's last piece is shorter and no piece crosses documents.

    Pieces of a single token are left out and counted in `dropped_pieces`.
    """

    def __init__(self, corpus: Corpus, settings: FormSettings) -> None:
        super().__init__(corpus, corpus, settings, "blocks")
        self._piece = settings.seq_len - SPECIALS
        self._begins = corpus.document_tokens
        lengths = np.diff(self._begins)
        has_tail = lengths % self._piece >= SHORTEST
        self._pieces = offsets(lengths // self._piece + has_tail)  # of each document, in the order of the corpus
        self.dropped_pieces = int(((lengths % self._piece > 0) & ~has_tail).sum())

    def num_rows(self, epoch: int) -> int:
        return int(self._pieces[-1])

    def lengths(self, epoch: int) -> np.ndarray:
        lengths = np.full(self.num_rows(epoch), self.settings.seq_len, np.int32)
        has_pieces = np.diff(self._pieces) > 0
        last = self._pieces[1:][has_pieces] - 1
        lengths[last] = self.slices(last)[1] + SPECIALS
        return lengths

    def slices(self, numbers: IntArray) -> tuple[IntArray, IntArray]:
        document = np.searchsorted(self._pieces, numbers, side="right") - 1
        starts = self._begins[document] + (numbers - self._pieces[document]) * self._piece
        return starts, np.minimum(self._piece, self._begins[document + 1] - starts)
