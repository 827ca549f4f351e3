"""The form `block`: every document cut into full rows, [CLS] tokens [SEP]."""

from __future__ import annotations

import numpy as np

from bertjax.data.corpus import Corpus, offsets
from bertjax.data.draws import IntArray, permutation
from bertjax.data.forms.base import FormSettings, Kept, example_ids, lay_out
from bertjax.types import UserError

SPECIALS = 2  # [CLS] and [SEP]
SHORTEST = 2  # a piece of one token has no context to predict it from


class Blocks:
    """Consecutive pieces of seq_len - 2 tokens; a document's last piece is shorter and no piece crosses documents.

    Pieces of a single token are left out and counted in `dropped_pieces`.
    """

    def __init__(self, corpus: Corpus, settings: FormSettings) -> None:
        self.settings = settings
        self._corpus = corpus
        self._piece = settings.seq_len - SPECIALS
        if self._piece < SHORTEST:
            raise UserError(f"data.seq_len must be at least {SPECIALS + SHORTEST} for blocks, not {settings.seq_len}")
        self._begins = corpus.document_tokens
        lengths = np.diff(self._begins)
        has_tail = lengths % self._piece >= SHORTEST
        self._pieces = offsets(lengths // self._piece + has_tail)  # of each document, in the order of the corpus
        self.dropped_pieces = int(((lengths % self._piece > 0) & ~has_tail).sum())
        self._orders: Kept[int, IntArray] = Kept(self._order)

    def num_rows(self, epoch: int) -> int:
        return int(self._pieces[-1])

    def prepare(self, epoch: int) -> None:
        self._orders.start(epoch)

    def rows(self, epoch: int, indices: IntArray) -> dict[str, np.ndarray]:
        return self.examples(epoch, self._orders.get(epoch)[indices])

    @property
    def num_draws(self) -> int:
        return 1

    def lengths(self, epoch: int) -> np.ndarray:
        lengths = np.full(self.num_rows(epoch), self.settings.seq_len, np.int32)
        has_pieces = np.diff(self._pieces) > 0
        last = self._pieces[1:][has_pieces] - 1
        lengths[last] = self._slices(last)[1] + SPECIALS
        return lengths

    def examples(self, epoch: int, numbers: IntArray, counts: IntArray | None = None) -> dict[str, np.ndarray]:
        starts, lengths = self._slices(numbers)
        identities = example_ids(self._corpus, starts)
        return lay_out(self._corpus, [(starts, lengths)], self.settings, identities, epoch, counts)

    def _slices(self, pieces: IntArray) -> tuple[IntArray, IntArray]:
        """Where pieces begin in the corpus, and their tokens."""
        document = np.searchsorted(self._pieces, pieces, side="right") - 1
        starts = self._begins[document] + (pieces - self._pieces[document]) * self._piece
        return starts, np.minimum(self._piece, self._begins[document + 1] - starts)

    def _order(self, epoch: int) -> IntArray:
        return permutation(self.num_rows(epoch), "order of blocks", self.settings.seed, epoch)
