"""What forms share whose examples are the same slices of a text in every epoch, each time in another order."""

from __future__ import annotations

import abc

import numpy as np

from bertjax.data.corpus import Corpus
from bertjax.data.counter_rng import IntArray, permutation
from bertjax.data.formats.base import FormSettings, Kept, Text, example_ids, lay_out
from bertjax.errors import UserError

SPECIALS = 2  # [CLS] and the last [SEP]
SHORTEST = 2  # a row of one token has no context to predict it from


class Slices(abc.ABC):
    """Examples [CLS] slice [SEP]; a subclass says where in its `text` they lie, and how many there are.

    `name` is of the form: it goes into messages and into the draw of the order.
    """

    def __init__(self, corpus: Corpus, text: Text, settings: FormSettings, name: str) -> None:
        if settings.seq_len < SPECIALS + SHORTEST:
            raise UserError(f"data.seq_len must be at least {SPECIALS + SHORTEST} for {name}, not {settings.seq_len}")
        self.settings = settings
        self._corpus, self._text, self._name = corpus, text, name
        self._orders: Kept[int, IntArray] = Kept(self._order)

    @abc.abstractmethod
    def num_rows(self, epoch: int) -> int:
        """Examples of an epoch, one in each row."""

    @abc.abstractmethod
    def slices(self, numbers: IntArray) -> tuple[IntArray, IntArray]:
        """Where examples begin in the text, and their tokens without specials."""

    def prepare(self, epoch: int) -> None:
        self._orders.start(epoch)

    def rows(self, epoch: int, indices: IntArray) -> dict[str, np.ndarray]:
        return self.examples(epoch, self._orders.get(epoch)[indices])

    @property
    def num_draws(self) -> int:
        return 1

    def examples(self, epoch: int, numbers: IntArray, counts: IntArray | None = None) -> dict[str, np.ndarray]:
        starts, lengths = self.slices(numbers)
        identities = example_ids(self._corpus, starts)
        return lay_out(self._text, [(starts, lengths)], self.settings, identities, epoch, counts)

    def _order(self, epoch: int) -> IntArray:
        return permutation(self.num_rows(epoch), f"order of {self._name}", self.settings.seed, epoch)
