"""Shared parts of the example formats: the protocol, the layout [CLS] A [SEP] (B [SEP]), and cached epoch plans."""

from __future__ import annotations

import abc
import dataclasses
import hashlib
import inspect
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import Generic, Protocol, TypeVar

import numpy as np

from bertjax.data.corpus import Corpus, CorpusSplit
from bertjax.data.counter_rng import FloatArray, IntArray

Key = TypeVar("Key")
Value = TypeVar("Value")


@dataclasses.dataclass(frozen=True)
class FormatSettings:
    """Settings of all formats.

    Attributes:
        seq_len: tokens per sequence (S), special tokens included.
        seed: seed of the random choices and of the order.
        pad_id, cls_id, sep_id: special token ids.
        short_seq_prob: probability of a shorter pair.
        dupe_factor: epochs after which random choices repeat.
        sop_drop_single_sentences: leave out pairs that would be made of a single sentence.
        batch_size: sequences per batch, for streams that continue from batch to batch.
        reuse_len: tokens after which the next sequence of XLNet begins.
        bi_data: half of the streams are read backwards.
        end_id: token after every document of a stream; -1 stands for [SEP].
        max_examples: most examples per sequence (E).
    """

    seq_len: int
    seed: int
    pad_id: int
    cls_id: int
    sep_id: int
    short_seq_prob: float = 0.1
    dupe_factor: int = 1
    sop_drop_single_sentences: bool = False
    batch_size: int = 1
    reuse_len: int = 0
    bi_data: bool = False
    end_id: int = -1
    max_examples: int = 1


class ExampleFormat(abc.ABC):
    """Corpus seen as epochs of sequences; the methods are pure functions of their arguments."""

    settings: FormatSettings

    @abc.abstractmethod
    def num_sequences(self, epoch: int) -> int:
        """Returns the sequences of an epoch; epochs equal modulo `period` have the same, in another order."""

    @abc.abstractmethod
    def sequences(self, epoch: int, indices: IntArray) -> dict[str, np.ndarray]:
        """Returns the sequences `indices` int64 [n] of an epoch, in the layout of `bertjax.types.Batch`."""

    def plan_ahead(self, epoch: int) -> None:
        """Starts planning an epoch in the background, where there is something to plan."""
        return

    @property
    def period(self) -> int:
        """Epochs after which the same examples occur again."""
        return self.settings.dupe_factor

    @property
    def kind(self) -> type:
        """Class that sources of one mixture must share."""
        return type(self)

    def has_sequence(self, epoch: int, index: int) -> bool:
        """Returns whether an epoch has more than `index` sequences."""
        return index < self.num_sequences(epoch)

    def estimated_sequences(self, epoch: int) -> int:
        """Returns the sequences of an epoch; of a corpus in many shards, estimated from the first ones."""
        return self.num_sequences(epoch)

    def first_part(self) -> ExampleFormat:
        """Returns the format of a part of the text that is cheap to open: of the first shards of a corpus in many."""
        return self

    def shard_positions(self, epoch: int, indices: IntArray) -> FloatArray | None:
        """Returns for each sequence the position of its shard among those read together, in [0, 1); None for one."""
        return None


class PackableFormat(ExampleFormat):
    """Format with one example per sequence, numbered from 0."""

    @abc.abstractmethod
    def lengths(self, epoch: int) -> np.ndarray:
        """Returns the tokens of every example of an epoch, int [examples], special tokens included."""

    @abc.abstractmethod
    def examples(self, epoch: int, numbers: IntArray, counts: IntArray) -> dict[str, np.ndarray]:
        """Returns sequences of several examples: the arrays of `Batch`, [B, S] and [B, E].

        Args:
            epoch: Epoch of the examples.
            numbers: Examples, in order [sum of counts].
            counts: Number of examples per sequence [B].
        """


class EpochPlanCache(Generic[Key, Value]):
    """Values of the keys used last; each is made once, even if several threads request it at a time.

    Args:
        make: Makes the value of a key. A method is referenced weakly: without a cycle its owner
            is freed as soon as nobody uses it.
        size: Number of values; 2 are the current epoch and the next.
    """

    def __init__(self, make: Callable[[Key], Value], size: int = 2) -> None:
        self._make = weakref.WeakMethod(make) if inspect.ismethod(make) else lambda: make
        self._size = size
        self._futures: OrderedDict[Key, Future[Value]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Key) -> Value:
        """Returns the value of a key, and makes it if needed."""
        future, is_new = self._claim(key)
        if is_new:
            self._fulfill(key, future)
        return future.result()

    def start(self, key: Key) -> None:
        """Makes a value in a background thread, unless it exists or is being made."""
        future, is_new = self._claim(key)
        if is_new:
            threading.Thread(target=self._fulfill, args=(key, future), daemon=True, name="epoch plan").start()

    def _claim(self, key: Key) -> tuple[Future[Value], bool]:
        with self._lock:
            future = self._futures.get(key)
            is_new = future is None
            if future is None:
                future = self._futures[key] = Future()
            self._futures.move_to_end(key)
            while len(self._futures) > self._size:
                self._futures.popitem(last=False)
            return future, is_new

    def _fulfill(self, key: Key, future: Future[Value]) -> None:
        try:
            make = self._make()
            if make is None:
                raise ReferenceError("the owner of this cache is gone")
            future.set_result(make(key))
        except BaseException as error:
            with self._lock:
                if self._futures.get(key) is future:
                    del self._futures[key]  # the next request tries again
            future.set_exception(error)


