"""Tokenized texts, and batches of texts of similar length in few static shapes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
from tokenizers import normalizers

from bertjax.data.tokenizer import Tokenizer
from bertjax.errors import UserError
from bertjax.hf.pretrained import PretrainedModel
from bertjax.inference.mlm_inference import TokenBatch
from bertjax.tasks.batch_layout import next_power_of_two

TOKENS_PER_BATCH = 8192
"""Token slots of a batch, padding included."""
_UNBOUNDED = 2**24
_TEXTS_PER_CALL = 4096  # the encodings of the library take many times the memory of the ids
# Lengths that are compiled: 16, 24, 32, 48, 64, ...: at most a third of a sequence is padding, a sixth on average.
_LENGTHS = np.sort([factor * 2**power for factor in (16, 24) for power in range(20)])


@dataclasses.dataclass(frozen=True, eq=False)
class TokenizedTexts:
    """n texts with their special tokens, end to end; text i has the tokens `offsets[i]` to `offsets[i + 1]`.

    Attributes:
        ids: int32 [total].
        types: Token types, int32 [total].
        words: int32 [total], index of the word in its text, as the tokenizer splits words; -1 for special tokens, added
            or written in the text.
        offsets: int64 [n + 1].
        num_truncated: Number of texts that were truncated.
    """

    ids: np.ndarray
    types: np.ndarray
    words: np.ndarray
    offsets: np.ndarray
    num_truncated: int = 0

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> np.ndarray:
        """Number of tokens of each text, int64 [n]."""
        return np.diff(self.offsets)

    def padded(self, values: np.ndarray, members: np.ndarray, length: int, fill: int) -> np.ndarray:
        """Pads the values of some texts.

        Args:
            values: one of the arrays [total].
            members: indices of B texts.
            length: length S of the result.
            fill: value of padding, which follows the tokens.

        Returns:
            int32 [B, S].
        """
        if not len(values):
            return np.full((len(members), length), fill, np.int32)
        positions = np.arange(length)
        inside = positions < self.lengths[members][:, None]
        index = np.where(inside, self.offsets[members][:, None] + positions, 0)
        return np.where(inside, values[index], np.int32(fill))

    def token_batch(self, members: np.ndarray, length: int, pad_id: int) -> TokenBatch:
        """Returns some texts as the input of a model [B, S].

        Args:
            members: indices of the texts [B].
            length: length S to which they are padded.
            pad_id: id of padding.
        """
        is_token = np.arange(length) < self.lengths[members][:, None]
        ids, types = self.padded(self.ids, members, length, pad_id), self.padded(self.types, members, length, 0)
        return TokenBatch(ids, is_token.astype(np.int32), types)


class TextEncoder:
    """Tokenizes texts on all cores; like `transformers`, it reads "[SEP]" in a text as the special token.

    Args:
        tokenizer: the tokenizer.
        max_length: texts are truncated to this many tokens, special ones included; None: never.
        lowercase: read texts in lower case before all other rules.

    Raises:
        UserError: `max_length` leaves no tokens for text.
    """

    def __init__(self, tokenizer: Tokenizer, max_length: int | None = None, lowercase: bool = False) -> None:
        self._engine = tokenizer.engine
        self._special_ids = np.array([index for index in tokenizer.special_ids if index != tokenizer.unk_id], np.int32)
        self._unknown = tokenizer.tokens[tokenizer.unk_id] if tokenizer.unk_id >= 0 else None
        if max_length is None:
            return
        added = self._engine.num_special_tokens_to_add(False)
        if max_length <= added:
            raise UserError(f"max-length {max_length} leaves nothing for text in addition to {added} special tokens")
        self._engine = type(self._engine).from_str(self._engine.to_str())  # a copy, because the setting would persist
        self._engine.enable_truncation(max_length, direction=tokenizer.spec.truncation_side)
        if lowercase:
            self._engine.normalizer = _with_lowercase(self._engine.normalizer)

    def __call__(self, texts: Sequence[str]) -> TokenizedTexts:
        """Returns the tokens of texts."""
        parts = [
            self._encode(texts[start : start + _TEXTS_PER_CALL]) for start in range(0, len(texts), _TEXTS_PER_CALL)
        ]
        return TokenizedTexts(
            ids=_concatenate([part.ids for part in parts]),
            types=_concatenate([part.types for part in parts]),
            words=_concatenate([part.words for part in parts]),
            offsets=np.cumsum(np.concatenate([np.zeros(1, np.int64), *(part.lengths for part in parts)])),
            num_truncated=sum(part.num_truncated for part in parts),
        )

    def prompt_length(self, prompt: str) -> int:
        """Returns the number of tokens before a text after a prompt, as sentence-transformers counts them."""
        ids = self._engine.encode(prompt).ids
        special = {index for index, token in self._engine.get_added_tokens_decoder().items() if token.special}
        return len(ids) - (ids[-1:] != [] and ids[-1] in special)

    def _encode(self, texts: Sequence[str]) -> TokenizedTexts:
        encodings = self._engine.encode_batch(list(texts))
        words = [[-1 if word is None else word for word in each.word_ids] for each in encodings]
        ids = _concatenate([each.ids for each in encodings])
        is_added = _concatenate([each.special_tokens_mask for each in encodings]) > 0
        unknown = [self._is_unknown(text, each) for text, each in zip(texts, encodings, strict=True)]
        is_unknown = _concatenate(unknown) > 0
        is_special = is_added | np.isin(ids, self._special_ids) | is_unknown
        return TokenizedTexts(
            ids=ids,
            types=_concatenate([each.type_ids for each in encodings]),
            words=np.where(is_special, np.int32(-1), _concatenate(words)),
            offsets=np.cumsum([0, *map(len, encodings)], dtype=np.int64),
            num_truncated=sum(bool(each.overflowing) for each in encodings),
        )

    def _is_unknown(self, text: str, encoding: Any) -> Sequence[bool]:
        """Returns whether each token is the unknown one, written out in the text (GPT-2 has no other special token)."""
        if self._unknown is None or self._unknown not in text:
            return [False] * len(encoding)
        return [text[begin:end].strip() == self._unknown for begin, end in encoding.offsets]


def _with_lowercase(rules: Any) -> Any:
    """Returns normalizers that begin with lower case, or where it is among them the same ones, as the library does."""
    parts = list(cast("Any", rules)) if isinstance(rules, normalizers.Sequence) else [] if rules is None else [rules]
    if any(isinstance(part, normalizers.Lowercase) for part in parts):
        return rules
    return normalizers.Sequence([normalizers.Lowercase(), *parts])


def _concatenate(lists: Sequence[Sequence[int] | np.ndarray]) -> np.ndarray:
    return np.concatenate([np.zeros(0, np.int32), *(np.asarray(each, np.int32) for each in lists)])


def require_max_length(lengths: np.ndarray, limit: int | None, texts: Sequence[str], advice: str = "") -> None:
    """Raises `UserError` for a text that is longer than the model can read; names the longest.

    Args:
        lengths: tokens of each text [n].
        limit: most tokens that the model can read; None: any.
        texts: the texts before tokenization.
        advice: end of the message.
    """
    if limit is not None and lengths.max(initial=0) > limit:
        text = texts[int(np.argmax(lengths))]
        raise UserError(
            f"a text of {lengths.max():,} tokens is longer than the {limit} that the model reads: "
            f"{text[:60]!r}...{advice}"
        )


def read_forwards(model: PretrainedModel) -> PretrainedModel:
    """Returns the model without XLNet's bi_data, which reads half of a batch backwards."""
    return dataclasses.replace(model, config=dataclasses.replace(model.config, bi_data=False))


