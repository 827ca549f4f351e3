"""Arrangement of windows in batches: packing into sequences, arrays of a batch, and values back to the windows.

`data/packing.py` packs one large set by counts of lengths; here thousands of small sets, the batches, are packed at
once: the loop runs over the windows of a batch, and each step handles all batches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from bertjax.data.corpus import offsets as ends_of
from bertjax.data.counter_rng import IntArray
from bertjax.data.packing import best_fit
from bertjax.data.pipeline import ALL_SEQUENCES, SequenceIndex
from bertjax.tasks.features import Features, Targets
from bertjax.tasks.templates import runs
from bertjax.types import Batch

_PER_TOKEN, _POSITIONS = "token_labels", ("start_labels", "end_labels")
_SOURCE_NAMES = ("input_ids", "segment_ids", "position_ids")
_TARGET_NAMES = ("target_ids", "target_segment_ids", "target_position_ids")
_SHORTEST_ROW, _LAST_ROW = 16, 64


def pack_batches(lengths: np.ndarray, seq_len: int | Sequence[int]) -> np.ndarray:
    """Packs the windows of every batch: longest first, into the fullest sequence that can still hold it.

    Windows with targets have several lengths, and a sequence as many limits: the longest window is the one that takes
    the largest share of a limit, the fullest sequence that of which the shares together leave least.

    Args:
        lengths: int [batches, k] or [batches, k, sides], tokens of the windows, 0: no window.
        seq_len: tokens of a sequence, of each side.

    Returns:
        int32 [batches, k], index in its batch of the sequence of every window.
    """
    lengths = lengths.reshape(*lengths.shape[:2], -1).astype(np.int64)
    limits = np.atleast_1d(np.asarray(seq_len, np.int64))
    weights = np.prod(limits) // limits  # makes shares of the limits comparable, in whole numbers
    num_batches, size, _ = lengths.shape
    order = np.argsort(-(lengths * weights).max(axis=2), axis=1, kind="stable")
    longest_first = np.take_along_axis(lengths, order[:, :, None], axis=1)
    estimate = int((lengths.sum(axis=1) // np.maximum(limits, 1)).max()) + 2
    free = np.tile(limits, (num_batches, min(estimate, size), 1))
    used = np.zeros(num_batches, np.int64)
    packed = np.empty((num_batches, size), np.int32)
    batches = np.arange(num_batches)
    for index in range(size):
        length = longest_first[:, index]
        sequence = _fullest(free[:, : max(int(used.max()), 1)], used, length, weights)
        used = np.maximum(used, sequence + 1)
        if used.max() > free.shape[1]:
            more = np.tile(limits, (num_batches, min(free.shape[1], size - free.shape[1]), 1))
            free = np.concatenate([free, more], axis=1)
        free[batches, sequence] -= length
        packed[:, index] = sequence
    sequences = np.empty_like(packed)
    np.put_along_axis(sequences, order, packed, axis=1)
    return sequences


def _fullest(free: np.ndarray, used: np.ndarray, length: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Returns the used sequence of every batch in which this window leaves least free, else the next unused one."""
    none = np.iinfo(np.int64).max
    left = np.where((free >= length[:, None]).all(axis=2), free @ weights, none)
    left[np.arange(free.shape[1]) >= used[:, None]] = none
    sequence = left.argmin(axis=1)
    fits = left[np.arange(len(sequence)), sequence] < none
    return np.where(fits, sequence, used)


class PackedRows(NamedTuple):
    """Windows of a batch, the row of each, and its shape (B, S, E): rows, their tokens, and the slots for windows."""

    numbers: np.ndarray
    row_of: np.ndarray
    size: tuple[int, int, int]


