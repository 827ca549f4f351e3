"""Texts as a model reads them, and batches of them: alike in length, of few static shapes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from bertjax.errors import UserError
from bertjax.hf.inputs import max_input_length
from bertjax.hf.pretrained import PretrainedModel
from bertjax.inference.mlm_inference import TokenBatch

_MANY = 2**24
_AT_ONCE = 4096  # texts: what the tokenizer tells of each weighs many times its ids
# Row lengths that are compiled: 16, 24, 32, 48, 64, ...: at most a third of a row is padding, a sixth on average.
_LENGTHS = np.sort([factor * 2**power for factor in (16, 24) for power in range(20)])


class EncodingTokenizer(Protocol):
    """What is asked of a tokenizer: the `tokenizers.Tokenizer` that adds its special pieces, and two of their ids."""

    cls_id: int
    mask_id: int

    @property
    def engine(self) -> Any: ...


@dataclasses.dataclass(frozen=True, eq=False)
class TokenizedTexts:
    """n texts with their special pieces, end to end: text i has the tokens `offsets[i]` to `offsets[i + 1]`.

    ids, types  int32 [total]
    words       int32 [total]: of which word of its text a token is, as the tokenizer splits words; -1 for the special
                pieces that it has added
    offsets     int64 [n + 1]
    cut         how many texts were longer than they may be
    """

    ids: np.ndarray
    types: np.ndarray
    words: np.ndarray
    offsets: np.ndarray
    cut: int = 0

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> np.ndarray:
        return np.diff(self.offsets)

    def padded(self, values: np.ndarray, members: np.ndarray, length: int, padding: int) -> np.ndarray:
        """int32 [len(members), length]: one of the arrays of these texts, padded behind."""
        if not len(values):
            return np.full((len(members), length), padding, np.int32)
        places = np.arange(length)
        inside = places < self.lengths[members][:, None]
        flat = np.where(inside, self.offsets[members][:, None] + places, 0)
        return np.where(inside, values[flat], np.int32(padding))

    def rows(self, members: np.ndarray, length: int, pad_id: int) -> TokenBatch:
        """These texts as the input of a model."""
        real = np.arange(length) < self.lengths[members][:, None]
        ids, types = self.padded(self.ids, members, length, pad_id), self.padded(self.types, members, length, 0)
        return TokenBatch(ids, real.astype(np.int32), types)


class TextEncoder:
    """Tokenises texts, on all cores, cut to `max_length` tokens with their special pieces (None: never cut).

    Like `transformers`, it takes "[SEP]" in a text for the special piece. Raises `UserError` where only special pieces
    would be left.
    """

    def __init__(self, tokenizer: EncodingTokenizer, max_length: int | None = None) -> None:
        self._engine = tokenizer.engine
        if max_length is None:
            return
        added = self._engine.num_special_tokens_to_add(False)
        if max_length <= added:
            raise UserError(f"max-length {max_length} leaves no room for text beside {added} special pieces")
        self._engine = type(self._engine).from_str(self._engine.to_str())  # a copy: the setting would stay
        self._engine.enable_truncation(max_length)

    def __call__(self, texts: Sequence[str]) -> TokenizedTexts:
        parts = [self._read(texts[start : start + _AT_ONCE]) for start in range(0, len(texts), _AT_ONCE)]
        return TokenizedTexts(
            ids=_joined([part.ids for part in parts]),
            types=_joined([part.types for part in parts]),
            words=_joined([part.words for part in parts]),
            offsets=np.cumsum(np.concatenate([np.zeros(1, np.int64), *(part.lengths for part in parts)])),
            cut=sum(part.cut for part in parts),
        )

    def _read(self, texts: Sequence[str]) -> TokenizedTexts:
        found = self._engine.encode_batch(list(texts))
        words = [[-1 if word is None else word for word in each.word_ids] for each in found]
        added = _joined([each.special_tokens_mask for each in found]) > 0
        return TokenizedTexts(
            ids=_joined([each.ids for each in found]),
            types=_joined([each.type_ids for each in found]),
            words=np.where(added, np.int32(-1), _joined(words)),
            offsets=np.cumsum([0, *map(len, found)], dtype=np.int64),
            cut=sum(bool(each.overflowing) for each in found),
        )


def _joined(lists: Sequence[Sequence[int] | np.ndarray]) -> np.ndarray:
    return np.concatenate([np.zeros(0, np.int32), *(np.asarray(each, np.int32) for each in lists)])


def require_max_length(model: PretrainedModel, texts: TokenizedTexts, given: Sequence[str]) -> None:
    """Raises `UserError` for a text that is longer than the model reads."""
    longest = max_input_length(model.config, model.heads)
    over = np.flatnonzero(texts.lengths > (_MANY if longest is None else longest))
    if len(over):
        raise UserError(
            f"a text of {texts.lengths[over[0]]:,} tokens is longer than the {longest} that the model reads: "
            f"{given[over[0]][:60]!r}..."
        )


class TextBatch(NamedTuple):
    """Texts that go together, padded to `length`; behind the first `real` the last one comes again, for the shape."""

    members: np.ndarray
    length: int
    real: int


def batch_by_length(
    lengths: np.ndarray, longest: int | None, tokens: int, most_rows: int | None = None
) -> Iterator[TextBatch]:
    """Batches of at most `tokens` tokens, padding included, or of one text; longest first, so that memory fails early.

    Rows are padded to one of few lengths, at most `longest`, and their number is a power of two.
    """
    padded = np.minimum(_LENGTHS[np.searchsorted(_LENGTHS, lengths)], _MANY if longest is None else longest)
    order = np.argsort(-lengths, kind="stable")
    for length in np.unique(padded)[::-1].tolist():
        members = order[padded[order] == length]
        most = _power_below(min(max(1, tokens // length), most_rows or _MANY))
        for start in range(0, len(members), most):
            part = members[start : start + most]
            rows = 1 << (len(part) - 1).bit_length()
            yield TextBatch(np.pad(part, (0, rows - len(part)), mode="edge"), length, len(part))


def _power_below(number: int) -> int:
    return 1 << (max(1, number).bit_length() - 1)
