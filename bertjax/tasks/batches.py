"""Batches of a task: `task.batch_size` windows per step, packed into as few sequences as suffice for every step."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from typing import overload

import numpy as np

from bertjax.data.corpus import offsets as ends_of
from bertjax.data.counter_rng import IntArray, permutation
from bertjax.data.packing import best_fit
from bertjax.data.pipeline import ALL_SEQUENCES, Prefetcher, ProcessShare, SequenceIndex, all_sequences
from bertjax.errors import UserError
from bertjax.tasks.batch_layout import choose_batch_sizes, choose_shapes, make_batch, pack_batches, pack_rows
from bertjax.tasks.features import Features, require_token_ids
from bertjax.types import Batch

_LENGTH_MULTIPLE = 8  # sequences are as long as the longest window, rounded up to a multiple of this
_NUM_LENGTHS = 16  # grouped by length, batches are rounded up to so many lengths
_BATCHES_PER_GROUP = 50  # sorted by length at a time, as by group_by_length of transformers' Trainer
_PACKED_TOGETHER = 1024  # windows with targets
_BATCHES_TO_MEASURE = 256  # of which the length of packed sequences is chosen


class TaskBatches:
    """The training batches of all epochs, with random access by cursor; implements `training.run_context.Batches`.

    The last batch of an epoch holds the rest of the windows, as in transformers' Trainer. Batches beyond `num_steps`
    use the planned orders again, from the first on.

    Args:
        features: the windows.
        batch_size: windows per step; of features with groups, groups per step.
        epochs: passes over the windows, may be fractional.
        seed: seed of the order of the windows.
        pad_id: id of padding.
        vocab_size: size of the model's vocabulary.
        seq_len: tokens of a sequence; None: the length of the longest window.
        target_len: tokens of a sequence of targets; None: the length of the longest target.
        packing: whether windows share sequences.
        group_by_length: without packing, batches hold windows of similar length, and sequences are as long as these.
        sequence_multiple: the number of sequences per batch is a multiple of this.
        num_batch_shapes: number of `sizes`, or of `lengths`, which are chosen for the least work.
        sizes: numbers of sequences per batch; with `min_examples`, runs of several seeds share their compiled steps.
        lengths: lengths of sequences, for the same purpose.
        min_examples: at least this many slots for windows per sequence.
        orders: the windows of each epoch, int [n] each; None: drawn from (seed, epoch).
        share: which sequences of a batch this process makes.
        name: name of the split, for messages.

    Attributes:
        num_steps: Steps in `epochs`.
        steps_per_epoch: Steps in one epoch.
        sizes: Numbers of sequences that batches can have, ascending.
        needed_sequences: Sequences that each batch needs, rounded up to the multiple.
        lengths: Lengths that sequences can have, of each side, from short to long.
        needed_lengths: Lengths that the sequences of each batch need, int64 [steps, sides], rounded up.
        max_examples: Slots for windows per sequence, E.

    Raises:
        UserError: a window does not fit, or a token id is outside the vocabulary.
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
        target_len: int | None = None,
        packing: bool = True,
        group_by_length: bool = False,
        sequence_multiple: int = 1,
        num_batch_shapes: int = 1,
        sizes: Sequence[int] = (),
        lengths: Sequence[tuple[int, ...]] = (),
        min_examples: int = 0,
        orders: Sequence[IntArray] | None = None,
        share: ProcessShare = all_sequences,
        name: str = "train",
    ) -> None:
        require_token_ids(features, vocab_size, name)
        self.features, self.share, self.name, self.pad_id = features, share, name, pad_id
        self.batch_size = batch_size = batch_size * features.group
        self._limits = sequence_lengths(features, seq_len, target_len)
        self.seq_len = self._limits[0]
        self.steps_per_epoch = -(-len(features) // batch_size)
        self.num_steps = math.ceil(epochs * self.steps_per_epoch)
        num_epochs = math.ceil(self.num_steps / self.steps_per_epoch)
        self._orders = [_order(orders, epoch, seed, features) for epoch in range(num_epochs)]
        grouped = group_by_length and not packing
        if grouped:
            self._orders = [self._group(order, epoch, seed) for epoch, order in enumerate(self._orders)]
        self._sequence_of = [self._pack(order, packing) for order in self._orders]
        self._used = [self._count_sequences(packed) for packed in self._sequence_of]
        self.needed_sequences = -(-np.concatenate(self._used) // sequence_multiple) * sequence_multiple
        self.num_batch_shapes = num_batch_shapes
        self.sizes = tuple(sizes) or choose_batch_sizes(self.needed_sequences, 1 if grouped else num_batch_shapes)
        if grouped:
            self.needed_lengths = np.concatenate([self._round_lengths(order) for order in self._orders])
        else:
            self.needed_lengths = np.array([self._limits])
        self.lengths = tuple(lengths) or choose_shapes(self.needed_lengths, num_batch_shapes)
        if self.sizes[-1] < self.needed_sequences.max() or any(size % sequence_multiple for size in self.sizes):
            raise ValueError(
                f"sizes {self.sizes} must reach {self.needed_sequences.max()} sequences, in multiples of "
                f"{sequence_multiple}"
            )
        self.max_examples = max(min_examples, *map(self._max_per_sequence, self._sequence_of))

    @property
    def num_sequences(self) -> int:
        """Sequences of a batch, of the largest one if there are several sizes."""
        return self.sizes[-1]

    def _pack(self, order: np.ndarray, packing: bool) -> np.ndarray:
        """Returns the sequence in its batch of every window of an epoch."""
        if not packing:
            return np.arange(len(order), dtype=np.int32) % np.int32(self.batch_size)
        of_windows = self.features.side_lengths[order]
        lengths = np.zeros((self.steps_per_epoch * self.batch_size, of_windows.shape[1]), np.int32)
        lengths[: len(order)] = of_windows
        packed = pack_batches(lengths.reshape(self.steps_per_epoch, self.batch_size, -1), self._limits)
        return packed.reshape(-1)[: len(order)]

    def _group(self, order: np.ndarray, epoch: int, seed: int) -> np.ndarray:
        """Sorts every `_BATCHES_PER_GROUP` batches of an order by length, and draws the order of the full batches."""
        group, size = _BATCHES_PER_GROUP * self.batch_size, self.batch_size
        longest = self.features.side_lengths[order].max(axis=1)
        order = order[np.lexsort((longest, np.arange(len(order)) // group))]
        full = len(order) // size
        batches = order[: full * size].reshape(full, size)[permutation(full, "order of batches", seed, epoch)]
        return np.concatenate([batches.reshape(-1), order[full * size :]])

    def _round_lengths(self, order: np.ndarray) -> np.ndarray:
        """Returns int64 [steps, sides]: the longest window of every batch, rounded up to one of 16 lengths or fewer."""
        longest = np.maximum.reduceat(self.features.side_lengths[order], np.arange(0, len(order), self.batch_size))
        limits = np.array(self._limits)
        multiple = -(-limits // (_NUM_LENGTHS * _LENGTH_MULTIPLE)) * _LENGTH_MULTIPLE
        return np.minimum(-(-longest // multiple) * multiple, limits)

    def _count_sequences(self, packed: np.ndarray) -> np.ndarray:
        """Returns int64 [steps]: the sequences that every batch of an epoch needs."""
        return np.maximum.reduceat(packed, np.arange(0, len(packed), self.batch_size)).astype(np.int64) + 1

    def _max_per_sequence(self, packed: np.ndarray) -> int:
        batch = np.arange(len(packed)) // self.batch_size
        return int(np.bincount(batch * self.batch_size + packed).max())

    def num_sequences_at(self, cursor: int) -> int:
        """Returns the number of sequences of batch `cursor`, one of `sizes`."""
        epoch, step = divmod(cursor, self.steps_per_epoch)
        return self.sizes[int(np.searchsorted(self.sizes, self._used[epoch % len(self._used)][step]))]

    def lengths_at(self, cursor: int) -> tuple[int, ...]:
        """Returns the lengths of the sequences of batch `cursor`, one of `lengths`."""
        if len(self.lengths) == 1:
            return self.lengths[0]
        epoch, step = divmod(cursor, self.steps_per_epoch)
        needed = self.needed_lengths[epoch % len(self._orders) * self.steps_per_epoch + step]
        return next(lengths for lengths in self.lengths if (needed <= lengths).all())

    @property
    def sequences_per_epoch(self) -> dict[str, int]:
        """Sequences in the first epoch."""
        return {self.name: int(np.array(self.sizes)[np.searchsorted(self.sizes, self._used[0])].sum())}

    @property
    def mean_sequences(self) -> float:
        """Sequences per batch, mean over the first epoch."""
        return self.sequences_per_epoch[self.name] / self.steps_per_epoch

    @property
    def padding(self) -> float:
        """Share of the token slots of the first epoch that hold padding."""
        return 1.0 - self.features.num_tokens / int(self._slots.sum())

    @property
    def side_padding(self) -> list[float]:
        """Shares of windows and targets by themselves."""
        tokens = [len(side.tokens) for side in self.features.sides]
        return [1.0 - count / int(slots) for count, slots in zip(tokens, self._slots, strict=True)]

    @functools.cached_property
    def _slots(self) -> np.ndarray:
        """Token slots of the first epoch, int64 [sides]."""
        steps = range(self.steps_per_epoch)
        lengths = np.array([self.lengths_at(step) for step in steps])
        return (np.array([self.num_sequences_at(step) for step in steps])[:, None] * lengths).sum(axis=0)

    def windows(self, cursor: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the indices of the windows of batch `cursor`, in order, and their sequences, int32 [windows] each."""
        if cursor < 0:
            raise ValueError(f"a cursor cannot be negative: {cursor}")
        epoch, step = divmod(cursor, self.steps_per_epoch)
        chosen = slice(step * self.batch_size, (step + 1) * self.batch_size)
        return self._orders[epoch % len(self._orders)][chosen], self._sequence_of[epoch % len(self._orders)][chosen]

    def batch(self, cursor: int, chosen: SequenceIndex = ALL_SEQUENCES) -> Batch:
        """Returns batch number `cursor`, or only the chosen sequences of it."""
        numbers, sequence_of = self.windows(cursor)
        seq_len, *target_len = self.lengths_at(cursor)
        size = (self.num_sequences_at(cursor), seq_len, self.max_examples)
        return make_batch(self.features, numbers, sequence_of, size, self.pad_id, chosen, *target_len)

    def prefetch(self, start_cursor: int, stop_cursor: int, depth: int = 2) -> Prefetcher:
        """Iterates over (cursor, this process's share of the batch).

        Args:
            start_cursor: first batch.
            stop_cursor: end of the range, exclusive.
            depth: batches that are prepared ahead.
        """
        return Prefetcher(
            lambda cursor: self.batch(cursor, self.share(self.num_sequences_at(cursor))),
            start_cursor,
            stop_cursor,
            depth,
        )


def _order(orders: Sequence[IntArray] | None, epoch: int, seed: int, features: Features) -> np.ndarray:
    count, group = len(features), features.group
    if orders is None:
        groups = permutation(count // group, "order of windows", seed, epoch)
        return (groups[:, None] * group + np.arange(group)).reshape(-1).astype(np.int32)
    if epoch >= len(orders):
        raise ValueError(f"orders were given for {len(orders)} epochs, {epoch + 1} are needed")
    order = np.asarray(orders[epoch], np.int32)
    if not np.array_equal(np.sort(order), np.arange(count)):
        raise ValueError(f"the order of epoch {epoch} must hold each of {count} windows once")
    return order


class EvalBatches(Sequence[Batch]):
    """Every window once, those of similar length together; batches are made when they are read.

    All have the shapes [batch_size, seq_len] and [batch_size, max_examples]; the last one is filled up with empty
    sequences.

    Args:
        features, pad_id, vocab_size, seq_len, target_len, packing, share, name: as of `TaskBatches`.
        batch_size: sequences per batch.
        num_lengths: without packing, the number of sequence lengths: `seq_len`, a half, a quarter, ... of it; each is
            one more shape to compile.

    Raises:
        UserError: a window does not fit, or a token id is outside the vocabulary.
    """

    def __init__(
        self,
        features: Features,
        *,
        batch_size: int,
        pad_id: int,
        vocab_size: int,
        seq_len: int | None = None,
        target_len: int | None = None,
        packing: bool = True,
        num_lengths: int = 1,
        share: ProcessShare = all_sequences,
        name: str = "eval",
    ) -> None:
        require_token_ids(features, vocab_size, name)
        self.features, self.batch_size, self.pad_id, self.name = features, batch_size, pad_id, name
        limits = sequence_lengths(features, seq_len, target_len)
        self.seq_len, self._chosen = limits[0], share(batch_size)
        lengths = features.lengths
        self._numbers = np.argsort(-lengths, kind="stable").astype(np.int32)
        if packing:
            packed, num_sequences = _pack_sorted(features.side_lengths[self._numbers], limits)
            order = np.argsort(packed, kind="stable")
            self._numbers, self._sequence_of = self._numbers[order], packed[order]
            self.max_examples = int(np.bincount(packed).max())
        else:
            self._sequence_of, num_sequences, self.max_examples = np.arange(len(lengths)), len(lengths), 1
        self._num_batches = -(-num_sequences // batch_size)
        self._lengths = length_steps(limits, 1 if packing else num_lengths)

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
        begin, end = np.searchsorted(self._sequence_of, [first, first + self.batch_size])
        numbers = self._numbers[begin:end]
        longest = self.features.side_lengths[numbers].max(axis=0)
        seq_len, *target_len = min(lengths for lengths in self._lengths if (lengths >= longest).all())
        size = (self.batch_size, seq_len, self.max_examples)
        sequence_of = self._sequence_of[begin:end] - first
        return make_batch(self.features, numbers, sequence_of, size, self.pad_id, self._chosen, *target_len)

    def __iter__(self) -> Iterator[Batch]:
        return (self[index] for index in range(len(self)))


class InferenceBatches:
    """Every window once, packed into rows of few shapes, for one device; see `pack_rows`.

    Args:
        features, pad_id, vocab_size: as of `TaskBatches`.
        tokens, width, limit, most: as of `pack_rows`.

    Raises:
        UserError: a token id is outside the vocabulary.
    """

    def __init__(
        self,
        features: Features,
        *,
        tokens: int,
        width: int,
        limit: int | None,
        pad_id: int,
        vocab_size: int,
        most: int | None = None,
    ) -> None:
        require_token_ids(features, vocab_size, "in")
        self.features, self._pad_id, self._plan = features, pad_id, (tokens, width, limit, most)

    def __iter__(self) -> Iterator[Batch]:
        for rows in pack_rows(self.features.lengths, *self._plan):
            yield make_batch(self.features, *rows, self._pad_id)


def length_steps(limits: tuple[int, ...], count: int) -> list[tuple[int, ...]]:
    """Returns `count` lengths: the limits, their halves, their quarters, ... rounded up to multiples of 8."""
    halves = [
        tuple(min(limit, -(-limit // 2**power // _LENGTH_MULTIPLE) * _LENGTH_MULTIPLE) for limit in limits)
        for power in range(1, count)
    ]
    return [limits, *halves]


def _pack_sorted(lengths: np.ndarray, limits: tuple[int, ...]) -> tuple[np.ndarray, int]:
    """Packs windows that are sorted by length; returns the sequence of each, and the number of sequences."""
    if len(limits) == 1:
        packed, _, num_sequences = best_fit(np.bincount(lengths[:, 0], minlength=limits[0] + 1), limits[0], limits[0])
        return packed, num_sequences
    groups = -(-len(lengths) // _PACKED_TOGETHER)
    filled = np.zeros((groups * _PACKED_TOGETHER, len(limits)), lengths.dtype)
    filled[: len(lengths)] = lengths
    in_group = pack_batches(filled.reshape(groups, _PACKED_TOGETHER, -1), limits)
    first = ends_of(in_group.max(axis=1) + 1)
    return (in_group + first[:-1, None]).reshape(-1)[: len(lengths)], int(first[-1])


def choose_packed_length(
    features: Features,
    batch_size: int,
    limit: int,
    *,
    length_multiple: int,
    sequence_multiple: int,
    num_batch_shapes: int,
    width: int,
) -> int:
    """Returns the length of packed sequences with the least work per step, at most `limit`; the same for every seed.

    Batches have as many sequences as the fullest one needs: short examples in long sequences leave up to half of the
    last one empty.

    Args:
        features: the windows, without targets.
        batch_size: windows per step.
        limit: the longest sequence.
        length_multiple: sequences are a multiple of this long, but for `limit`.
        sequence_multiple: the number of sequences per batch is a multiple of this.
        num_batch_shapes: number of batch sizes.
        width: hidden size, for the share of attention in the work.
    """
    (longest,) = sequence_lengths(features, None)
    lengths = features.side_lengths[permutation(len(features), "length of sequences", 0, 0)]
    lengths = lengths[: _BATCHES_TO_MEASURE * batch_size]
    steps = -(-len(lengths) // batch_size)
    of_batches = np.zeros((steps, batch_size), np.int32)
    of_batches.reshape(-1)[: len(lengths)] = lengths[:, 0]

    def work(length: int) -> float:
        sequences = pack_batches(of_batches, length).max(axis=1, where=of_batches > 0, initial=0) + 1
        needed = -(-sequences // sequence_multiple) * sequence_multiple
        sizes = np.array(choose_batch_sizes(needed, num_batch_shapes))
        return float(sizes[np.searchsorted(sizes, needed)].sum() * length * (1 + length / (2 * width)))

    shortest = -(-longest // length_multiple) * length_multiple
    return min([limit, *range(shortest, limit, length_multiple)], key=work)


def sequence_lengths(features: Features, seq_len: int | None, target_len: int | None = None) -> tuple[int, ...]:
    """Returns the lengths of sequences, of windows and where there are any of targets.

    Args:
        features: the windows.
        seq_len: tokens of a sequence; None: the longest window, rounded up.
        target_len: the same of targets.

    Raises:
        UserError: a window is longer, or there is none.
    """
    if not len(features):
        raise UserError("the task has no examples left; check its sources")
    keys = (("task.max_length", "a window", seq_len), ("task.seq2seq.max_target_length", "a target", target_len))
    lengths = []
    for (key, what, limit), longest in zip(keys, features.side_lengths.max(axis=0).tolist(), strict=False):
        if limit is not None and longest > limit:
            raise UserError(
                f"{key}: {what} has {longest} tokens, but sequences have {limit}; set it to {limit} or less"
            )
        lengths.append(-(-longest // _LENGTH_MULTIPLE) * _LENGTH_MULTIPLE if limit is None else limit)
    return tuple(lengths)
