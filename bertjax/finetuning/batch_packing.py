"""Packing many small batches at once: best fit decreasing in every one of them, a step for every window of a batch.

`data/packing.py` packs one large set on counts of lengths; here thousands of small sets are packed, each by itself, and
what is done one by one is a place in the batch, over all batches.
"""

from __future__ import annotations

import numpy as np


def pack_batches(lengths: np.ndarray, seq_len: int) -> np.ndarray:
    """int32 [batches, k]: the row of every window in its own batch; `lengths` int32 [batches, k], 0 = no window.

    The windows of a batch go longest first into the fullest row that still has room for them.
    """
    num_batches, size = lengths.shape
    order = np.argsort(-lengths, axis=1, kind="stable")
    longest_first = np.take_along_axis(lengths, order, axis=1)
    most = int(lengths.sum(axis=1).max()) // max(seq_len, 1) + 2
    rooms = np.full((num_batches, min(most, size)), seq_len, np.int32)
    used = np.zeros(num_batches, np.int64)
    rows = np.empty((num_batches, size), np.int32)
    batches = np.arange(num_batches)
    for place in range(size):
        length = longest_first[:, place]
        row = _fullest(rooms[:, : max(int(used.max()), 1)], used, length)
        used = np.maximum(used, row + 1)
        if used.max() > rooms.shape[1]:
            more = np.full((num_batches, min(rooms.shape[1], size - rooms.shape[1])), seq_len, np.int32)
            rooms = np.concatenate([rooms, more], axis=1)
        rooms[batches, row] -= length
        rows[:, place] = row
    found = np.empty_like(rows)
    np.put_along_axis(found, order, rows, axis=1)
    return found


def _fullest(rooms: np.ndarray, used: np.ndarray, length: np.ndarray) -> np.ndarray:
    """The open row of every batch in which this window leaves least room, else the next new one."""
    none = np.iinfo(np.int32).max
    left = np.where(rooms >= length[:, None], rooms, none)
    left[np.arange(rooms.shape[1]) >= used[:, None]] = none
    row = left.argmin(axis=1)
    fits = left[np.arange(len(row)), row] < none
    return np.where(fits, row, used)


def choose_batch_sizes(needed: np.ndarray, count: int) -> tuple[int, ...]:
    """At most `count` sizes, ascending, of which everything gets the least that suffices: those with the least sum.

    `needed` int [n], of which there are few different ones.
    """
    values, weights = np.unique(needed, return_counts=True)
    before = np.concatenate([[0], np.cumsum(weights)])
    best: list[tuple[int, tuple[int, ...]]] = [(0, ())]  # for the first i values: the sum, and the sizes
    best += [(int(value * before[i + 1]), (int(value),)) for i, value in enumerate(values)]
    for _ in range(count - 1):
        best = [best[0]] + [
            min(
                (best[j][0] + int(values[i] * (before[i + 1] - before[j])), (*best[j][1], int(values[i])))
                for j in range(i + 1)
            )
            for i in range(len(values))
        ]
    return best[-1][1]
