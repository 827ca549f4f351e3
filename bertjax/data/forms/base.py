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
from bertjax.data.draws import IntArray

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
class FormSettings:
    """`seq_len` tokens of a row, specials included; draws repeat after `dupe_factor` epochs.

    The last four matter to rows that go on from batch to batch: rows of a batch, tokens after which XLNet's next row
    begins, whether half of the rows are read backwards, the piece behind every document (-1 = [SEP]).
    """

    seq_len: int
    seed: int
    pad_id: int
    cls_id: int
    sep_id: int
    short_seq_prob: float
    dupe_factor: int
    sop_strict: bool
    batch_size: int = 1
    reuse_len: int = 0
    bi_data: bool = False
    end_id: int = -1


class Form(Protocol):
    """A corpus seen as epochs of rows; both methods are pure functions of their arguments."""

    settings: FormSettings

    def num_rows(self, epoch: int) -> int:
        """Rows of an epoch; epochs that are equal modulo `dupe_factor` have the same rows in another order."""
        ...

    def rows(self, epoch: int, indices: IntArray) -> dict[str, np.ndarray]:
        """The rows `indices` of an epoch's order, in the layout of `bertjax.types.Batch`."""
        ...

    def prepare(self, epoch: int) -> None:
        """Begin planning an epoch in the background."""
        ...


class Kept(Generic[Key, Value]):
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


def lay_out(
    corpus: Corpus,
    parts: Sequence[tuple[IntArray, IntArray]],
    settings: FormSettings,
    epoch: int,
) -> dict[str, np.ndarray]:
    """Rows [CLS] part [SEP] part [SEP] ...: `parts` holds the (starts, lengths) of every row's first part, then of
    its second; token types count the parts. The result has one example per row (E = 1).
    """
    num_rows = len(parts[0][0])
    rows, columns = np.arange(num_rows), np.arange(settings.seq_len)
    input_ids = np.full((num_rows, settings.seq_len), settings.pad_id, np.int32)
    token_type_ids = np.zeros_like(input_ids)
    input_ids[:, 0] = settings.cls_id
    end = np.ones(num_rows, np.int64)
    for starts, lengths in parts:
        corpus.gather(starts, lengths, input_ids, end)
        if parts[0][0] is not starts:
            token_type_ids += columns >= end[:, None]
        end = end + lengths + 1
        input_ids[rows, end - 1] = settings.sep_id
    visible = (columns < end[:, None]).astype(np.int32)
    one = (num_rows, 1)
    return {
        "input_ids": input_ids,
        "segment_ids": visible,
        "position_ids": visible * columns.astype(np.int32),
        "token_type_ids": token_type_ids * visible,
        "example_positions": np.zeros(one, np.int32),
        "example_weights": np.ones(one, np.float32),
        "example_ids": example_ids(corpus, parts[0][0])[:, None],
        "example_draws": np.full(one, epoch % settings.dupe_factor, np.uint32),
    }


def example_ids(corpus: Corpus, starts: IntArray) -> np.ndarray:
    """uint32 [n]: the identity of the examples that begin at these tokens, the same in every epoch.

    Distinct within a corpus of up to 2**32 tokens; shifted by the corpus's digest, so that the sources of a mixture,
    which all begin at token 0, do not share identities.
    """
    shift = int.from_bytes(hashlib.sha256(corpus.digest.encode()).digest()[:4], "little")
    return ((starts + shift) & 0xFFFFFFFF).astype(np.uint32)
