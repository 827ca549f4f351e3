"""Batches as a pure function of (seed, cursor), and the thread that makes them ahead of time."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import NamedTuple

import numpy as np

from bertjax.data.corpus import Corpus
from bertjax.data.counter_rng import IntArray
from bertjax.data.formats import ExampleFormat
from bertjax.data.mixture import EpochStream, Mixture
from bertjax.data.validate_ids import id_limits, require_ids_in_range, require_special_tokens
from bertjax.errors import UserError
from bertjax.types import Batch

SequenceIndex = slice | IntArray
"""Some rows of a batch, in ascending order."""
ALL_SEQUENCES = slice(None)
ProcessShare = Callable[[int], SequenceIndex]
"""Of a global batch of so many rows, those that this process needs."""


def all_sequences(_: int) -> SequenceIndex:
    return ALL_SEQUENCES


class MixtureSource(NamedTuple):
    """One source of a mixture; without weights sources are mixed in proportion to their rows: all have one, or none.

    `corpus` is what the form reads; messages about wrong ids name the document then.
    """

    name: str
    form: ExampleFormat
    weight: float | None = None
    corpus: Corpus | None = None


class Pipeline:
    """The endless sequence of global batches of one or several sources.

    Row r of the stream is row r % batch_size of batch r // batch_size; epochs follow each other without a gap. Any
    batch can be asked for, at any time and by any thread. Raises `UserError` for weights that cannot be mixed, sources
    without rows, and for ids outside a vocabulary of `vocab_size` pieces: special ones at once, others when a batch
    with them is made.
    """

    def __init__(self, sources: Sequence[MixtureSource], *, batch_size: int, seed: int, vocab_size: int) -> None:
        if batch_size < 1:
            raise UserError(f"the batch size must be at least 1, not {batch_size}")
        self.sources = tuple(sources)
        self.batch_size = batch_size
        weights = _weights(self.sources)
        _require_same_rows(self.sources)
        settings = self.sources[0].form.settings
        require_special_tokens(settings, vocab_size)
        self._limits = id_limits(settings, vocab_size)
        self._mixture = Mixture(weights, seed)
        self._epochs = [EpochStream(source.form) for source in self.sources]

    @property
    def rows_per_epoch(self) -> dict[str, int]:
        """Rows of each source's first epoch (redrawn pairs change it by a few in the later ones)."""
        return {source.name: source.form.num_sequences(0) for source in self.sources}

    def epochs_at(self, cursor: int) -> dict[str, float]:
        """How often each source has been passed through before batch `cursor`."""
        used = self._mixture.used(cursor * self.batch_size)
        places = zip(self.sources, self._epochs, used, strict=True)
        return {source.name: epochs.progress(index) for source, epochs, index in places}

    def batch(self, cursor: int, rows: SequenceIndex = ALL_SEQUENCES, first_sequence: int = 0) -> Batch:
        """Batch number `cursor` >= 0 of the stream from `first_sequence` on, or some of its sequences (one host's)."""
        source, index = self._mixture.locate(first_sequence + self._stream_rows(cursor)[rows])
        epoch = np.zeros_like(index)
        for number in np.unique(source):
            here = source == number
            epoch[here], index[here] = self._epochs[number].locate(index[here])
            latest = epoch[here].max()  # a batch may end one epoch and begin the next
            self._plan_ahead(self.sources[number].form, int(latest), int(index[here & (epoch == latest)].max()))
        return self._fetch(source, epoch, index)

    def eval_batches(self, num_batches: int, rows: SequenceIndex = ALL_SEQUENCES) -> Iterator[Batch]:
        """At most `num_batches` batches in which every row of epoch 0 occurs at most once, or some rows of each.

        Shapes are those of training; where the sources have no more rows, empty ones (all padding, weight 0) stand.
        """
        num_sequences = np.array([source.form.num_sequences(0) for source in self.sources])
        shapes = self._fetch(*np.zeros((3, 1), np.int64))  # a share may have no row of its own in the last batch
        for cursor in range(num_batches):
            source, index = self._mixture.locate(self._stream_rows(cursor))
            if not (index < num_sequences[source]).any():
                return
            source, index = source[rows], index[rows]
            first_time = index < num_sequences[source]
            found = self._fetch(source[first_time], np.zeros(first_time.sum(), np.int64), index[first_time])
            batch = {name: np.zeros((len(source), *array.shape[1:]), array.dtype) for name, array in shapes.items()}
            batch["input_ids"][:] = self.sources[0].form.settings.pad_id
            for name, array in found.items():
                batch[name][first_time] = array
            yield batch

    def prefetch(
        self, start_cursor: int, stop_cursor: int, depth: int = 2, rows: SequenceIndex = ALL_SEQUENCES
    ) -> Prefetcher:
        """Iterate over (cursor, batch) for the cursors [start, stop), up to `depth` batches made ahead by a thread."""
        return Prefetcher(lambda cursor: self.batch(cursor, rows), start_cursor, stop_cursor, depth)

    def _stream_rows(self, cursor: int) -> IntArray:
        if cursor < 0:
            raise ValueError(f"a cursor cannot be negative: {cursor}")
        return np.arange(cursor * self.batch_size, (cursor + 1) * self.batch_size)

    def _fetch(self, source: IntArray, epoch: IntArray, index: IntArray) -> dict[str, np.ndarray]:
        """The rows with these sources, epochs and indices, all int64 [n], in this order."""
        batch: dict[str, np.ndarray] = {}
        for number, number_epoch in sorted(set(zip(source.tolist(), epoch.tolist(), strict=True))):
            here = (source == number) & (epoch == number_epoch)
            found = self.sources[number].form.sequences(number_epoch, index[here])
            for name, array in found.items():
                if name not in batch:
                    batch[name] = np.empty((len(source), *array.shape[1:]), array.dtype)
                batch[name][here] = array
        require_ids_in_range(batch, self._limits, self.sources, source)
        return batch

    def _plan_ahead(self, form: ExampleFormat, epoch: int, index: int) -> None:
        if 2 * index > form.num_sequences(epoch):  # earlier it would compete with the start of a run that may be short
            form.prepare(epoch + 1)


