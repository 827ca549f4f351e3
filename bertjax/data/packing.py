"""Packing: which examples share a row, by best fit on the counts of their lengths.

Examples of a window are packed longest first, each into the fullest row that still has room for it (best fit
decreasing). Examples of one length are all alike, so the packing is done on counts: what is done one by one is a step
for a length and a kind of row, and the examples, in random order among those of their length, are dealt to the places
afterwards, by whole arrays. How many rows there are depends on the lengths alone (arXiv:2107.02027 packs histograms,
too).
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import numpy as np

from bertjax.data.corpus import offsets
from bertjax.data.counter_rng import CounterRng, IntArray, UInt64Array

WINDOW = 1 << 20
"""Examples packed together, if nothing else is said: bounds memory, and is part of what a seed means."""


@dataclasses.dataclass(frozen=True)
class PackPlan:
    """Which examples stand in each row of an epoch: at most 8 bytes an example, 16 beyond 2**32 of them.

    `members` [examples] lists the examples row by row, `begins` [rows + 1] says where in it each row begins.
    """

    members: np.ndarray
    begins: np.ndarray

    @property
    def num_sequences(self) -> int:
        return len(self.begins) - 1

    @property
    def num_bytes(self) -> int:
        return self.members.nbytes + self.begins.nbytes

    def find(self, rows: IntArray) -> tuple[IntArray, IntArray]:
        """The examples of some rows of the epoch, row by row, and how many each has."""
        begins = self.begins[rows].astype(np.int64)
        counts = self.begins[rows + 1].astype(np.int64) - begins
        return self.members[_runs(begins, counts)].astype(np.int64), counts


def plan_packing(
    lengths: np.ndarray, *, seq_len: int, most: int, window: int = WINDOW, seed: int, epoch: int
) -> PackPlan:
    """Rows of at most `seq_len` tokens and `most` examples that hold every example once.

    `lengths` [n] in 1..seq_len, specials included. Which examples of equal length stand where, and the order of rows,
    are drawn anew for every epoch; the number of rows is `count_packed_sequences`.
    """
    small = np.uint32 if len(lengths) < 1 << 32 else np.int64
    members = np.empty(len(lengths), small)
    sizes: list[np.ndarray] = []
    for begin in range(0, len(lengths), window):
        own = lengths[begin : begin + window]
        row, slot, num_sequences = best_fit(np.bincount(own, minlength=seq_len + 1), seq_len, most)
        count = np.bincount(row, minlength=num_sequences)
        place = offsets(count)[row]
        place += slot
        place += begin
        members[place] = begin + _longest_first(own, seq_len, CounterRng("packing", seed, epoch, begin))
        sizes.append(count.astype(small))
    counts = np.concatenate(sizes) if sizes else np.zeros(0, small)
    order = _sorted_places(CounterRng("order of packed rows", seed, epoch).words(len(counts)))
    return _reordered(PackPlan(members, offsets(counts).astype(small)), order, window)


def count_packed_sequences(lengths: np.ndarray, *, seq_len: int, most: int, window: int = WINDOW) -> int:
    """`plan_packing(...).num_sequences`, several times faster."""
    starts = range(0, len(lengths), window)
    counts = (np.bincount(lengths[begin : begin + window], minlength=seq_len + 1) for begin in starts)
    return sum(best_fit(count, seq_len, most)[2] for count in counts)


def best_fit(counts: IntArray, seq_len: int, most: int) -> tuple[IntArray, IntArray, int]:
    """Packs `counts[n]` examples of every length n: the row of each, longest first, its number in it, and the rows.

    As many steps as there are lengths and kinds of open rows (their room and their number of examples), each over all
    rows of a kind.
    """
    packing = _Packing(counts, seq_len, most)
    for length in np.flatnonzero(counts)[::-1].tolist():
        left = int(counts[length])
        while left:
            kind = packing.fullest(length) or packing.new_rows(length, left)
            copies = min(kind.room // length, most - kind.used)
            full = min(left // copies, len(kind.rows))
            packing.put(length, copies, kind, kind.rows[:full])
            left -= full * copies
            rest = kind.rows[full:]
            if len(rest) and left:  # fewer than fill a row of this kind
                packing.put(length, left, kind, rest[:1])
                left, rest = 0, rest[1:]
            packing.open(kind._replace(rows=rest))
    return packing.row_of, packing.slot_of, packing.num_sequences


class _Kind(NamedTuple):
    """Open rows that are alike: room for so many tokens, so many examples in them."""

    room: int
    used: int
    rows: IntArray


class _Packing:
    """Rows of a window while they are filled. Which rooms there are is a set of bits: the least is found at once."""

    def __init__(self, counts: IntArray, seq_len: int, most: int) -> None:
        total = int(counts.sum())
        self.row_of, self.slot_of = np.empty(total, np.int64), np.empty(total, np.int64)
        self.num_sequences = 0
        self._done = 0
        self._seq_len, self._most = seq_len, most
        self._shortest = int(np.argmax(counts > 0))
        self._kinds: dict[int, dict[int, list[IntArray]]] = {}  # by room, then by number of examples
        self._rooms = 0

    def fullest(self, length: int) -> _Kind | None:
        """Takes out the rows in which an example of this length leaves least room, of these the emptiest."""
        rooms = self._rooms >> length
        if not rooms:
            return None
        room = length + (rooms & -rooms).bit_length() - 1
        kinds = self._kinds[room]
        used = min(kinds)
        rows = kinds.pop(used)
        if not kinds:
            self._rooms ^= 1 << room
        return _Kind(room, used, rows[0] if len(rows) == 1 else np.concatenate(rows))

    def new_rows(self, length: int, count: int) -> _Kind:
        """As many as these examples fill alone."""
        begin = self.num_sequences
        self.num_sequences += -(-count // min(self._seq_len // length, self._most))
        return _Kind(self._seq_len, 0, np.arange(begin, self.num_sequences))

    def open(self, kind: _Kind) -> None:
        """Puts back rows into which something still fits."""
        if len(kind.rows) and kind.room >= self._shortest and kind.used < self._most:
            self._kinds.setdefault(kind.room, {}).setdefault(kind.used, []).append(kind.rows)
            self._rooms |= 1 << kind.room

    def put(self, length: int, copies: int, kind: _Kind, rows: IntArray) -> None:
        """So many of the next examples into each of some rows of a kind."""
        stop = self._done + copies * len(rows)
        self.row_of[self._done : stop] = np.repeat(rows, copies)
        self.slot_of[self._done : stop] = np.tile(np.arange(kind.used, kind.used + copies), len(rows))
        self._done = stop
        self.open(_Kind(kind.room - copies * length, kind.used + copies, rows))


def _reordered(plan: PackPlan, order: IntArray, step: int) -> PackPlan:
    """The plan whose row r is row `order[r]` of this one; so many rows are moved at a time."""
    begins = offsets(np.diff(plan.begins)[order]).astype(plan.begins.dtype)
    found = np.empty_like(plan.members)
    for first in range(0, len(order), step):
        last = min(first + step, len(order))
        found[begins[first] : begins[last]] = plan.find(order[first:last])[0]
    return PackPlan(found, begins)


def _runs(begins: IntArray, counts: IntArray) -> IntArray:
    """`counts[i]` places from `begins[i]` on, one run behind the other."""
    return np.repeat(begins - offsets(counts)[:-1], counts) + np.arange(counts.sum())


def _longest_first(lengths: np.ndarray, seq_len: int, draws: CounterRng) -> IntArray:
    """The examples from the longest to the shortest, those of one length in random order."""
    shorter_by = (seq_len - lengths.astype(np.int64)).astype(np.uint64)
    bits = np.uint64(64 - seq_len.bit_length())
    return _sorted_places((shorter_by << bits) | (draws.words(len(lengths)) >> (np.uint64(64) - bits)))


def _sorted_places(keys: UInt64Array) -> IntArray:
    """Where the keys stand, from the least to the greatest, told apart by all bits that the places leave free.

    Sorting words that hold their own places is ten times as fast as `argsort`, and there are no ties to break.
    """
    mask = np.uint64((1 << len(keys).bit_length()) - 1)
    keys = np.sort((keys & ~mask) | np.arange(len(keys), dtype=np.uint64))
    return (keys & mask).astype(np.int64)
