"""Packed sequences: several examples of a format per sequence."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from bertjax.data.counter_rng import IntArray
from bertjax.data.formats.base import EpochPlanCache, ExampleFormat, PackableFormat
from bertjax.data.packing import PackPlan, count_packed_sequences, plan_packing


class PackedFormat(ExampleFormat):
    """Sequences of up to `settings.max_examples` examples each; every epoch packs them in another way.

    Attention, positions and losses separate the examples of a sequence by `segment_ids` and `example_positions`: the
    gradients of an example are those of the example alone.
    """

    def __init__(self, unpacked: PackableFormat, window: int) -> None:
        self.settings, self.unpacked = unpacked.settings, unpacked
        self._limits: dict[str, Any] = {
            "seq_len": unpacked.settings.seq_len,
            "max_examples": unpacked.settings.max_examples,
            "window": window,
        }
        self._counts: dict[int, int] = {}
        self._lock = threading.Lock()
        self._plans: EpochPlanCache[int, PackPlan] = EpochPlanCache(self._plan)

    def num_sequences(self, epoch: int) -> int:
        draw = epoch % self.period
        with self._lock:
            if draw not in self._counts:
                self._counts[draw] = count_packed_sequences(self.unpacked.lengths(draw), **self._limits)
            return self._counts[draw]

    @property
    def period(self) -> int:
        return self.unpacked.period

    def plan_ahead(self, epoch: int) -> None:
        self._plans.start(epoch)

    def sequences(self, epoch: int, indices: IntArray) -> dict[str, np.ndarray]:
        numbers, counts = self._plans.get(epoch).find(indices)
        return self.unpacked.examples(epoch, numbers, counts)

    def padding(self, epoch: int) -> float:
        """Returns the share of padding among the token slots of an epoch."""
        slots = self.num_sequences(epoch) * self.settings.seq_len
        return 1.0 - float(self.unpacked.lengths(epoch).sum(dtype=np.int64)) / slots

    def _plan(self, epoch: int) -> PackPlan:
        return plan_packing(self.unpacked.lengths(epoch), **self._limits, seed=self.settings.seed, epoch=epoch)
