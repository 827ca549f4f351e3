"""Texts to ids, and ids to windows with the special pieces of the family around them; all by whole arrays."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from bertjax.data.corpus import offsets as ends_of
from bertjax.data.counter_rng import IntArray
from bertjax.data.special_tokens import family_of
from bertjax.data.tokenizer import Tokenizer
from bertjax.data.word_cache import FlatTokens, flatten_ids

TEXTS_PER_CALL = 4096  # the library keeps all that it knows of a text until the call ends: about 100 bytes a token


@dataclasses.dataclass(frozen=True)
class WindowTemplate:
    """The special pieces before, between and behind one or two texts, (id, token type) each, and the texts' types.

    `gaps` has one more entry than there are texts. `summary_position` is the position of the token that represents the
    window, counted from the end where it is negative.
    """

    gaps: tuple[tuple[tuple[int, int], ...], ...]
    types: tuple[int, ...]
    summary_position: int

    @property
    def num_special(self) -> int:
        return sum(map(len, self.gaps))


def find_template(tokenizer: Tokenizer, is_pair: bool) -> WindowTemplate:
    """How this tokenizer lays out one text or two, as its own rules (`tokenizer.json`) have it, else as its family has.

    Token types are 0 in families without them. The summary is [CLS] where there is one, else the last token (GPT-2).
    """
    family = family_of(tokenizer.family)
    found = _asked(tokenizer.engine, is_pair) or _declared(tokenizer, family.pair if is_pair else family.single)
    gaps, types = found
    if not family.token_types:
        gaps = [[(piece, 0) for piece, _ in gap] for gap in gaps]
        types = [0] * len(types)
    summary_position = -1
    for index, (piece, _) in enumerate(gaps[0]):
        if piece == tokenizer.cls_id:
            summary_position = index
            break
    else:
        for index, (piece, _) in enumerate(gaps[-1]):
            if piece == tokenizer.cls_id:
                summary_position = index - len(gaps[-1])
    return WindowTemplate(tuple(map(tuple, gaps)), tuple(types), summary_position)


_Found = tuple[list[list[tuple[int, int]]], list[int]]


def _asked(engine: Any, is_pair: bool) -> _Found | None:
    """What the engine writes around "a" and "b"; None where it writes nothing."""
    encoding = engine.encode("a", "b") if is_pair else engine.encode("a")
    gaps: list[list[tuple[int, int]]] = [[]]
    types: list[int] = []
    for index, piece, kind in zip(encoding.sequence_ids, encoding.ids, encoding.type_ids, strict=True):
        if index is None:
            gaps[-1].append((piece, kind))
        elif index == len(types):
            types.append(kind)
            gaps.append([])
    return (gaps, types) if any(gaps) and len(types) == 1 + is_pair else None


def _declared(tokenizer: Tokenizer, words: str) -> _Found:
    """The family's layout, written as `PIECE:TYPE` words with $A and $B for the texts."""
    gaps: list[list[tuple[int, int]]] = [[]]
    types: list[int] = []
    for word in words.split():
        piece, _, kind = word.rpartition(":")
        if piece in ("$A", "$B"):
            types.append(int(kind))
            gaps.append([])
        else:
            gaps[-1].append((tokenizer.tokens.index(piece), int(kind)))
    return gaps, types


def encode_texts(tokenizer: Tokenizer, texts: Sequence[str]) -> FlatTokens:
    """The token counts of the texts int64 [n] and their ids int32 end to end, on all cores.

    Special pieces in a text are recognised, as transformers does: a text says "[MASK]" or "[SEP]" for the piece. All
    other texts go the faster way of raw text, to the same ids. From one thread only.
    """
    special = re.compile("|".join(re.escape(tokenizer.tokens[index]) for index in tokenizer.special_ids))
    drops_blanks = tokenizer.engine.encode(" a ").ids == tokenizer.engine.encode("a").ids
    found = []
    for begin in range(0, len(texts), TEXTS_PER_CALL):
        group = list(texts[begin : begin + TEXTS_PER_CALL])
        if any(map(special.search, group)):
            encodings = tokenizer.engine.encode_batch_fast(group, add_special_tokens=False)
            found.append(flatten_ids([encoding.ids for encoding in encodings]))
        else:
            # Texts with blanks at their ends (all of SST-2) would not be taken apart into words that are known.
            found.append(tokenizer.encode_flat([text.strip(" ") for text in group] if drops_blanks else group))
    return concatenate(found)


def concatenate(found: Sequence[FlatTokens]) -> FlatTokens:
    if not found:
        return np.zeros(0, np.int64), np.zeros(0, np.int32)
    return np.concatenate([lengths for lengths, _ in found]), np.concatenate([ids for _, ids in found])


@dataclasses.dataclass(frozen=True, eq=False)
class TokenRanges:
    """One text of every window: `lengths[i]` ids from `starts[i]` on."""

    ids: np.ndarray
    starts: IntArray
    lengths: IntArray

    @classmethod
    def of(cls, lengths: IntArray, ids: np.ndarray) -> TokenRanges:
        """Texts as they were encoded, whole."""
        return cls(ids, ends_of(lengths)[:-1], lengths)

    def cut(self, lengths: IntArray) -> TokenRanges:
        """Only the first tokens of every text."""
        return dataclasses.replace(self, lengths=lengths)

    def followed_by(self, other: TokenRanges) -> TokenRanges:
        starts = np.concatenate([self.starts, other.starts + len(self.ids)])
        return TokenRanges(np.concatenate([self.ids, other.ids]), starts, np.concatenate([self.lengths, other.lengths]))


def assemble_windows(
    template: WindowTemplate, parts: Sequence[TokenRanges]
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """(tokens int32 [total], offsets int64 [n + 1], token types int8 [total], summary int32 [n]) of windows."""
    lengths = sum((part.lengths for part in parts), np.full(len(parts[0].lengths), template.num_special, np.int64))
    offsets = ends_of(lengths)
    tokens, types = np.empty(offsets[-1], np.int32), np.empty(offsets[-1], np.int8)
    place = offsets[:-1].copy()
    for gap, part, kind in itertools.zip_longest(template.gaps, parts, template.types):
        for piece, piece_type in gap:
            tokens[place], types[place] = piece, piece_type
            place += 1
        if part is not None:
            target = runs(place, part.lengths)
            tokens[target] = part.ids[runs(part.starts, part.lengths)]
            types[target] = kind
            place += part.lengths
    summary_position = np.full(len(lengths), template.summary_position, np.int32)
    if template.summary_position < 0:
        summary_position = np.maximum(lengths + template.summary_position, 0).astype(np.int32)
    return tokens, offsets, types, summary_position


def range_begins(template: WindowTemplate, parts: Sequence[TokenRanges], number: int) -> IntArray:
    """Where text `number` begins in every window."""
    place = np.full(len(parts[0].lengths), sum(map(len, template.gaps[: number + 1])), np.int64)
    return sum((part.lengths for part in parts[:number]), place)


def runs(begins: IntArray, counts: IntArray) -> IntArray:
    """`counts[i]` numbers from `begins[i]` on, one run behind the other."""
    return np.repeat(begins - ends_of(counts)[:-1], counts) + np.arange(counts.sum())