class TextBatch(NamedTuple):
    """Indices of texts that form a batch, padded to `length`; after the first `num_real` the last one is repeated."""

    members: np.ndarray
    length: int
    num_real: int


def batch_by_length(
    lengths: np.ndarray, limit: int | None, tokens: int, max_batch_size: int | None = None
) -> Iterator[TextBatch]:
    """Yields batches of similar length, longest first, so that a lack of memory shows early.

    Texts are padded to one of few lengths, and batch sizes are powers of two.

    Args:
        lengths: tokens of each text [n].
        limit: longest length that the model can read; None: any.
        tokens: token slots of a batch, padding included; a batch holds at least one text.
        max_batch_size: most texts of a batch.
    """
    padded = np.minimum(_LENGTHS[np.searchsorted(_LENGTHS, lengths)], _UNBOUNDED if limit is None else limit)
    order = np.argsort(-lengths, kind="stable")
    for length in np.unique(padded)[::-1].tolist():
        members = order[padded[order] == length]
        size = min(max(1, tokens // length), max_batch_size or _UNBOUNDED)
        size = 1 << (size.bit_length() - 1)  # the power of two below
        for start in range(0, len(members), size):
            part = members[start : start + size]
            padding = next_power_of_two(len(part)) - len(part)
            yield TextBatch(np.pad(part, (0, padding), mode="edge"), length, len(part))