class TokenSource(Protocol):
    """Text from which slices of ids are copied: a corpus, or its documents end to end."""

    def gather(
        self, starts: IntArray, lengths: IntArray, out: np.ndarray, columns: IntArray, rows: IntArray | None = None
    ) -> None:
        """Copies slices of ids. Args: those of `Corpus.gather`."""


def assemble_sequences(
    text: TokenSource,
    segments: Sequence[tuple[IntArray, IntArray]],
    settings: FormatSettings,
    identities: np.ndarray,
    epoch: int,
    counts: IntArray | None = None,
) -> dict[str, np.ndarray]:
    """Assembles sequences of examples [CLS] segment [SEP] segment [SEP] ...

    Token types number the segments of an example. Segment ids count the examples of a sequence from 1, and positions
    restart with every example.

    Args:
        text: where the tokens are copied from.
        segments: (starts, lengths) int64 [n] of the first segment of every example, then of the second.
        settings: settings of the format.
        identities: uint32 [n], ids of the examples.
        epoch: number of the epoch.
        counts: int64 [B], examples of each sequence; None: one.

    Returns:
        A batch, in the layout of `bertjax.types.Batch`.

    Raises:
        ValueError: the examples of a sequence have more than `seq_len` tokens.
    """
    counts = np.ones(len(identities), np.int64) if counts is None else counts
    rows = np.repeat(np.arange(len(counts)), counts)
    sizes = np.ones(len(identities), np.int64)
    for _, lengths in segments:
        sizes += lengths + 1
    first = _first_columns(sizes, counts, rows)
    shape = (len(counts), settings.seq_len)
    input_ids = np.full(shape, settings.pad_id, np.int32)
    type_steps = np.zeros((shape[0], shape[1] + 1), np.int32)
    input_ids[rows, first] = settings.cls_id
    end = first + 1
    for number, (starts, lengths) in enumerate(segments):
        if number:
            type_steps[rows, end] = 1
        text.gather(starts, lengths, input_ids, end, rows)
        end = end + lengths + 1
        if len(end) and end.max() > shape[1]:
            raise ValueError(f"a sequence of {shape[1]} tokens cannot hold {end.max()}")
        input_ids[rows, end - 1] = settings.sep_id
    type_steps[rows, end] = 1 - len(segments)
    return {
        "input_ids": input_ids,
        **_segments_and_positions(first, end, rows, shape),
        "token_type_ids": np.cumsum(type_steps[:, :-1], axis=1, dtype=np.int32),
        "example_positions": pad_examples(first.astype(np.int32), counts, settings),
        "example_weights": pad_examples(np.ones(len(rows), np.float32), counts, settings),
        "example_ids": pad_examples(identities, counts, settings),
        "example_epochs": pad_examples(np.full(len(rows), epoch, np.uint32), counts, settings),
        "example_draws": pad_examples(np.full(len(rows), epoch % settings.dupe_factor, np.uint32), counts, settings),
    }


def pad_examples(values: np.ndarray, counts: IntArray, settings: FormatSettings) -> np.ndarray:
    """Arranges values of examples [n] by sequence.

    Args:
        values: [n], one value per example.
        counts: int64 [B], examples of each sequence.
        settings: settings of the format; `max_examples` is E.

    Returns:
        [B, E], 0 where there is no example.
    """
    out = np.zeros((len(counts), settings.max_examples), values.dtype)
    out[np.arange(settings.max_examples) < counts[:, None]] = values
    return out


def _first_columns(sizes: IntArray, counts: IntArray, rows: IntArray) -> IntArray:
    """Returns the column at which each example of these sizes begins."""
    before = np.cumsum(sizes) - sizes
    return before - before[(np.cumsum(counts) - counts)[rows]]


def _segments_and_positions(
    first: IntArray, end: IntArray, rows: IntArray, shape: tuple[int, int]
) -> dict[str, np.ndarray]:
    """Returns the example number and the position of every token; both are 0 on padding."""
    begins, last = np.zeros(shape, np.int32), np.zeros(shape[0], np.int32)
    begins[rows, first] = 1
    np.maximum.at(last, rows, end.astype(np.int32))
    columns = np.arange(shape[1], dtype=np.int32)
    is_token = (columns < last[:, None]).astype(np.int32)
    latest = np.maximum.accumulate(begins * columns, axis=1)
    segments = np.cumsum(begins, axis=1, dtype=np.int32)
    return {"segment_ids": segments * is_token, "position_ids": (columns - latest) * is_token}


def merge_sequences(parts: Iterable[tuple[np.ndarray, dict[str, np.ndarray]]], count: int) -> dict[str, np.ndarray]:
    """Returns `count` sequences from parts, each with the bool [count] that says which of them it holds, in order."""
    merged: dict[str, np.ndarray] = {}
    for chosen, part in parts:
        for name, array in part.items():
            if name not in merged:
                merged[name] = np.empty((count, *array.shape[1:]), array.dtype)
            merged[name][chosen] = array
    return merged


def example_ids(corpus: Corpus | CorpusSplit, starts: IntArray) -> np.ndarray:
    """Returns the ids uint32 [n] of the examples that begin at these tokens, the same in every epoch.

    They are distinct within a corpus of up to 2**32 tokens, and shifted by the digest of the corpus, so that the
    sources of a mixture, which all begin at token 0, have different ids.
    """
    shift = int.from_bytes(hashlib.sha256(corpus.digest.encode()).digest()[:4], "little")
    return ((starts + (corpus.first_token + shift)) & 0xFFFFFFFF).astype(np.uint32)
