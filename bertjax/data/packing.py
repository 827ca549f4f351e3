"""Sequence packing by best fit on the histogram of example lengths.

The examples of a window are packed longest first, each into the fullest sequence that still has space for it (best fit
decreasing). Examples of one length are interchangeable, so that packing works on counts: one step per length and kind
of open sequence. The examples are then assigned, in random order within their length, by whole-array operations. The
number of sequences depends on the lengths alone (arXiv:2107.02027 packs histograms as well).
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import numpy as np

from bertjax.data.corpus import offsets
from bertjax.data.counter_rng import CounterRng, IntArray, UInt64Array

WINDOW = 1 << 20
"""Default number of examples packed together: bounds memory; changing it changes the batches of a seed."""


@dataclasses.dataclass(frozen=True)
class PackPlan:
    """Assignment of examples to the sequences of an epoch: 8 bytes per example, 16 for 2**32 examples or more.

    Attributes:
        members: [examples], the examples, sequence by sequence.
        begins: [sequences + 1], where in `members` each sequence begins.
    """

    members: np.ndarray
    begins: np.ndarray

    @property
    def num_sequences(self) -> int:
        """Number of sequences."""
        return len(self.begins) - 1

    @property
    def num_bytes(self) -> int:
        """Memory of the plan in bytes."""
        return self.members.nbytes + self.begins.nbytes

    def find(self, sequences: IntArray) -> tuple[IntArray, IntArray]:
        """Returns the examples of some sequences, one sequence after the other, and the number of examples of each."""
        begins = self.begins[sequences].astype(np.int64)
        counts = self.begins[sequences + 1].astype(np.int64) - begins
        return self.members[_ranges(begins, counts)].astype(np.int64), counts


def plan_packing(
    lengths: np.ndarray, *, seq_len: int, max_examples: int, window: int = WINDOW, seed: int, epoch: int
) -> PackPlan:
    """Packs every example once. The assignment among equal lengths and the order of sequences differ in every epoch.

    Args:
        lengths: int [examples], tokens per example in 1..seq_len, special tokens included.
        seq_len: tokens per sequence.
        max_examples: most examples per sequence.
        window: examples packed together.
        seed: seed of the run.
        epoch: number of the epoch.

    Returns:
        The plan, with `count_packed_sequences` sequences.
    """
    dtype = np.uint32 if len(lengths) < 1 << 32 else np.int64
    members = np.empty(len(lengths), dtype)
    sizes: list[np.ndarray] = []
    for begin in range(0, len(lengths), window):
        in_window = lengths[begin : begin + window]
        sequence, slot, num_sequences = best_fit(np.bincount(in_window, minlength=seq_len + 1), seq_len, max_examples)
        count = np.bincount(sequence, minlength=num_sequences)
        target = offsets(count)[sequence]
        target += slot
        target += begin
        members[target] = begin + _longest_first(in_window, seq_len, CounterRng("packing", seed, epoch, begin))
        sizes.append(count.astype(dtype))
    counts = np.concatenate(sizes) if sizes else np.zeros(0, dtype)
    order = _argsort_unique(CounterRng("order of packed rows", seed, epoch).random_bits(len(counts)))
    return _reorder(PackPlan(members, offsets(counts).astype(dtype)), order, window)


def count_packed_sequences(lengths: np.ndarray, *, seq_len: int, max_examples: int, window: int = WINDOW) -> int:
    """Returns `plan_packing(...).num_sequences`, several times faster.

    Args:
        lengths, seq_len, max_examples, window: those of `plan_packing`.
    """
    starts = range(0, len(lengths), window)
    counts = (np.bincount(lengths[begin : begin + window], minlength=seq_len + 1) for begin in starts)
    return sum(best_fit(count, seq_len, max_examples)[2] for count in counts)


def best_fit(counts: IntArray, seq_len: int, max_examples: int) -> tuple[IntArray, IntArray, int]:
    """Packs `counts[n]` examples of every length n, longest first.

    Takes one step per length and kind of open sequence, each over all sequences of that kind.

    Args:
        counts: int64 [seq_len + 1], examples per length.
        seq_len: tokens per sequence.
        max_examples: most examples per sequence.

    Returns:
        The sequence of each example int64 [examples], its index in that sequence, and the number of sequences.
    """
    packer = _Packer(counts, seq_len, max_examples)
    for length in np.flatnonzero(counts)[::-1].tolist():
        left = int(counts[length])
        while left:
            open_ = packer.pop_fullest(length) or packer.new_sequences(length, left)
            copies = min(open_.free // length, max_examples - open_.used)
            full = min(left // copies, len(open_.sequences))
            packer.put(length, copies, open_, open_.sequences[:full])
            left -= full * copies
            rest = open_.sequences[full:]
            if len(rest) and left:  # fewer than fill a sequence of this kind
                packer.put(length, left, open_, rest[:1])
                left, rest = 0, rest[1:]
            packer.push(open_._replace(sequences=rest))
    return packer.sequence_of, packer.slot_of, packer.num_sequences


class _Open(NamedTuple):
    """Interchangeable open sequences, with `free` tokens left and `used` examples each."""

    free: int
    used: int
    sequences: IntArray


class _Packer:
    """Sequences of a window during packing. The values of `free` are bits of an integer, for a fast search."""

    def __init__(self, counts: IntArray, seq_len: int, max_examples: int) -> None:
        total = int(counts.sum())
        self.sequence_of, self.slot_of = np.empty(total, np.int64), np.empty(total, np.int64)
        self.num_sequences = 0
        self._num_placed = 0
        self._seq_len, self._max_examples = seq_len, max_examples
        self._shortest = int(np.argmax(counts > 0))
        self._open: dict[int, dict[int, list[IntArray]]] = {}  # by free tokens, then by number of examples
        self._free_values = 0

    def pop_fullest(self, length: int) -> _Open | None:
        """Removes the fullest sequences with space for this length, of these the ones with fewest examples."""
        values = self._free_values >> length
        if not values:
            return None
        free = length + (values & -values).bit_length() - 1
        by_used = self._open[free]
        used = min(by_used)
        sequences = by_used.pop(used)
        if not by_used:
            self._free_values ^= 1 << free
        return _Open(free, used, sequences[0] if len(sequences) == 1 else np.concatenate(sequences))

    def new_sequences(self, length: int, count: int) -> _Open:
        """Returns as many empty sequences as `count` examples of this length fill by themselves."""
        begin = self.num_sequences
        self.num_sequences += -(-count // min(self._seq_len // length, self._max_examples))
        return _Open(self._seq_len, 0, np.arange(begin, self.num_sequences))

    def push(self, open_: _Open) -> None:
        """Adds sequences, unless no example fits into them."""
        if len(open_.sequences) and open_.free >= self._shortest and open_.used < self._max_examples:
            self._open.setdefault(open_.free, {}).setdefault(open_.used, []).append(open_.sequences)
            self._free_values |= 1 << open_.free

    def put(self, length: int, copies: int, open_: _Open, sequences: IntArray) -> None:
        """Puts `copies` of the next examples into each of some sequences of a kind."""
        stop = self._num_placed + copies * len(sequences)
        self.sequence_of[self._num_placed : stop] = np.repeat(sequences, copies)
        self.slot_of[self._num_placed : stop] = np.tile(np.arange(open_.used, open_.used + copies), len(sequences))
        self._num_placed = stop
        self.push(_Open(open_.free - copies * length, open_.used + copies, sequences))


def _reorder(plan: PackPlan, order: IntArray, step: int) -> PackPlan:
    """Returns the plan whose sequence i is sequence `order[i]`; `step` sequences are copied at a time."""
    begins = offsets(np.diff(plan.begins)[order]).astype(plan.begins.dtype)
    members = np.empty_like(plan.members)
    for first in range(0, len(order), step):
        last = min(first + step, len(order))
        members[begins[first] : begins[last]] = plan.find(order[first:last])[0]
    return PackPlan(members, begins)


def _ranges(begins: IntArray, counts: IntArray) -> IntArray:
    """Returns the concatenated ranges [begins[i], begins[i] + counts[i])."""
    return np.repeat(begins - offsets(counts)[:-1], counts) + np.arange(counts.sum())


def _longest_first(lengths: np.ndarray, seq_len: int, rng: CounterRng) -> IntArray:
    """Returns the examples by decreasing length, in random order within each length."""
    shorter_by = (seq_len - lengths.astype(np.int64)).astype(np.uint64)
    bits = np.uint64(64 - seq_len.bit_length())
    return _argsort_unique((shorter_by << bits) | (rng.random_bits(len(lengths)) >> (np.uint64(64) - bits)))


def _argsort_unique(keys: UInt64Array) -> IntArray:
    """Returns the order of the keys, compared by all bits that the indices leave free.

    Sorting numbers that contain their own index is ten times as fast as `argsort`, and there are no ties.
    """
    mask = np.uint64((1 << len(keys).bit_length()) - 1)
    keys = np.sort((keys & ~mask) | np.arange(len(keys), dtype=np.uint64))
    return (keys & mask).astype(np.int64)
