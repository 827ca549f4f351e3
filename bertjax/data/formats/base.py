"""What all forms share: the protocol, the row layout [CLS] A [SEP] (B [SEP]), and plans kept for two epochs."""

from __future__ import annotations

import dataclasses
import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Generic, Protocol, TypeVar

import numpy as np

from bertjax.data.corpus import Corpus
from bertjax.data.counter_rng import IntArray

Key = TypeVar("Key")
Value = TypeVar("Value")


class SpecialIds(Protocol):
    """The part of a tokenizer or of `Vocabulary` that rows need."""

    @property
    def pad_id(self) -> int: ...
    @property
    def cls_id(self) -> int: ...
    @property
    def sep_id(self) -> int: ...


@dataclasses.dataclass(frozen=True)
class FormatSettings:
    """`seq_len` tokens of a row, specials included; draws repeat after `dupe_factor` epochs.

    Four matter to rows that go on from batch to batch: rows of a batch, tokens after which XLNet's next
    row begins, whether half of the rows are read backwards, the piece behind every document (-1 = [SEP]).
    `max_examples` is how many a row has room for, E.
    """

    seq_len: int
    seed: int
    pad_id: int
    cls_id: int
    sep_id: int
    short_seq_prob: float
    dupe_factor: int
    sop_drop_single_sentences: bool
    batch_size: int = 1
    reuse_len: int = 0
    bi_data: bool = False
    end_id: int = -1
    max_examples: int = 1


class ExampleFormat(Protocol):
    """A corpus seen as epochs of rows; both methods are pure functions of their arguments."""

    settings: FormatSettings

    def num_sequences(self, epoch: int) -> int:
        """Rows of an epoch; epochs that are equal modulo `dupe_factor` have the same examples in another order."""
        ...

    def sequences(self, epoch: int, indices: IntArray) -> dict[str, np.ndarray]:
        """The rows `indices` of an epoch's order, in the layout of `bertjax.types.Batch`."""
        ...

    def prepare(self, epoch: int) -> None:
        """Begin planning an epoch in the background."""
        ...


class PackableFormat(ExampleFormat, Protocol):
    """A form whose rows can be told apart from their order, and so be packed: one example each, numbered from 0."""

    @property
    def num_draws(self) -> int:
        """After how many epochs the examples come again."""
        ...

    def lengths(self, epoch: int) -> np.ndarray:
        """int [examples]: tokens of every example of an epoch, specials included."""
        ...

    def examples(self, epoch: int, numbers: IntArray, counts: IntArray) -> dict[str, np.ndarray]:
        """Returns sequences of these examples, `counts[b]` of them in sequence b, as `assemble_sequences`."""
        ...


class EpochPlanCache(Generic[Key, Value]):
    """The values of the two keys used last; each is made once, also when several threads want it at a time."""

    SIZE = 2  # the current epoch and the next

    def __init__(self, make: Callable[[Key], Value]) -> None:
        self._make = make
        self._futures: OrderedDict[Key, Future[Value]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Key) -> Value:
        future, is_new = self._claim(key)
        if is_new:
            self._fulfil(key, future)
        return future.result()

    def start(self, key: Key) -> None:
        """Make a value in a background thread, unless it is there or being made."""
        future, is_new = self._claim(key)
        if is_new:
            threading.Thread(target=self._fulfil, args=(key, future), daemon=True, name="epoch plan").start()

    def _claim(self, key: Key) -> tuple[Future[Value], bool]:
        with self._lock:
            future = self._futures.get(key)
            is_new = future is None
            if future is None:
                future = self._futures[key] = Future()
            self._futures.move_to_end(key)
            while len(self._futures) > self.SIZE:
                self._futures.popitem(last=False)
            return future, is_new

    def _fulfil(self, key: Key, future: Future[Value]) -> None:
        try:
            future.set_result(self._make(key))
        except BaseException as error:
            with self._lock:
                if self._futures.get(key) is future:
                    del self._futures[key]  # the next to ask tries again
            future.set_exception(error)


class TokenSource(Protocol):
    """What slices of ids are read from: a corpus, or its documents end to end."""

    def gather(
        self, starts: IntArray, lengths: IntArray, out: np.ndarray, columns: IntArray, rows: IntArray | None = None
    ) -> None:
        """Write slice i into row `rows[i]` (None: row i) of `out` int32 [B, S], from column `columns[i]` on."""
        ...


