"""Rows of several examples: any form whose examples can be told apart, packed."""

from __future__ import annotations

import threading

import numpy as np

from bertjax.data.counter_rng import IntArray
from bertjax.data.formats.base import EpochPlanCache, PackableFormat
from bertjax.data.packing import PackPlan, count_packed_sequences, plan_packing


class PackedFormat:
    """Full rows of up to `settings.max_examples` examples each; which ones share a row is drawn anew in every epoch.

    Attention, positions and losses tell the examples of a row apart by `segment_ids` and `example_positions`: what a
    model learns from an example is what it learns from the example alone.
    """

    def __init__(self, form: PackableFormat, window: int) -> None:
        self.settings = form.settings
        self.form = form
        self._limits = {"seq_len": form.settings.seq_len, "most": form.settings.max_examples, "window": window}
        self._counts: dict[int, int] = {}
        self._lock = threading.Lock()
        self._plans: EpochPlanCache[int, PackPlan] = EpochPlanCache(self._plan)

    def num_sequences(self, epoch: int) -> int:
        draw = epoch % self.form.num_draws
        with self._lock:
            if draw not in self._counts:
                self._counts[draw] = count_packed_sequences(self.form.lengths(draw), **self._limits)
            return self._counts[draw]

    def prepare(self, epoch: int) -> None:
        self._plans.start(epoch)

    def sequences(self, epoch: int, indices: IntArray) -> dict[str, np.ndarray]:
        numbers, counts = self._plans.get(epoch).find(indices)
        return self.form.examples(epoch, numbers, counts)

    def padding(self, epoch: int) -> float:
        """The share of an epoch's places that hold no token."""
        return 1.0 - float(self.form.lengths(epoch).sum(dtype=np.int64)) / (
            self.num_sequences(epoch) * self.settings.seq_len
        )

    def _plan(self, epoch: int) -> PackPlan:
        return plan_packing(self.form.lengths(epoch), **self._limits, seed=self.settings.seed, epoch=epoch)
