"""Endless streams in closed form: the source of every sequence, and the epoch that it belongs to."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np

from bertjax.data.corpus import offsets
from bertjax.data.counter_rng import IntArray, permutation
from bertjax.data.formats import ExampleFormat

PERIOD = 4096
"""Sequences after which the pattern of sources repeats; changing it changes the batches of a seed."""


class Mixture:
    """Sequences of several sources in fixed proportions: one shuffled pattern, repeated endlessly.

    A source with share p of the sum of `weights` (all > 0) occurs max(1, round(p * PERIOD)) times in the pattern.
    """

    def __init__(self, weights: Sequence[float], seed: int) -> None:
        shares = np.asarray(weights, np.float64) / np.sum(weights)
        self.occurrences = np.maximum(np.rint(shares * PERIOD).astype(np.int64), 1)
        self.period = int(self.occurrences.sum())
        pattern = np.repeat(np.arange(len(weights)), self.occurrences)
        self._pattern = pattern[permutation(self.period, "mixture", seed)]
        by_source = np.argsort(self._pattern, kind="stable")
        self._rank = np.empty(self.period, np.int64)  # how many earlier entries have the same source
        self._rank[by_source] = np.arange(self.period) - offsets(self.occurrences)[pattern]

    def locate(self, indices: IntArray) -> tuple[IntArray, IntArray]:
        """Returns the sources int64 [n] of sequences of the mixed stream, and their indices in the source streams."""
        block, offset = np.divmod(indices, self.period)
        source = self._pattern[offset]
        return source, block * self.occurrences[source] + self._rank[offset]

    def num_used(self, index: int) -> list[int]:
        """Returns the number of sequences of each source before this index of the mixed stream."""
        block, offset = divmod(index, self.period)
        begun = np.bincount(self._pattern[:offset], minlength=len(self.occurrences))
        return (block * self.occurrences + begun).tolist()


class EpochStream:
    """Epochs of a format end to end. Their lengths repeat after `dupe_factor` epochs and are computed on demand."""

    def __init__(self, example_format: ExampleFormat) -> None:
        self._format = example_format
        self._begins = offsets([example_format.num_sequences(0)])
        self._lock = threading.Lock()

    def locate(self, indices: IntArray) -> tuple[IntArray, IntArray]:
        """Returns the epochs int64 [n] of indices in the endless stream, and the indices in those epochs."""
        cycle = self._format.settings.dupe_factor
        begins = self._extend(int(indices.max()), cycle)
        cycles = np.zeros_like(indices)
        if len(begins) > cycle:
            cycles, indices = np.divmod(indices, begins[cycle])
        epochs = np.searchsorted(begins, indices, side="right") - 1
        return cycles * cycle + epochs, indices - begins[epochs]

    def progress(self, index: int) -> float:
        """Returns the number of epochs before this index, including the fraction of the current one."""
        epoch, within = self.locate(np.array([index]))
        return float(epoch[0] + within[0] / self._format.num_sequences(int(epoch[0])))

    def _extend(self, index: int, cycle: int) -> IntArray:
        """Returns the beginnings of the epochs up to the one of `index`, or to the end of the cycle."""
        with self._lock:
            while len(self._begins) <= cycle and self._begins[-1] <= index:
                length = self._format.num_sequences(len(self._begins) - 1)
                self._begins = np.append(self._begins, self._begins[-1] + length)
            return self._begins
