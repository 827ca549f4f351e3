"""Whether every number of a batch lies where a table has room for it.

JAX does not say so itself: a read outside a table gives its last row, NaN or zeros, as the case may be, and training
goes on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from bertjax.data.corpus import Corpus
from bertjax.data.formats.base import FormatSettings, example_ids
from bertjax.errors import UserError
from bertjax.types import Batch

TOKEN_TYPES = 3  # of `segments`; other forms have fewer


class NamedSource(Protocol):
    """A source as messages tell of it."""

    @property
    def name(self) -> str: ...
    @property
    def corpus(self) -> Corpus | None: ...


def id_limits(settings: FormatSettings, vocab_size: int) -> dict[str, int]:
    """The first number that each field of a batch must not hold; none of them may hold one below 0."""
    return {
        "input_ids": vocab_size,
        "segment_ids": settings.max_examples + 1,
        "position_ids": settings.seq_len,
        "token_type_ids": TOKEN_TYPES,
        "example_positions": settings.seq_len,
        "pair_labels": 2,
    }


def require_special_tokens(settings: FormatSettings, vocab_size: int) -> None:
    """Raises `UserError` when a piece that rows are made with lies outside the vocabulary."""
    for name in ("pad_id", "cls_id", "sep_id", "end_id"):
        if (value := getattr(settings, name)) >= vocab_size:
            raise UserError(
                f"the tokenizer's {name} is {value}, but the vocabulary has only {vocab_size} pieces; take tokenizer "
                "and vocabulary of one model"
            )


def require_ids_in_range(
    batch: Batch, limits: Mapping[str, int], sources: Sequence[NamedSource], of_row: np.ndarray
) -> None:
    """Raises `UserError` naming the number, its example and its document; `of_row` int [B] is the source of each row.

    One pass over each field, nothing allocated, where all is well.
    """
    for name, limit in limits.items():
        # Without a sign, negative numbers are huge.
        if name in batch and batch[name].size and batch[name].view(np.uint32).max() >= limit:
            raise _fault(batch, name, limit, sources, of_row)


def _fault(batch: Batch, name: str, limit: int, sources: Sequence[NamedSource], of_row: np.ndarray) -> UserError:
    array = batch[name]
    row, column = (int(each[0]) for each in np.nonzero((array < 0) | (array >= limit)))
    value, source = int(array[row, column]), sources[of_row[row]]
    example = int(batch["example_ids"][row, _example(batch, name, row, column)])
    if name != "input_ids":
        return UserError(
            f"source {source.name}: {name} holds {value} (example {example}), outside 0 to {limit - 1}"
            f"{_beginning(source.corpus, example)}; please report it: the text is not at fault"
        )
    return UserError(
        f"source {source.name} holds token id {value} (example {example}), but the vocabulary has {limit} pieces, ids "
        f"0 to {limit - 1}{_holding(source.corpus, value)}; prepare the corpus with the tokenizer of this model"
    )


def _example(batch: Batch, name: str, row: int, column: int) -> int:
    """Which example of its row a place belongs to; padding is taken for a part of the first."""
    if batch[name].shape != batch["segment_ids"].shape:
        return column
    most = batch["example_ids"].shape[1]
    return min(max(int(batch["segment_ids"][row, column]), 1), most) - 1


def _holding(corpus: Corpus | None, value: int) -> str:
    """Where the corpus holds an id, in words. Reads it from its beginning, once, in a run that ends."""
    if corpus is None or (place := corpus.find(value)) is None:
        return ""
    document = int(np.searchsorted(corpus.document_tokens, place, side="right")) - 1
    token = place - int(corpus.document_tokens[document])
    return f"; token {token + 1:,} of document {document + 1:,} of {corpus.folder or 'the corpus'}"


def _beginning(corpus: Corpus | None, example: int) -> str:
    """In which document an example begins, in words."""
    if corpus is None:
        return ""
    first = int(example_ids(corpus, np.zeros(1, np.int64))[0])  # the identity of one that begins with the corpus
    begin = (example - first) & 0xFFFFFFFF
    document = int(np.searchsorted(corpus.document_tokens, begin, side="right"))
    return f"; it begins in document {document:,} of {corpus.folder or 'the corpus'}"