class Prefetcher(Iterator[tuple[int, Batch]]):
    """Makes batches in one background thread, in order, at most `depth` ahead; close it, or use it in a `with`.

    An error of the thread is raised where its batch would have come. `waited_seconds` is how long the consumer has
    stood still for want of a batch.
    """

    def __init__(self, make: Callable[[int], Batch], start: int, stop: int, depth: int) -> None:
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
        """Stop the thread after the batch in its hands, and forget what is ready."""
        with self._changed:
            self._is_closed = True
            self._ready.clear()
            self._changed.notify_all()
        self._thread.join(timeout=1.0)  # a whole epoch's plan may be in its hands; being a daemon it holds up nothing

    def __enter__(self) -> Prefetcher:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
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
        except BaseException as error:  # the consumer's to handle, whatever it is
            self._error = error
        finally:
            with self._changed:
                self._is_done = True
                self._changed.notify_all()


def _weights(sources: Sequence[MixtureSource]) -> list[float]:
    """The weights as they are, or rows per epoch where none is given; raises `UserError`."""
    if not sources:
        raise UserError("there is no source to read; name one in data.sources")
    for source in sources:
        if not source.form.num_sequences(0):
            raise UserError(f"source {source.name} has no rows: too little text for rows of this length, or none")
        if source.weight is not None and not (math.isfinite(source.weight) and source.weight > 0):
            raise UserError(f"the weight of source {source.name} must be a positive number, not {source.weight}")
    without = [source.name for source in sources if source.weight is None]
    if without and len(without) < len(sources):
        raise UserError(f"give every source a weight or none: {', '.join(without)} lacks one")
    return [source.form.num_sequences(0) if source.weight is None else source.weight for source in sources]


def _require_same_rows(sources: Sequence[MixtureSource]) -> None:
    first = sources[0].form
    for source in sources[1:]:
        if type(source.form) is not type(first) or source.form.settings.seq_len != first.settings.seq_len:
            raise UserError(f"sources {sources[0].name} and {source.name} must have the same form and row length")