def pack_rows(
    lengths: np.ndarray, tokens: int, width: int, limit: int | None, most: int | None = None
) -> Iterator[PackedRows]:
    """Packs windows for a forward pass into batches of few shapes, longest first, so that a lack of memory shows early.

    Rows are about as long as the longest window, and shorter ones fill them up. Once only windows are left of which two
    fit, rows become shorter, because the cost of attention grows with their length. Windows without tokens are in none.

    Args:
        lengths: tokens of each window [n].
        tokens: token slots of a batch, padding included; a batch holds at least one row.
        width: hidden size, for the share of attention.
        limit: longest row that the model can read; None: any.
        most: most windows in a row; None: a quarter of its tokens.
    """
    left = np.argsort(-lengths, kind="stable")[: np.count_nonzero(lengths)]
    while len(left):
        length = _row_length(int(lengths[left[0]]))
        last = length <= (_LAST_ROW if most is None else _SHORTEST_ROW)
        rows = {length, 2 * length, _LAST_ROW} if last and most is None else {length}
        plans = [_plan_rows(lengths[left], min(row, limit or row), tokens, most, last) for row in sorted(rows)]
        best = min(plans, key=lambda plan: plan.slots * (1 + plan.length / (2 * width)))
        for first, count in best.batches:
            begin, end = np.searchsorted(best.row_of, [first, first + count])
            size = count, best.length, most or max(1, best.length // 4)
            yield PackedRows(left[best.order[begin:end]], best.row_of[begin:end] - first, size)
        left = np.delete(left, best.order)


class _RowPlan(NamedTuple):
    """Windows in the order of their rows, the row of each, and (first row, number of rows) for each batch."""

    length: int
    order: np.ndarray
    row_of: np.ndarray
    batches: list[tuple[int, int]]

    @property
    def slots(self) -> int:
        return self.length * sum(rows for _, rows in self.batches)


def _plan_rows(lengths: np.ndarray, row: int, tokens: int, most: int | None, last: bool) -> _RowPlan:
    """Packs windows that are sorted by length, longest first, into rows of one length.

    Args:
        lengths, tokens, most: as of `pack_rows`.
        row: tokens of a row.
        last: whether rows may begin with a window that fits twice.
    """
    row_of, _, count = best_fit(np.bincount(lengths, minlength=row + 1), row, most or max(1, row // 4))
    if not last:  # rows are numbered in the order of their longest window
        count = int(row_of[lengths > row // 2].max()) + 1
    order, size = np.argsort(row_of, kind="stable"), max(1, tokens // row)
    order = order[: np.searchsorted(row_of[order], count)]
    size = min(size, next_power_of_two(count))
    return _RowPlan(row, order, row_of[order], [(first, size) for first in range(0, count, size)])


def _row_length(length: int) -> int:
    """Returns 16, 32, 64, and from there one of four lengths to a doubling."""
    if length <= _LAST_ROW:
        return max(_SHORTEST_ROW, next_power_of_two(length))
    step = next_power_of_two(length) // 8
    return -(-length // step) * step


def next_power_of_two(number: int) -> int:
    """Returns the smallest power of two that is at least `number`."""
    return 1 << (number - 1).bit_length()


def choose_batch_sizes(needed: np.ndarray, count: int) -> tuple[int, ...]:
    """Returns at most `count` sizes, ascending, with the least sum over all batches of the smallest sufficient size.

    Args:
        needed: int [n], sequences that each batch needs; few distinct values.
        count: number of sizes.
    """
    return tuple(size for (size,) in choose_shapes(needed[:, None], count))


def choose_shapes(needed: np.ndarray, count: int) -> tuple[tuple[int, ...], ...]:
    """Returns at most `count` shapes, from small to large, with the least sum of the sizes of all batches.

    The batches are divided in the order of their sums; a shape holds all batches of its part. With one dimension that
    is the optimum.

    Args:
        needed: int [n, dimensions], what each batch needs; few distinct rows.
        count: number of shapes.
    """
    values, weights = np.unique(needed, axis=0, return_counts=True)
    order = np.argsort(values.sum(axis=1), kind="stable")
    values, before = values[order], np.concatenate([[0], np.cumsum(weights[order])])
    bounds = [np.maximum.accumulate(values[i::-1])[::-1] for i in range(len(values))]  # of the parts j..i, by j
    costs = [(before[i + 1] - before[: i + 1]) * bounds[i].sum(axis=1) for i in range(len(values))]
    best: list[tuple[int, tuple[tuple[int, ...], ...]]] = [(0, ())]  # for the first i values: the sum, and the shapes
    best += [(int(costs[i][0]), (_row(bounds[i][0]),)) for i in range(len(values))]
    for _ in range(min(count, len(values)) - 1):
        best = [best[0]] + [
            min((best[j][0] + int(costs[i][j]), (*best[j][1], _row(bounds[i][j]))) for j in range(i + 1))
            for i in range(len(values))
        ]
    return best[-1][1]


def _row(values: np.ndarray) -> tuple[int, ...]:
    return tuple(values.tolist())


class _TokenLayout:
    """Maps the tokens of chosen windows to their positions in the sequences of a batch."""

    def __init__(
        self, side: Features | Targets, numbers: np.ndarray, sequence: np.ndarray, begins: np.ndarray, width: int
    ) -> None:
        self.lengths = side.offsets[numbers + 1] - side.offsets[numbers]
        before = ends_of(self.lengths)[:-1]
        self.first = before - before[begins] if len(sequence) else before
        self._target = runs(sequence * width + self.first, self.lengths)
        self.source, self._width = runs(side.offsets[numbers], self.lengths), width

    def fill(self, count: int, values: np.ndarray, empty: int) -> np.ndarray:
        """Returns int32 [count, width], with a value per token and `empty` elsewhere."""
        out = np.full(count * self._width, empty, np.int32)
        out[self._target] = values
        return out.reshape(count, self._width)

    def arrays(self, count: int, side: Features | Targets, slot: np.ndarray, pad_id: int) -> tuple[np.ndarray, ...]:
        """Returns tokens, numbers of examples, and positions [count, width]."""
        return (
            self.fill(count, side.tokens[self.source], pad_id),
            self.fill(count, np.repeat(slot + 1, self.lengths), 0),
            self.fill(count, runs(np.zeros_like(self.lengths), self.lengths), 0),
        )


def make_batch(
    features: Features,
    numbers: np.ndarray,
    sequence_of: np.ndarray,
    size: tuple[int, int, int],
    pad_id: int,
    chosen: SequenceIndex = ALL_SEQUENCES,
    target_len: int = 0,
) -> dict[str, np.ndarray]:
    """Returns the arrays of a batch.

    Args:
        features: the windows.
        numbers: indices of the windows in the batch.
        sequence_of: index of the sequence of each of these windows.
        size: (B, S, E): sequences, their tokens, and the slots for windows in each.
        pad_id: id of padding.
        chosen: sequences of the batch to make; those of one process.
        target_len: tokens of a sequence of targets, T.

    Returns:
        The arrays of `bertjax.types.Batch`, and example_numbers int32 [B, E], -1: none; class_labels, score_labels
        [B, E]; start_labels, end_labels int32 [B, E], positions in the sequence; token_labels int32 [B, S], -1: none.
        The labels of empty slots are 0.
    """
    numbers, sequence, count = _select(numbers, sequence_of, size[0], chosen)
    counts = np.bincount(sequence, minlength=count)
    begins = ends_of(counts)[sequence]
    slot = np.arange(len(sequence)) - begins
    tokens = _TokenLayout(features, numbers, sequence, begins, size[1])

    def per_window(values: np.ndarray, fill: int = 0) -> np.ndarray:
        out = np.full((count, size[2], *values.shape[1:]), fill, values.dtype)
        out[sequence, slot] = values
        return out

    batch = {
        **dict(zip(_SOURCE_NAMES, tokens.arrays(count, features, slot, pad_id), strict=True)),
        "token_type_ids": tokens.fill(count, features.token_types[tokens.source], 0),
        "example_positions": per_window((tokens.first + features.summary_position[numbers]).astype(np.int32)),
        "example_weights": per_window(np.ones(len(sequence), np.float32)),
        "example_ids": per_window(numbers.astype(np.uint32)),
        **{name: per_window(np.zeros(len(sequence), np.uint32)) for name in ("example_epochs", "example_draws")},
        "example_numbers": per_window(numbers.astype(np.int32), -1),
    }
    for name, values in features.labels.items():
        if name == _PER_TOKEN:
            batch[name] = tokens.fill(count, values[tokens.source], -1)
        else:
            chosen_values = values[numbers]
            batch[name] = per_window(
                chosen_values + tokens.first.astype(values.dtype) if name in _POSITIONS else chosen_values
            )
    if features.targets is not None:
        layout = _TokenLayout(features.targets, numbers, sequence, begins, target_len)
        arrays = layout.arrays(count, features.targets, slot, pad_id)
        batch |= dict(zip(_TARGET_NAMES, arrays, strict=True))
    return batch


def _select(
    numbers: np.ndarray, sequence_of: np.ndarray, num_sequences: int, chosen: SequenceIndex
) -> tuple[np.ndarray, IntArray, int]:
    """Returns the windows of the chosen sequences, their sequences counted from 0, and the number of these."""
    local = np.full(num_sequences, -1, np.int64)
    count = len(local[chosen])
    local[chosen] = np.arange(count)
    sequence = local[sequence_of]
    order = np.argsort(sequence, kind="stable")
    order = order[sequence[order] >= 0]
    return numbers[order], sequence[order], count


def scatter_token_values(features: Features, batch: Batch, values: np.ndarray, out: np.ndarray) -> None:
    """Writes the outputs for the tokens of a batch to the tokens of the features.

    Args:
        features: the windows.
        batch: a batch of them.
        values: [B, S, ...].
        out: written to, [total, ...].
    """
    numbers, segments = np.asarray(batch["example_numbers"]), np.asarray(batch["segment_ids"])
    row, column = np.nonzero(segments)
    window = numbers[row, segments[row, column] - 1]
    out[features.offsets[window] + np.asarray(batch["position_ids"])[row, column]] = np.asarray(values)[row, column]


def scatter_window_values(batch: Batch, values: np.ndarray, out: np.ndarray) -> None:
    """Writes the outputs for the windows of a batch to the windows of the features.

    Args:
        batch: a batch.
        values: [B, E, ...].
        out: written to, [n, ...].
    """
    numbers = np.asarray(batch["example_numbers"])
    is_window = numbers >= 0
    out[numbers[is_window]] = np.asarray(values)[is_window]
