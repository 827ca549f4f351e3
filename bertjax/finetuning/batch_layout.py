"""Arrangement of windows in batches: packing into sequences, arrays of a batch, and values back to the windows.

`data/packing.py` packs one large set by counts of lengths; here thousands of small sets, the batches, are packed at
once: the loop runs over the windows of a batch, and each step handles all batches.
"""

from __future__ import annotations

import numpy as np

from bertjax.data.corpus import offsets as ends_of
from bertjax.data.counter_rng import IntArray
from bertjax.data.pipeline import ALL_SEQUENCES, SequenceIndex
from bertjax.finetuning.features import Features
from bertjax.finetuning.templates import runs
from bertjax.types import Batch

_PER_TOKEN, _POSITIONS = "token_labels", ("start_labels", "end_labels")


def pack_batches(lengths: np.ndarray, seq_len: int) -> np.ndarray:
    """Packs the windows of every batch: longest first, into the fullest sequence that can still hold it.

    Args:
        lengths: int32 [batches, k], tokens of the windows, 0: no window.
        seq_len: tokens of a sequence.

    Returns:
        int32 [batches, k], index in its batch of the sequence of every window.
    """
    num_batches, size = lengths.shape
    order = np.argsort(-lengths, axis=1, kind="stable")
    longest_first = np.take_along_axis(lengths, order, axis=1)
    estimate = int(lengths.sum(axis=1).max()) // max(seq_len, 1) + 2
    free = np.full((num_batches, min(estimate, size)), seq_len, np.int32)
    used = np.zeros(num_batches, np.int64)
    packed = np.empty((num_batches, size), np.int32)
    batches = np.arange(num_batches)
    for index in range(size):
        length = longest_first[:, index]
        sequence = _fullest(free[:, : max(int(used.max()), 1)], used, length)
        used = np.maximum(used, sequence + 1)
        if used.max() > free.shape[1]:
            more = np.full((num_batches, min(free.shape[1], size - free.shape[1])), seq_len, np.int32)
            free = np.concatenate([free, more], axis=1)
        free[batches, sequence] -= length
        packed[:, index] = sequence
    sequences = np.empty_like(packed)
    np.put_along_axis(sequences, order, packed, axis=1)
    return sequences


def _fullest(free: np.ndarray, used: np.ndarray, length: np.ndarray) -> np.ndarray:
    """Returns the used sequence of every batch in which this window leaves least free, else the next unused one."""
    none = np.iinfo(np.int32).max
    left = np.where(free >= length[:, None], free, none)
    left[np.arange(free.shape[1]) >= used[:, None]] = none
    sequence = left.argmin(axis=1)
    fits = left[np.arange(len(sequence)), sequence] < none
    return np.where(fits, sequence, used)


def choose_batch_sizes(needed: np.ndarray, count: int) -> tuple[int, ...]:
    """Returns at most `count` sizes, ascending, with the least sum over all batches of the smallest sufficient size.

    Args:
        needed: int [n], sequences that each batch needs; few distinct values.
        count: number of sizes.
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


def make_batch(
    features: Features,
    numbers: np.ndarray,
    sequence_of: np.ndarray,
    size: tuple[int, int, int],
    pad_id: int,
    chosen: SequenceIndex = ALL_SEQUENCES,
) -> dict[str, np.ndarray]:
    """Returns the arrays of a batch.

    Args:
        features: the windows.
        numbers: indices of the windows in the batch.
        sequence_of: index of the sequence of each of these windows.
        size: (B, S, E): sequences, their tokens, and the slots for windows in each.
        pad_id: id of padding.
        chosen: sequences of the batch to make; those of one process.

    Returns:
        The arrays of `bertjax.types.Batch`, and example_numbers int32 [B, E], -1: none; class_labels, score_labels
        [B, E]; start_labels, end_labels int32 [B, E], positions in the sequence; token_labels int32 [B, S], -1: none.
        The labels of empty slots are 0.
    """
    numbers, sequence, count = _select(numbers, sequence_of, size[0], chosen)
    counts = np.bincount(sequence, minlength=count)
    begins = ends_of(counts)[sequence]
    slot = np.arange(len(sequence)) - begins
    lengths = features.offsets[numbers + 1] - features.offsets[numbers]
    before = ends_of(lengths)[:-1]
    first = before - before[begins] if len(sequence) else before
    target, source = runs(sequence * size[1] + first, lengths), runs(features.offsets[numbers], lengths)

    def per_token(values: np.ndarray, fill: int) -> np.ndarray:
        out = np.full(count * size[1], fill, np.int32)
        out[target] = values
        return out.reshape(count, size[1])

    def per_window(values: np.ndarray, fill: int = 0) -> np.ndarray:
        out = np.full((count, size[2], *values.shape[1:]), fill, values.dtype)
        out[sequence, slot] = values
        return out

    batch = {
        "input_ids": per_token(features.tokens[source], pad_id),
        "segment_ids": per_token(np.repeat(slot + 1, lengths), 0),
        "position_ids": per_token(runs(np.zeros_like(lengths), lengths), 0),
        "token_type_ids": per_token(features.token_types[source], 0),
        "example_positions": per_window((first + features.summary_position[numbers]).astype(np.int32)),
        "example_weights": per_window(np.ones(len(sequence), np.float32)),
        "example_ids": per_window(numbers.astype(np.uint32)),
        **{name: per_window(np.zeros(len(sequence), np.uint32)) for name in ("example_epochs", "example_draws")},
        "example_numbers": per_window(numbers.astype(np.int32), -1),
    }
    for name, values in features.labels.items():
        if name == _PER_TOKEN:
            batch[name] = per_token(values[source], -1)
        else:
            chosen_values = values[numbers]
            batch[name] = per_window(
                chosen_values + first.astype(values.dtype) if name in _POSITIONS else chosen_values
            )
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
