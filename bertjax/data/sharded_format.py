"""Sequences of a corpus in many shards, with memory for a few of them.

An epoch reads the shards in random order, `group_size` at a time. The sequences of a group come from all of its shards
in an even order, and those of a shard in random order; both are computed, not stored. Only the number of sequences of
every shard is, and only of those that were read so far.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bertjax.data.corpus import Corpus, CorpusSplit, offsets
from bertjax.data.counter_rng import FloatArray, IntArray, permutation
from bertjax.data.formats.base import EpochPlanCache, ExampleFormat, merge_sequences
from bertjax.data.mixture import ExactMixture
from bertjax.io.atomic import atomic_file
from bertjax.io.store import Store


class _Group(NamedTuple):
    """Shards that are read together, and the order of their sequences."""

    shards: IntArray
    order: ExactMixture


class ShardedFormat(ExampleFormat):
    """Epochs of sequences of a corpus in shards; each shard is a corpus of its own for the format `make` makes.

    Continuous text needs longer parts: with `part_size`, so many consecutive shards take the role of one.
    """

    def __init__(
        self,
        corpus: CorpusSplit,
        make: Callable[[Corpus], ExampleFormat],
        *,
        group_size: int,
        part_size: int = 1,
        counts: SequenceCounts | None = None,
    ) -> None:
        """Opens nothing.

        Args:
            corpus: Split of a prepared corpus.
            make: Makes the format of a shard.
            group_size: Shards that are read together.
            part_size: Consecutive shards that are opened as one; a few parts have more, none has less.
            counts: What earlier runs have counted.
        """
        count = max(len(corpus.shards) // part_size, 1)
        begins = np.arange(count + 1) * len(corpus.shards) // count
        shards = [corpus.shards[first:stop] for first, stop in itertools.pairwise(begins.tolist())]
        self._tokens = [sum(shard.tokens for shard in part) for part in shards]
        self._group_size = group_size
        self._open = lambda number, verify: make(corpus.open(*begins[number : number + 2].tolist(), verify=verify))
        self._formats: EpochPlanCache[int, ExampleFormat] = EpochPlanCache(
            lambda number: self._open(number, True), 2 * group_size
        )
        empty = make(Corpus([], np.zeros(0, np.int32), offsets([]), corpus.counts, corpus.digest))
        self.settings, self._kind, self._period = empty.settings, empty.kind, empty.period
        self._counts = counts or SequenceCounts()
        self._orders: EpochPlanCache[int, _ShardOrder] = EpochPlanCache(self._order)
        self._groups: EpochPlanCache[tuple[int, int], _Group] = EpochPlanCache(self._group, 4)
        self._planned: EpochPlanCache[tuple[int, int], None] = EpochPlanCache(self._plan, 4)
        self._slots: set[int] = set()  # shards of a group that this process reads
        self._is_planning = threading.Lock()

    @property
    def period(self) -> int:
        return self._period

    @property
    def kind(self) -> type:
        return self._kind

    def num_sequences(self, epoch: int) -> int:
        return self._orders.get(epoch).num_sequences()

    def has_sequence(self, epoch: int, index: int) -> bool:
        return self._orders.get(epoch).has_sequence(index)

    def estimated_sequences(self, epoch: int) -> int:
        """Returns the sequences of the first shards, times what share of the tokens they have."""
        sample = range(min(len(self._tokens), self._group_size))
        tokens = sum(self._tokens[number] for number in sample)
        count = sum(self._count(epoch % self.period, number) for number in sample)
        return round(count * (sum(self._tokens) / max(tokens, 1)))

    def first_part(self) -> ExampleFormat:
        return self._formats.get(0)

    def plan_ahead(self, epoch: int) -> None:
        self._planned.start((epoch, 0))

    def sequences(self, epoch: int, indices: IntArray) -> dict[str, np.ndarray]:
        order = self._orders.get(epoch)
        groups, within = order.locate(indices)

        shards, index = np.empty_like(indices), np.empty_like(indices)
        for number in np.unique(groups).tolist():
            here, group = groups == number, self._groups.get((epoch, number))
            slots, index[here] = group.order.locate(within[here])
            shards[here] = group.shards[slots]
            self._slots |= set(slots.tolist())
        latest = int(groups.max())
        if order.is_past_half(latest, int(within[groups == latest].max())):
            self._planned.start((epoch, latest + 1))
        chosen = ((shards == shard, shard) for shard in np.unique(shards).tolist())
        parts = ((here, self._formats.get(shard).sequences(epoch, index[here])) for here, shard in chosen)
        return merge_sequences(parts, len(indices))

    def count_all(self) -> None:
        """Counts the sequences of all shards in the first epoch, several shards at a time."""
        missing = [number for number in range(len(self._tokens)) if self._counts.get(0, number) is None]
        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            tuple(pool.map(lambda number: self._count(0, number), missing))
        self._counts.save()

    def shard_positions(self, epoch: int, indices: IntArray) -> FloatArray:
        groups, within = self._orders.get(epoch).locate(indices)
        positions = np.zeros(len(indices))
        for number in np.unique(groups).tolist():
            group = self._groups.get((epoch, number))
            positions[groups == number] = group.order.locate(within[groups == number])[0] / len(group.shards)
        return positions

    def _count(self, draw: int, shard: int) -> int:
        if (count := self._counts.get(draw, shard)) is None:
            count = self._open(shard, False).num_sequences(draw)
            self._counts.add(draw, shard, count)
        return count

    def _order(self, epoch: int) -> _ShardOrder:
        shards = permutation(len(self._tokens), "order of shards", self.settings.seed, epoch)
        return _ShardOrder(shards, self._group_size, lambda shard: self._count(epoch % self.period, shard))

    def _group(self, key: tuple[int, int]) -> _Group:
        epoch, number = key
        shards = self._orders.get(epoch).shards(number)
        counts = np.array([self._count(epoch % self.period, shard) for shard in shards.tolist()])
        self._counts.save()
        return _Group(shards[counts > 0], ExactMixture(counts[counts > 0].tolist()))

    def _plan(self, key: tuple[int, int]) -> None:
        """Opens and plans the shards of a group that this process will read, unless another group is being planned."""
        epoch, number = key
        if number >= self._orders.get(epoch).num_groups or not self._is_planning.acquire(blocking=False):
            return
        try:
            shards = self._groups.get(key).shards
            for slot in sorted(self._slots):
                if slot < len(shards):
                    self._formats.get(int(shards[slot])).sequences(epoch, np.zeros(1, np.int64))
        finally:
            self._is_planning.release()


class _ShardOrder:
    """Shards of an epoch in order, divided into groups whose sequences are counted when they are reached."""

    def __init__(self, shards: IntArray, group_size: int, count: Callable[[int], int]) -> None:
        self._shards, self._group_size, self._count = shards, group_size, count
        self._begins = [0]
        self._lock = threading.Lock()

    @property
    def num_groups(self) -> int:
        return -(-len(self._shards) // self._group_size)

    def shards(self, group: int) -> IntArray:
        """Returns the shards of a group."""
        return self._shards[group * self._group_size : (group + 1) * self._group_size]

    def num_sequences(self) -> int:
        """Returns the sequences of the epoch; counts those of all shards."""
        self.has_sequence(np.iinfo(np.int64).max)
        return self._begins[-1]

    def has_sequence(self, index: int) -> bool:
        """Returns whether there are more than `index` sequences; counts as many groups as needed."""
        with self._lock:
            while self._begins[-1] <= index and len(self._begins) <= self.num_groups:
                count = sum(self._count(shard) for shard in self.shards(len(self._begins) - 1).tolist())
                self._begins.append(self._begins[-1] + count)
            return index < self._begins[-1]

    def locate(self, indices: IntArray) -> tuple[IntArray, IntArray]:
        """Returns the groups int64 [n] of sequences of the epoch, and their indices in the groups."""
        if not self.has_sequence(int(indices.max())):
            raise ValueError(f"the epoch has {self._begins[-1]} sequences, and not number {indices.max()}")
        begins = np.array(self._begins)
        groups = np.searchsorted(begins, indices, side="right") - 1
        return groups, indices - begins[groups]

    def is_past_half(self, group: int, index: int) -> bool:
        """Returns whether a sequence of a counted group is in its second half."""
        return 2 * index > self._begins[group + 1] - self._begins[group]


class SequenceCounts:
    """Number of sequences of shards by draw (the epoch modulo `period`), remembered in a file.

    Args:
        file: Where counts are remembered; None: nowhere.
        url: Object with a copy of the file, for other hosts.
    """

    def __init__(self, file: Path | None = None, url: str | None = None) -> None:
        self._file, self._url, self._is_new = file, url, False
        self._counts: dict[tuple[int, int], int] = {}
        for raw in self._stored():
            with contextlib.suppress(ValueError, EOFError):
                rows = np.load(io.BytesIO(raw), allow_pickle=False).astype(np.int64).reshape(-1, 3)
                self._counts |= {(draw, shard): count for draw, shard, count in rows.tolist()}

    def get(self, draw: int, shard: int) -> int | None:
        """Returns the sequences of a shard, None if they were not counted yet."""
        return self._counts.get((draw, shard))

    def add(self, draw: int, shard: int, count: int) -> None:
        """Adds the number of sequences of a shard.

        Args:
            draw: Epoch modulo `period`.
            shard: Number of the shard.
            count: Its sequences.
        """
        self._counts[draw, shard], self._is_new = count, True

    def save(self) -> None:
        """Writes the file if there are new counts; where it cannot be written, they are counted again."""
        if self._file is None or not self._is_new:
            return
        self._is_new = False
        rows = np.array([(*key, count) for key, count in sorted(self._counts.copy().items())], np.int64)
        with contextlib.suppress(OSError):
            self._file.parent.mkdir(parents=True, exist_ok=True)
            with atomic_file(self._file) as file:
                np.save(file, rows)
            if self._url is not None:
                Store(self._url).upload([(self._file, "")])

    def _stored(self) -> Iterator[bytes]:
        with contextlib.suppress(OSError):
            if self._file is not None:
                yield self._file.read_bytes()
        with contextlib.suppress(OSError):
            if self._url is not None:
                yield Store(self._url).read("")
