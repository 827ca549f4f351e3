"""Checks of the integers of a batch: their range, and the order of the examples of a sequence.

JAX does not raise for an index outside a table: the result is the last row, NaN or zeros, and training goes on. Nor do
attention kernels notice it if examples, of which they know the offsets, are not contiguous.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from bertjax.data.corpus import Corpus, CorpusSplit
from bertjax.data.formats.base import FormatSettings, example_ids
from bertjax.data.mixture import MixtureSource
from bertjax.errors import UserError
from bertjax.types import Batch

TOKEN_TYPES = 3  # of XLNet's segments; other formats have fewer


def id_limits(settings: FormatSettings, vocab_size: int) -> dict[str, int]:
    """Returns the exclusive upper limit of each integer field of a batch; the lower limit is 0."""
    return {
        "input_ids": vocab_size,
        "segment_ids": settings.max_examples + 1,
        "position_ids": settings.seq_len,
        "token_type_ids": TOKEN_TYPES,
        "example_positions": settings.seq_len,
        "pair_labels": 2,
    }


def require_special_tokens(settings: FormatSettings, vocab_size: int) -> None:
    """Raises `UserError` if a special token that formats insert lies outside the vocabulary."""
    for name in ("pad_id", "cls_id", "sep_id", "end_id"):
        if (value := getattr(settings, name)) >= vocab_size:
            raise UserError(
                f"the tokenizer's {name} is {value}, but the vocabulary has only {vocab_size} tokens; use the "
                "tokenizer and the vocabulary of one model"
            )


def require_ids_in_range(
    batch: Batch, limits: Mapping[str, int], sources: Sequence[MixtureSource], source_of: np.ndarray
) -> None:
    """Checks every integer field in one pass, without allocation, and that examples come in order and padding last.

    Args:
        batch: arrays by name.
        limits: result of `id_limits`.
        sources: the sources of the mixture.
        source_of: int [B], the source of each sequence.

    Raises:
        UserError: a value is out of range; names the value, its example and its document. Or examples are mixed.
    """
    for name, limit in limits.items():
        # As unsigned numbers, negative values are large.
        if name in batch and batch[name].size and batch[name].view(np.uint32).max() >= limit:
            raise _out_of_range(batch, name, limit, sources, source_of)
    if "segment_ids" in batch:
        order = batch["segment_ids"].view(np.uint32) - np.uint32(1)  # of padding the largest
        mixed = np.flatnonzero((order[:, 1:] < order[:, :-1]).any(axis=1))
        if len(mixed):
            raise UserError(
                f"source {sources[source_of[mixed[0]]].name}: segment_ids of a sequence must be those of its examples "
                "in order, each contiguous, and then 0 for padding; this is a mistake of the example format"
            )


def _out_of_range(
    batch: Batch, name: str, limit: int, sources: Sequence[MixtureSource], source_of: np.ndarray
) -> UserError:
    array = batch[name]
    sequence, column = (int(each[0]) for each in np.nonzero((array < 0) | (array >= limit)))
    value, source = int(array[sequence, column]), sources[source_of[sequence]]
    example = int(batch["example_ids"][sequence, _example_at(batch, name, sequence, column)])
    if name != "input_ids":
        return UserError(
            f"source {source.name}: {name} contains {value} (example {example}), outside 0 to {limit - 1}"
            f"{_document_of_example(source.corpus, example)}; please report this bug: the text is not the cause"
        )
    return UserError(
        f"source {source.name} contains token id {value} (example {example}), but the vocabulary has {limit} tokens, "
        f"ids 0 to {limit - 1}{_document_of_token(source.corpus, value)}; prepare the corpus with the tokenizer of "
        "this model"
    )


def _example_at(batch: Batch, name: str, sequence: int, column: int) -> int:
    """Returns the index of the example at a position; padding counts as part of the first."""
    if batch[name].shape != batch["segment_ids"].shape:
        return column
    max_examples = batch["example_ids"].shape[1]
    return min(max(int(batch["segment_ids"][sequence, column]), 1), max_examples) - 1


def _document_of_token(corpus: Corpus | CorpusSplit | None, value: int) -> str:
    """Returns words for the first document with a token id; reads the corpus from the beginning."""
    if corpus is None or (position := corpus.find(value)) is None:
        return ""
    document = int(np.searchsorted(corpus.document_tokens, position, side="right")) - 1
    token = position - int(corpus.document_tokens[document])
    return f"; token {token + 1:,} of document {document + 1:,} of {corpus.folder or 'the corpus'}"


def _document_of_example(corpus: Corpus | CorpusSplit | None, example: int) -> str:
    """Returns words for the document in which an example begins."""
    if corpus is None:
        return ""
    first = int(example_ids(corpus, np.zeros(1, np.int64))[0])  # identity of an example at the first token
    begin = (example - first) & 0xFFFFFFFF
    document = int(np.searchsorted(corpus.document_tokens, begin, side="right"))
    return f"; it begins in document {document:,} of {corpus.folder or 'the corpus'}"
