"""Batches as a pure function of (seed, cursor), also over phases, and a thread that makes them ahead of time."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from bertjax.data.counter_rng import IntArray
from bertjax.data.formats.base import ExampleFormat, merge_sequences
from bertjax.data.mixture import EpochStream, ExactMixture, Mixing, Mixture, MixtureSource, mixture_shares
from bertjax.data.validate_ids import id_limits, require_ids_in_range, require_special_tokens
from bertjax.errors import UserError
from bertjax.types import Batch

SequenceIndex = slice | IntArray
"""Selection of sequences of a batch, in ascending order."""
ALL_SEQUENCES = slice(None)
_SAMPLED = 1000
ProcessShare = Callable[[int], SequenceIndex]
"""Maps a global batch size to the sequences that this process reads."""


def all_sequences(_: int) -> SequenceIndex:
    """Returns the share of a process that reads everything."""
    return ALL_SEQUENCES


class Pipeline:
    """Endless stream of global batches of one or several sources, with random access.

    Sequence i of the stream is in batch i // batch_size, at i % batch_size unless a source has several shards: then the
    sequences of a batch are ordered by shard, so that a process, which reads some rows, reads few shards. Epochs follow
    each other without a gap. Any batch can be read at any time and by any thread.
    """

    def __init__(
        self,
        sources: Sequence[MixtureSource],
        *,
        batch_size: int,
        seed: int,
        vocab_size: int,
        mixing: Mixing | None = None,
    ) -> None:
        """Checks the sources.

        Args:
            sources: what is mixed; all or none have a weight.
            batch_size: sequences per global batch.
            seed: seed of the order of sources.
            vocab_size: number of token ids; special ids are checked now, others when a batch is made.
            mixing: shares that are not the weights or sizes, in an even order; None: these, shuffled.

        Raises:
            UserError: the weights cannot be mixed, a source is empty, or an id lies outside the vocabulary.
        """
        if batch_size < 1:
            raise UserError(f"the batch size must be at least 1, not {batch_size}")
        self.sources = tuple(sources)
        self.batch_size = batch_size
        weights = _weights(self.sources)
        _require_same_format(self.sources)
        settings = self.sources[0].format.settings
        require_special_tokens(settings, vocab_size)
        self._limits = id_limits(settings, vocab_size)
        self._mixture: Mixture | ExactMixture = Mixture(weights, seed)
        if mixing is not None:
            lengths = [source.format.estimated_sequences(0) for source in self.sources]
            tokens = [_mean_tokens(source.format) if mixing.by_tokens else 1.0 for source in self.sources]
            shares = mixture_shares(mixing, [source.weight for source in self.sources], lengths, tokens)
            self._mixture = ExactMixture(shares.tolist())
        self._begins = np.zeros(len(self.sources), np.int64)
        self._epochs = [EpochStream(source.format) for source in self.sources]

    @property
    def sequences_per_epoch(self) -> dict[str, int]:
        """Sequences of the first epoch of each source, of a corpus in many shards by the first ones.

        Redrawn pairs change it slightly in later epochs.
        """
        return {source.name: source.format.estimated_sequences(0) for source in self.sources}

    def continue_at(self, first_sequence: int, used: Mapping[str, int]) -> None:
        """Lets every source continue after the sequences that other mixtures of it have read.

        Args:
            first_sequence: where in the stream batch 0 will begin.
            used: sequences of every source that were read before that.
        """
        before = self._mixture.num_used(first_sequence)
        self._begins = np.array([used.get(source.name, 0) for source in self.sources], np.int64) - before

    def num_used(self, index: int) -> dict[str, int]:
        """Returns the number of sequences of each source before this index of the stream."""
        used = self._begins + self._mixture.num_used(index)
        return {source.name: int(count) for source, count in zip(self.sources, used, strict=True)}

    def batch(self, cursor: int, sequences: SequenceIndex = ALL_SEQUENCES, first_sequence: int = 0) -> Batch:
        """Returns a batch, or some of its sequences.

        Args:
            cursor: number of the batch, >= 0.
            sequences: which sequences of the batch, such as those of one host.
            first_sequence: where in the stream batch 0 begins.

        Raises:
            UserError: a token id lies outside the vocabulary.
        """
        source, index = self._mixture.locate(first_sequence + self._stream_indices(cursor))
        index += self._begins[source]
        epoch = np.zeros_like(index)
        for number in np.unique(source):
            here = source == number
            epoch[here], index[here] = self._epochs[number].locate(index[here])
            latest = epoch[here].max()  # a batch may end one epoch and begin the next
            self._plan_ahead(self.sources[number].format, int(latest), int(index[here & (epoch == latest)].max()))
        rows = self._order_by_shard(source, epoch, index)[sequences]
        return self._fetch(source[rows], epoch[rows], index[rows])

    def eval_batches(self, num_batches: int, sequences: SequenceIndex = ALL_SEQUENCES) -> Iterator[Batch]:
        """Yields at most `num_batches` batches, or some sequences of each; none of epoch 0 occurs twice.

        The shapes are those of training; missing sequences at the end are padding with weight 0.
        """
        num_sequences = np.array([source.format.num_sequences(0) for source in self.sources])
        shapes = self._fetch(*np.zeros((3, 1), np.int64))  # a share may have no sequence in the last batch
        for cursor in range(num_batches):
            source, index = self._mixture.locate(self._stream_indices(cursor))
            if not (index < num_sequences[source]).any():
                return
            source, index = source[sequences], index[sequences]
            first_time = index < num_sequences[source]
            filled = self._fetch(source[first_time], np.zeros(first_time.sum(), np.int64), index[first_time])
            batch = {name: np.zeros((len(source), *array.shape[1:]), array.dtype) for name, array in shapes.items()}
            batch["input_ids"][:] = self.sources[0].format.settings.pad_id
            for name, array in filled.items():
                batch[name][first_time] = array
            yield batch

    def _stream_indices(self, cursor: int) -> IntArray:
        if cursor < 0:
            raise ValueError(f"a cursor cannot be negative: {cursor}")
        return np.arange(cursor * self.batch_size, (cursor + 1) * self.batch_size)

    def _fetch(self, source: IntArray, epoch: IntArray, index: IntArray) -> dict[str, np.ndarray]:
        """Returns the sequences with these sources, epochs and indices, all int64 [n], in this order."""
        keys = sorted(set(zip(source.tolist(), epoch.tolist(), strict=True)))
        chosen = (((source == number) & (epoch == each), number, each) for number, each in keys)
        parts = ((here, self.sources[number].format.sequences(each, index[here])) for here, number, each in chosen)
        batch = merge_sequences(parts, len(source))
        require_ids_in_range(batch, self._limits, self.sources, source)
        return batch

    def _order_by_shard(self, source: IntArray, epoch: IntArray, index: IntArray) -> IntArray:
        """Returns the order of the sequences of a batch: by shard, sources in one shard at regular distances."""
        rank = np.arange(len(source)) / len(source)
        for number, each in set(zip(source.tolist(), epoch.tolist(), strict=True)):
            here = (source == number) & (epoch == each)
            if (positions := self.sources[number].format.shard_positions(each, index[here])) is not None:
                rank[here] = positions
        return np.argsort(rank, kind="stable")

    def _plan_ahead(self, example_format: ExampleFormat, epoch: int, index: int) -> None:
        if 2 * index > example_format.estimated_sequences(epoch):  # earlier it would slow down the start of a short run
            example_format.plan_ahead(epoch + 1)


class Prefetcher(Iterator[tuple[int, Batch]]):
    """Makes batches in a background thread, in order; close it, or use it in a `with` block.

    An error of the thread is raised in place of its batch. `waited_seconds` is the time for which the consumer waited.
    """

    def __init__(self, make: Callable[[int], Batch], start: int, stop: int, depth: int = 2) -> None:
        """Starts the thread.

        Args:
            make: returns the batch of a cursor.
            start, stop: range of cursors.
            depth: most batches that are ready at a time.
        """
        if depth < 1:
            raise ValueError(f"depth must be at least 1, not {depth}")
        self.waited_seconds = 0.0
        self._make, self._cursors, self._depth = make, range(start, stop), depth
        self._ready: deque[tuple[int, Batch]] = deque()
        self._error: BaseException | None = None
        self._is_done = self._is_closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, daemon=True, name="prefetch")
        self._thread.start()

    def __iter__(self) -> Prefetcher:
        return self

    def __next__(self) -> tuple[int, Batch]:
        began = time.perf_counter()
        with self._changed:
            self._changed.wait_for(lambda: self._ready or self._is_done or self._is_closed)
            self.waited_seconds += time.perf_counter() - began
            if self._ready and not self._is_closed:
                self._changed.notify_all()
                return self._ready.popleft()
            if self._error is not None and not self._is_closed:
                raise self._error
            raise StopIteration

    def close(self) -> None:
        """Stops the thread after its current batch, and drops the batches that are ready."""
        with self._changed:
            self._is_closed = True
            self._ready.clear()
            self._changed.notify_all()
        self._thread.join(timeout=1.0)  # it may be planning a whole epoch; a daemon thread does not delay the exit

    def __enter__(self) -> Prefetcher:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self) -> None:
        try:
            for cursor in self._cursors:
                with self._changed:
                    self._changed.wait_for(lambda: self._is_closed or len(self._ready) < self._depth)
                    if self._is_closed:
                        return
                batch = self._make(cursor)
                with self._changed:
                    if self._is_closed:
                        return
                    self._ready.append((cursor, batch))
                    self._changed.notify_all()
        except BaseException as error:  # raised in the consumer's thread, whatever it is
            self._error = error
        finally:
            with self._changed:
                self._is_done = True
                self._changed.notify_all()


def _weights(sources: Sequence[MixtureSource]) -> list[float]:
    """Returns the weights, or sequences per epoch where there are none; raises `UserError`."""
    if not sources:
        raise UserError("data.sources is empty; name at least one source")
    for source in sources:
        if not source.format.has_sequence(0, 0):
            raise UserError(f"source {source.name} has no sequences: too little text for sequences of this length")
        if source.weight is not None and not (math.isfinite(source.weight) and source.weight > 0):
            raise UserError(f"the weight of source {source.name} must be a positive number, not {source.weight}")
    without = [source.name for source in sources if source.weight is None]
    if without and len(without) < len(sources):
        raise UserError(f"give every source a weight or none: {', '.join(without)} lacks one")
    return [source.format.estimated_sequences(0) if source.weight is None else source.weight for source in sources]


def _mean_tokens(example_format: ExampleFormat) -> float:
    """Returns the mean number of tokens of a sequence, estimated from at most a thousand of the first epoch."""
    count = example_format.estimated_sequences(0)
    chosen = np.unique(np.linspace(0, count - 1, _SAMPLED, dtype=np.int64))
    return np.count_nonzero(example_format.sequences(0, chosen)["segment_ids"]) / len(chosen)


def _require_same_format(sources: Sequence[MixtureSource]) -> None:
    first = sources[0].format
    for source in sources[1:]:
        if source.format.kind is not first.kind or source.format.settings.seq_len != first.settings.seq_len:
            raise UserError(f"sources {sources[0].name} and {source.name} must have the same format and seq_len")


class PhaseBatches(NamedTuple):
    """Batches from cursor `start` on: the stream of `pipeline` from `first_sequence` on."""

    start: int
    first_sequence: int
    pipeline: Pipeline


class PhasedPipeline:
    """One stream of batches over several phases, with random access.

    Args:
        phases: phases by increasing `start`; the first starts at 0.
        share: which sequences of the global batches this process prefetches.
    """

    def __init__(self, phases: Sequence[PhaseBatches], share: ProcessShare = all_sequences) -> None:
        self.phases, self.share = tuple(phases), share

    @property
    def sequences_per_epoch(self) -> dict[str, int]:
        """Sequences of the first epoch of each source, in the last phase that reads it."""
        return {name: count for phase in self.phases for name, count in phase.pipeline.sequences_per_epoch.items()}

    def mixture_lines(self, num_steps: int) -> list[str]:
        """Returns a line with share and epochs of every source over a run, none for a single source."""
        sequences: dict[str, int] = {}
        epochs: dict[str, float] = {}
        stops = [*(phase.start for phase in self.phases[1:]), num_steps]
        for phase, stop in zip(self.phases, stops, strict=True):
            end = phase.first_sequence + (stop - phase.start) * phase.pipeline.batch_size
            before, after = phase.pipeline.num_used(phase.first_sequence), phase.pipeline.num_used(end)
            for name, length in phase.pipeline.sequences_per_epoch.items():
                count = after[name] - before[name]
                sequences[name] = sequences.get(name, 0) + count
                epochs[name] = epochs.get(name, 0.0) + count / length
        total = max(sum(sequences.values()), 1)
        lines = [
            f"{name}: {sequences[name] / total:.2%} of the sequences, {epochs[name]:.3g} epochs" for name in epochs
        ]
        return lines if len(lines) > 1 else []

    def batch(self, cursor: int, sequences: SequenceIndex = ALL_SEQUENCES) -> Batch:
        """Returns batch number `cursor` >= 0, or some of its sequences."""
        phase = self._phase_at(cursor)
        return phase.pipeline.batch(cursor - phase.start, sequences, phase.first_sequence)

    def prefetch(self, start_cursor: int, stop_cursor: int) -> Prefetcher:
        """Returns an iterator over (cursor, this process's share of the batch) for the cursors [start, stop)."""

        def local_batch(cursor: int) -> Batch:
            return self.batch(cursor, self.share(self._phase_at(cursor).pipeline.batch_size))

        return Prefetcher(local_batch, start_cursor, stop_cursor)

    def _phase_at(self, cursor: int) -> PhaseBatches:
        return next(phase for phase in reversed(self.phases) if phase.start <= cursor)
