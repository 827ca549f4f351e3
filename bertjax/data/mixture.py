"""Endless streams in closed form: which source a row comes from, and which epoch a source's row lies in."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np

from bertjax.data.corpus import offsets
from bertjax.data.counter_rng import IntArray, permutation
from bertjax.data.formats import ExampleFormat

PERIOD = 4096  # rows after which the pattern of sources repeats; part of what a seed means


class Mixture:
    """Rows of several sources in fixed proportions: one shuffled pattern, repeated for ever.

    A source with share p of the sum of `weights` (all > 0) has round(p * PERIOD) places in the pattern, at least one.
    """

    def __init__(self, weights: Sequence[float], seed: int) -> None:
        shares = np.asarray(weights, np.float64) / np.sum(weights)
        self.places = np.maximum(np.rint(shares * PERIOD).astype(np.int64), 1)
        self.period = int(self.places.sum())
        pattern = np.repeat(np.arange(len(weights)), self.places)
        self._pattern = pattern[permutation(self.period, "mixture", seed)]
        by_source = np.argsort(self._pattern, kind="stable")
        self._rank = np.empty(self.period, np.int64)  # how many places before this one have the same source
        self._rank[by_source] = np.arange(self.period) - offsets(self.places)[pattern]

    def locate(self, rows: IntArray) -> tuple[IntArray, IntArray]:
        """For rows of the mixed stream int64 [n]: their sources, and their indices in the streams of the sources."""
        block, offset = np.divmod(rows, self.period)
        source = self._pattern[offset]
        return source, block * self.places[source] + self._rank[offset]

    def used(self, row: int) -> list[int]:
        """How many rows of each source lie before this row."""
        block, offset = divmod(row, self.period)
        begun = np.bincount(self._pattern[:offset], minlength=len(self.places))
        return (block * self.places + begun).tolist()


class EpochStream:
    """The epochs of a form end to end; their lengths repeat with `dupe_factor` and are asked for when needed."""

    def __init__(self, form: ExampleFormat) -> None:
        self._form = form
        self._begins = offsets([form.num_sequences(0)])
        self._lock = threading.Lock()

    def locate(self, indices: IntArray) -> tuple[IntArray, IntArray]:
        """For indices in the endless stream int64 [n]: their epochs, and their indices in those epochs."""
        cycle = self._form.settings.dupe_factor
        begins = self._reach(int(indices.max()), cycle)
        cycles = np.zeros_like(indices)
        if len(begins) > cycle:
            cycles, indices = np.divmod(indices, begins[cycle])
        epochs = np.searchsorted(begins, indices, side="right") - 1
        return cycles * cycle + epochs, indices - begins[epochs]

    def progress(self, index: int) -> float:
        """Epochs passed before this index, with the fraction of the one that it lies in."""
        epoch, within = self.locate(np.array([index]))
        return float(epoch[0] + within[0] / self._form.num_sequences(int(epoch[0])))

    def _reach(self, index: int, cycle: int) -> IntArray:
        """Where the epochs begin, up to the one of `index` or to the end of the cycle."""
        with self._lock:
            while len(self._begins) <= cycle and self._begins[-1] <= index:
                rows = self._form.num_sequences(len(self._begins) - 1)
                self._begins = np.append(self._begins, self._begins[-1] + rows)
            return self._begins
