"""Batches of a task: exactly so many windows an update, packed into as few rows as suffice for every update."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import overload

import numpy as np

from bertjax.data.corpus import offsets as ends_of
from bertjax.data.counter_rng import IntArray, permutation
from bertjax.data.packing import best_fit
from bertjax.data.pipeline import ALL_SEQUENCES, Prefetcher, ProcessShare, SequenceIndex, all_sequences
from bertjax.errors import UserError
from bertjax.finetuning.batch_packing import choose_batch_sizes, pack_batches
from bertjax.finetuning.features import Features
from bertjax.finetuning.templates import runs
from bertjax.types import Batch

_ROW_LENGTHS = 8  # rows are as long as the longest window, rounded up to a multiple of this
_OF_TOKENS, _OF_PLACES = "token_labels", ("start_labels", "end_labels")


class TaskBatches:
    """The training batches of all epochs, any of which can be asked for; has the face of `training.run.Batches`.

    A batch holds `batch_size` windows, the last batch of an epoch the rest (as transformers' Trainer has it). Epoch e
    takes them in `orders[e]` int [n], else in an order drawn from (seed, e). They are packed into `num_sequences`
    sequences of `seq_len` tokens with slots for `max_examples` windows each: the least that suffice for all batches,
    sequences rounded up to a multiple of `sequence_multiple`. `packing=False` gives every window a sequence of its own.
    `seq_len` None is the length of the longest window. `num_batch_shapes` > 1 lets batches that need fewer sequences
    have fewer: that many sizes, `sizes`, chosen for the least work (each is one more compilation). Runs of several
    seeds share their compiled steps where `sizes` and `min_examples` are given.

    `num_steps` updates make up `epochs`; later batches take the planned orders again, from the first on. Raises
    `UserError` for windows that do not fit, and for ids outside the vocabulary.
    """

    def __init__(
        self,
        features: Features,
        *,
        batch_size: int,
        epochs: float,
        seed: int,
        pad_id: int,
        vocab_size: int,
        seq_len: int | None = None,
        packing: bool = True,
        sequence_multiple: int = 1,
        num_batch_shapes: int = 1,
        sizes: Sequence[int] = (),
        min_examples: int = 0,
        orders: Sequence[IntArray] | None = None,
        share: ProcessShare = all_sequences,
        name: str = "train",
    ) -> None:
        require_token_ids(features, vocab_size, name)
        self.features, self.share, self.name, self.pad_id = features, share, name, pad_id
        self.batch_size = batch_size
        self.seq_len = sequence_length(features, seq_len)
        self.steps_per_epoch = -(-len(features) // batch_size)
        self.num_steps = math.ceil(epochs * self.steps_per_epoch)
        num_epochs = math.ceil(self.num_steps / self.steps_per_epoch)
        self._orders = [_order(orders, epoch, seed, len(features)) for epoch in range(num_epochs)]
        self._row_of = [self._rows_of(order, packing) for order in self._orders]
        self._used = [self._rows_used(row_of) for row_of in self._row_of]
        self.needed_sequences = -(-np.concatenate(self._used) // sequence_multiple) * sequence_multiple
        self.num_batch_shapes = num_batch_shapes
        self.sizes = tuple(sizes) or choose_batch_sizes(self.needed_sequences, num_batch_shapes)
        if self.sizes[-1] < self.needed_sequences.max() or any(size % sequence_multiple for size in self.sizes):
            raise ValueError(
                f"{self.sizes} rows do not suffice for {self.needed_sequences.max()}, or leave a device without"
            )
        self.max_examples = max(min_examples, *map(self._most_in_a_row, self._row_of))

    @property
    def num_sequences(self) -> int:
        """Rows of a batch, the largest where there are several sizes."""
        return self.sizes[-1]

    def _rows_of(self, order: np.ndarray, packing: bool) -> np.ndarray:
        """The row in its batch of every window of an epoch."""
        if not packing:
            return np.arange(len(order), dtype=np.int32) % np.int32(self.batch_size)
        lengths = np.zeros(self.steps_per_epoch * self.batch_size, np.int32)
        lengths[: len(order)] = self.features.lengths[order]
        packed = pack_batches(lengths.reshape(self.steps_per_epoch, self.batch_size), self.seq_len)
        return packed.reshape(-1)[: len(order)]

    def _rows_used(self, row_of: np.ndarray) -> np.ndarray:
        """int64 [steps]: the rows that every batch of an epoch needs."""
        return np.maximum.reduceat(row_of, np.arange(0, len(row_of), self.batch_size)).astype(np.int64) + 1

    def _most_in_a_row(self, row_of: np.ndarray) -> int:
        batch = np.arange(len(row_of)) // self.batch_size
        return int(np.bincount(batch * self.batch_size + row_of).max())

    def num_sequences_at(self, cursor: int) -> int:
        """Rows of batch `cursor`, one of `sizes`."""
        epoch, step = divmod(cursor, self.steps_per_epoch)
        return self.sizes[int(np.searchsorted(self.sizes, self._used[epoch % len(self._used)][step]))]

    @property
    def rows_per_epoch(self) -> dict[str, int]:
        """Rows that go through the model in the first epoch."""
        return {self.name: int(np.array(self.sizes)[np.searchsorted(self.sizes, self._used[0])].sum())}

    @property
    def mean_sequences(self) -> float:
        """Rows of a batch, on average over the first epoch."""
        return self.rows_per_epoch[self.name] / self.steps_per_epoch

    @property
    def padding(self) -> float:
        """The share of all places of the first epoch that hold no token."""
        return 1.0 - len(self.features.tokens) / (self.rows_per_epoch[self.name] * self.seq_len)

    def window_numbers(self, cursor: int) -> np.ndarray:
        """int32: the windows of batch `cursor`, in their order."""
        return self._members(cursor)[0]

    def _members(self, cursor: int) -> tuple[np.ndarray, np.ndarray]:
        if cursor < 0:
            raise ValueError(f"a cursor cannot be negative: {cursor}")
        epoch, step = divmod(cursor, self.steps_per_epoch)
        here = slice(step * self.batch_size, (step + 1) * self.batch_size)
        return self._orders[epoch % len(self._orders)][here], self._row_of[epoch % len(self._orders)][here]

    def batch(self, cursor: int, rows: SequenceIndex = ALL_SEQUENCES) -> Batch:
        """Batch number `cursor` >= 0, or only some of its rows."""
        numbers, row_of = self._members(cursor)
        size = (self.num_sequences_at(cursor), self.seq_len, self.max_examples)
        return make_batch(self.features, numbers, row_of, size, self.pad_id, rows)

    def prefetch(self, start_cursor: int, stop_cursor: int, depth: int = 2) -> Prefetcher:
        """Iterate over (cursor, this process's share of the batch) for the cursors [start, stop)."""

        def own(cursor: int) -> Batch:
            return self.batch(cursor, self.share(self.num_sequences_at(cursor)))

        return Prefetcher(own, start_cursor, stop_cursor, depth)


def _order(orders: Sequence[IntArray] | None, epoch: int, seed: int, count: int) -> np.ndarray:
    if orders is None:
        return permutation(count, "order of windows", seed, epoch).astype(np.int32)
    if epoch >= len(orders):
        raise ValueError(f"orders were given for {len(orders)} epochs, {epoch + 1} are needed")
    order = np.asarray(orders[epoch], np.int32)
    if not np.array_equal(np.sort(order), np.arange(count)):
        raise ValueError(f"the order of epoch {epoch} must hold each of {count} windows once")
    return order


class EvalBatches(Sequence[Batch]):
    """Every window once, those of like length together, in batches of `rows` rows; made when they are asked for.

    All have the shapes [rows, seq_len] and [rows, max_examples]; the last is filled up with empty rows. With
    `packing=False`, where every window has a row of its own, `num_lengths` > 1 lets batches of shorter windows have
    rows of half the length, a quarter, ...: as many shapes.
    """

    def __init__(
        self,
        features: Features,
        *,
        batch_size: int,
        pad_id: int,
        vocab_size: int,
        seq_len: int | None = None,
        packing: bool = True,
        num_lengths: int = 1,
        share: ProcessShare = all_sequences,
        name: str = "eval",
    ) -> None:
        require_token_ids(features, vocab_size, name)
        self.features, self.batch_size, self.pad_id, self.name = features, batch_size, pad_id, name
        self.seq_len = sequence_length(features, seq_len)
        self._own = share(batch_size)
        lengths = features.lengths
        self._numbers = np.argsort(-lengths, kind="stable").astype(np.int32)
        if packing:
            counts = np.bincount(lengths, minlength=self.seq_len + 1)
            row_of, _, num_rows = best_fit(counts, self.seq_len, self.seq_len)
            order = np.argsort(row_of, kind="stable")
            self._numbers, self._row_of = self._numbers[order], row_of[order]
            self.max_examples = int(np.bincount(row_of).max())
        else:
            self._row_of, num_rows, self.max_examples = np.arange(len(lengths)), len(lengths), 1
        self._num_batches = -(-num_rows // batch_size)
        self._lengths = [self.seq_len] if packing else _halves(self.seq_len, num_lengths)

    def __len__(self) -> int:
        return self._num_batches

    @overload
    def __getitem__(self, index: int) -> Batch: ...
    @overload
    def __getitem__(self, index: slice) -> list[Batch]: ...
    def __getitem__(self, index: int | slice) -> Batch | list[Batch]:
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        first = index % len(self) * self.batch_size
        begin, end = np.searchsorted(self._row_of, [first, first + self.batch_size])
        numbers = self._numbers[begin:end]
        longest = int(self.features.lengths[numbers].max())
        seq_len = (
            min(length for length in self._lengths if length >= longest) if len(self._lengths) > 1 else self.seq_len
        )
        size = (self.batch_size, seq_len, self.max_examples)
        return make_batch(self.features, numbers, self._row_of[begin:end] - first, size, self.pad_id, self._own)

    def __iter__(self) -> Iterator[Batch]:
        return (self[index] for index in range(len(self)))


def _halves(seq_len: int, count: int) -> list[int]:
    """seq_len, its half, its quarter, ... rounded up to multiples of 8."""
    halves = (-(-seq_len // (2**power) // _ROW_LENGTHS) * _ROW_LENGTHS for power in range(1, count))
    return [seq_len, *(length for length in halves if length < seq_len)]


def sequence_length(features: Features, seq_len: int | None) -> int:
    """Tokens of a row: the longest window rounded up, or what was asked for; raises `UserError` if too short."""
    if not len(features):
        raise UserError("the task has no examples left; check its sources")
    longest = int(features.lengths.max())
    if seq_len is None:
        return -(-longest // _ROW_LENGTHS) * _ROW_LENGTHS
    if longest > seq_len:
        raise UserError(
            f"task.max_length: a window has {longest} tokens, but rows have {seq_len}; set it to {seq_len} or less"
        )
    return seq_len


def require_token_ids(features: Features, vocab_size: int, name: str) -> None:
    """Raises `UserError` for token ids outside a vocabulary: JAX reads something else there, and goes on."""
    tokens = features.tokens
    if not tokens.size or tokens.view(np.uint32).max() < vocab_size:  # without a sign, negative numbers are huge
        return
    place = int(np.argmax(tokens.view(np.uint32) >= vocab_size))
    window = int(np.searchsorted(features.offsets, place, side="right")) - 1
    raise UserError(
        f"task.{name}: example {int(features.example[window])} holds token id {int(tokens[place])}, but the model has "
        f"{vocab_size} pieces; take tokenizer and weights of one model"
    )


def make_batch(
    features: Features,
    numbers: np.ndarray,
    row_of: np.ndarray,
    size: tuple[int, int, int],
    pad_id: int,
    rows: SequenceIndex = ALL_SEQUENCES,
) -> dict[str, np.ndarray]:
    """The batch in which window `numbers[i]` stands in row `row_of[i]`; `size` is (B, S, E), `rows` those to make.

    As `bertjax.types.Batch` has it, and: example_numbers int32 [B, E], -1 = none · class_labels, score_labels [B, E] ·
    start_labels, end_labels int32 [B, E], columns of the row · token_labels int32 [B, S], -1 = none. Where there is no
    example the labels of examples are 0.
    """
    numbers, row, count = _own(numbers, row_of, size[0], rows)
    counts = np.bincount(row, minlength=count)
    begins = ends_of(counts)[row]
    slot = np.arange(len(row)) - begins
    lengths = features.offsets[numbers + 1] - features.offsets[numbers]
    before = ends_of(lengths)[:-1]
    first = before - before[begins] if len(row) else before
    here, source = runs(row * size[1] + first, lengths), runs(features.offsets[numbers], lengths)

    def tokens(values: np.ndarray, fill: int) -> np.ndarray:
        out = np.full(count * size[1], fill, np.int32)
        out[here] = values
        return out.reshape(count, size[1])

    def examples(values: np.ndarray, fill: int = 0) -> np.ndarray:
        out = np.full((count, size[2]), fill, values.dtype)
        out[row, slot] = values
        return out

    batch = {
        "input_ids": tokens(features.tokens[source], pad_id),
        "segment_ids": tokens(np.repeat(slot + 1, lengths), 0),
        "position_ids": tokens(runs(np.zeros_like(lengths), lengths), 0),
        "token_type_ids": tokens(features.token_types[source], 0),
        "example_positions": examples((first + features.summary_position[numbers]).astype(np.int32)),
        "example_weights": examples(np.ones(len(row), np.float32)),
        "example_ids": examples(numbers.astype(np.uint32)),
        "example_draws": examples(np.zeros(len(row), np.uint32)),
        "example_numbers": examples(numbers.astype(np.int32), -1),
    }
    for name, values in features.labels.items():
        if name == _OF_TOKENS:
            batch[name] = tokens(values[source], -1)
        else:
            shift = first if name in _OF_PLACES else np.zeros_like(first)
            batch[name] = examples(values[numbers] + shift.astype(values.dtype))
    return batch


def _own(
    numbers: np.ndarray, row_of: np.ndarray, num_rows: int, rows: SequenceIndex
) -> tuple[np.ndarray, IntArray, int]:
    """The windows of the rows to make, row by row, those rows counted from 0, and how many they are."""
    local = np.full(num_rows, -1, np.int64)
    count = len(local[rows])
    local[rows] = np.arange(count)
    row = local[row_of]
    order = np.argsort(row, kind="stable")
    order = order[row[order] >= 0]
    return numbers[order], row[order], count


def scatter_token_values(features: Features, batch: Batch, values: np.ndarray, out: np.ndarray) -> None:
    """Writes what a model says of the tokens of a batch, [B, S, ...], into `out` [total, ...], beside `tokens`."""
    numbers, segments = np.asarray(batch["example_numbers"]), np.asarray(batch["segment_ids"])
    row, column = np.nonzero(segments)
    window = numbers[row, segments[row, column] - 1]
    out[features.offsets[window] + np.asarray(batch["position_ids"])[row, column]] = np.asarray(values)[row, column]


def scatter_window_values(batch: Batch, values: np.ndarray, out: np.ndarray) -> None:
    """Writes what a model says of the windows of a batch, [B, E, ...], into `out` [n, ...], one entry a window."""
    numbers = np.asarray(batch["example_numbers"])
    here = numbers >= 0
    out[numbers[here]] = np.asarray(values)[here]