def assemble_sequences(
    text: TokenSource,
    parts: Sequence[tuple[IntArray, IntArray]],
    settings: FormatSettings,
    identities: np.ndarray,
    epoch: int,
    counts: IntArray | None = None,
) -> dict[str, np.ndarray]:
    """Rows of examples [CLS] part [SEP] part [SEP] ...: `parts` holds the (starts, lengths) of every example's first
    part, then of its second; token types count the parts.

    `counts[r]` examples stand one behind the other in row r (None: one in each), which has room for
    `settings.max_examples` (E); their segment ids count from 1 and their positions from 0. Raises `ValueError` for
    examples that do not fit.
    """
    counts = np.ones(len(identities), np.int64) if counts is None else counts
    rows = np.repeat(np.arange(len(counts)), counts)
    sizes = np.ones(len(identities), np.int64)
    for _, lengths in parts:
        sizes += lengths + 1
    first = _first_columns(sizes, counts, rows)
    size = (len(counts), settings.seq_len)
    input_ids = np.full(size, settings.pad_id, np.int32)
    type_steps = np.zeros((size[0], size[1] + 1), np.int32)
    input_ids[rows, first] = settings.cls_id
    end = first + 1
    for number, (starts, lengths) in enumerate(parts):
        if number:
            type_steps[rows, end] = 1
        text.gather(starts, lengths, input_ids, end, rows)
        end = end + lengths + 1
        if len(end) and end.max() > size[1]:
            raise ValueError(f"a row of {size[1]} tokens was given {end.max()}")
        input_ids[rows, end - 1] = settings.sep_id
    type_steps[rows, end] = 1 - len(parts)
    return {
        "input_ids": input_ids,
        **_places(first, end, rows, size),
        "token_type_ids": np.cumsum(type_steps[:, :-1], axis=1, dtype=np.int32),
        "example_positions": pad_examples(first.astype(np.int32), counts, settings),
        "example_weights": pad_examples(np.ones(len(rows), np.float32), counts, settings),
        "example_ids": pad_examples(identities, counts, settings),
        "example_draws": pad_examples(np.full(len(rows), epoch % settings.dupe_factor, np.uint32), counts, settings),
    }


def pad_examples(values: np.ndarray, counts: IntArray, settings: FormatSettings) -> np.ndarray:
    """[rows, E]: something of every example, row by row; 0 where there is no example."""
    out = np.zeros((len(counts), settings.max_examples), values.dtype)
    out[np.arange(settings.max_examples) < counts[:, None]] = values
    return out


def _first_columns(sizes: IntArray, counts: IntArray, rows: IntArray) -> IntArray:
    """Where the examples of these sizes begin in their rows."""
    before = np.cumsum(sizes) - sizes
    return before - before[(np.cumsum(counts) - counts)[rows]]


def _places(first: IntArray, end: IntArray, rows: IntArray, size: tuple[int, int]) -> dict[str, np.ndarray]:
    """Which example every token belongs to, and its position there; both are 0 on padding."""
    begins, row_end = np.zeros(size, np.int32), np.zeros(size[0], np.int32)
    begins[rows, first] = 1
    np.maximum.at(row_end, rows, end.astype(np.int32))
    columns = np.arange(size[1], dtype=np.int32)
    visible = (columns < row_end[:, None]).astype(np.int32)
    latest = np.maximum.accumulate(begins * columns, axis=1)
    segments = np.cumsum(begins, axis=1, dtype=np.int32)
    return {"segment_ids": segments * visible, "position_ids": (columns - latest) * visible}


def example_ids(corpus: Corpus, starts: IntArray) -> np.ndarray:
    """uint32 [n]: the identity of the examples that begin at these tokens, the same in every epoch.

    Distinct within a corpus of up to 2**32 tokens; shifted by the corpus's digest, so that the sources of a mixture,
    which all begin at token 0, do not share identities.
    """
    shift = int.from_bytes(hashlib.sha256(corpus.digest.encode()).digest()[:4], "little")
    return ((starts + shift) & 0xFFFFFFFF).astype(np.uint32)
