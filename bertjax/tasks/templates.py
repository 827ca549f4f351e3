"""Tokens of texts, and their arrangement in windows with the special tokens of the family; all on whole arrays."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from bertjax.data.corpus import offsets as ends_of
from bertjax.data.counter_rng import IntArray
from bertjax.data.tokenizer import Tokenizer
from bertjax.data.word_cache import FlatTokens, flatten_ids

TEXTS_PER_CALL = 4096  # the library keeps about 100 bytes per token until the call ends


@dataclasses.dataclass(frozen=True)
class WindowTemplate:
    """Arrangement of one or two texts and special tokens in a window.

    Attributes:
        gaps: Special tokens before, between and after the texts, (id, token type) each; one more gap than texts.
        types: Token types of the texts.
        summary_position: Position of the token that represents the window; negative: counted from the end.
        summary_skips: Not None: the last token without this id represents the window instead.
        summary_id: Not None: the last token with this id represents the window instead.
    """

    gaps: tuple[tuple[tuple[int, int], ...], ...]
    types: tuple[int, ...]
    summary_position: int
    summary_skips: int | None = None
    summary_id: int | None = None

    @property
    def num_special(self) -> int:
        """Number of special tokens."""
        return sum(map(len, self.gaps))


def find_template(tokenizer: Tokenizer, is_pair: bool) -> WindowTemplate:
    """Returns the arrangement of one text or two that the tokenizer's `tokenizer.json` defines, else its family's.

    Token types are 0 in families without them. The summary is [CLS] if there is one, else the last token; of models
    that see only what precedes (GPT-2, Llama) it is the last in any case, of models with pooling=eos an end token.
    """
    family = tokenizer.spec
    gaps, types = _probe(tokenizer.engine, is_pair) or _parse(tokenizer, family.pair if is_pair else family.single)
    if not tokenizer.token_types:
        gaps = [[(token, 0) for token, _ in gap] for gap in gaps]
        types = [0] * len(types)
    first, last = ([token for token, _ in gaps[index]] for index in (0, -1))
    summary = -1
    if tokenizer.cls_id in first:
        summary = first.index(tokenizer.cls_id)
    elif tokenizer.cls_id in last:
        summary = last.index(tokenizer.cls_id) - len(last)
    return WindowTemplate(tuple(map(tuple, gaps)), tuple(types), summary, tokenizer.summary_skips, tokenizer.summary_id)


_Arrangement = tuple[list[list[tuple[int, int]]], list[int]]
"""`gaps` and `types` of a template."""


def _probe(engine: Any, is_pair: bool) -> _Arrangement | None:
    """Returns what the engine adds around "a" and "b"; None if it adds nothing."""
    encoding = engine.encode("a", "b") if is_pair else engine.encode("a")
    gaps: list[list[tuple[int, int]]] = [[]]
    types: list[int] = []
    for index, token, kind in zip(encoding.sequence_ids, encoding.ids, encoding.type_ids, strict=True):
        if index is None:
            gaps[-1].append((token, kind))
        elif index == len(types):
            types.append(kind)
            gaps.append([])
    return (gaps, types) if any(gaps) and len(types) == 1 + is_pair else None


def _parse(tokenizer: Tokenizer, declaration: str) -> _Arrangement:
    """Reads the family's arrangement: words TOKEN:TYPE, with $A and $B for the texts."""
    gaps: list[list[tuple[int, int]]] = [[]]
    types: list[int] = []
    for word in declaration.split():
        token, _, kind = word.rpartition(":")
        if token in ("$A", "$B"):
            types.append(int(kind))
            gaps.append([])
        else:
            gaps[-1].append((tokenizer.tokens.index(token), int(kind)))
    return gaps, types


def encode_texts(tokenizer: Tokenizer, texts: Sequence[str]) -> FlatTokens:
    """Returns the token counts of the texts, int64 [n], and their ids, int32 end to end; runs on all cores.

    Special tokens in a text are recognized, as in transformers: "[MASK]" and "[SEP]" are single tokens. Texts without
    them take the faster path of raw text, with the same ids. Call it from one thread only.
    """
    special = re.compile("|".join(re.escape(tokenizer.tokens[index]) for index in tokenizer.special_ids))
    drops_blanks = tokenizer.engine.encode(" a ").ids == tokenizer.engine.encode("a").ids
    groups = []
    for begin in range(0, len(texts), TEXTS_PER_CALL):
        group = list(texts[begin : begin + TEXTS_PER_CALL])
        if any(map(special.search, group)):
            encodings = tokenizer.engine.encode_batch_fast(group, add_special_tokens=False)
            groups.append(flatten_ids([encoding.ids for encoding in encodings]))
        else:
            # Blanks at the ends (all of SST-2) would keep the word cache from being used.
            groups.append(tokenizer.encode_flat([text.strip(" ") for text in group] if drops_blanks else group))
    return concatenate(groups)


def concatenate(groups: Sequence[FlatTokens]) -> FlatTokens:
    """Concatenates encoded groups of texts."""
    if not groups:
        return np.zeros(0, np.int64), np.zeros(0, np.int32)
    return np.concatenate([lengths for lengths, _ in groups]), np.concatenate([ids for _, ids in groups])


@dataclasses.dataclass(frozen=True, eq=False)
class TokenRanges:
    """One text per window: window i holds `lengths[i]` of `ids`, from `starts[i]`."""

    ids: np.ndarray
    starts: IntArray
    lengths: IntArray

    @classmethod
    def of(cls, lengths: IntArray, ids: np.ndarray) -> TokenRanges:
        """Returns the whole texts of a result of `encode_texts`: token counts [n] and ids [total]."""
        return cls(ids, ends_of(lengths)[:-1], lengths)

    def truncate(self, lengths: IntArray, side: str = "right") -> TokenRanges:
        """Returns `lengths[i]` tokens of every text: those that are left where it is cut off on that side."""
        starts = self.starts + (self.lengths - lengths if side == "left" else 0)
        return dataclasses.replace(self, starts=starts, lengths=lengths)

    def followed_by(self, other: TokenRanges) -> TokenRanges:
        """Returns these windows and those of `other`."""
        starts = np.concatenate([self.starts, other.starts + len(self.ids)])
        return TokenRanges(np.concatenate([self.ids, other.ids]), starts, np.concatenate([self.lengths, other.lengths]))


def assemble_windows(
    template: WindowTemplate, parts: Sequence[TokenRanges]
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Joins texts and special tokens.

    Args:
        template: the arrangement.
        parts: the texts of all windows, one `TokenRanges` per text of the template.

    Returns:
        tokens int32 [total], offsets int64 [n + 1], token types int8 [total], summary positions int32 [n].
    """
    lengths = sum((part.lengths for part in parts), np.full(len(parts[0].lengths), template.num_special, np.int64))
    offsets = ends_of(lengths)
    tokens, types = np.empty(offsets[-1], np.int32), np.empty(offsets[-1], np.int8)
    position = offsets[:-1].copy()
    for gap, part, kind in itertools.zip_longest(template.gaps, parts, template.types):
        for token, token_type in gap:
            tokens[position], types[position] = token, token_type
            position += 1
        if part is not None:
            target = runs(position, part.lengths)
            tokens[target] = part.ids[runs(part.starts, part.lengths)]
            types[target] = kind
            position += part.lengths
    summary = np.full(len(lengths), template.summary_position, np.int32)
    if template.summary_skips is not None or template.summary_id is not None:
        counts = tokens == template.summary_id if template.summary_id is not None else tokens != template.summary_skips
        counted = np.where(counts, np.arange(len(tokens)), -1)
        last = np.concatenate([[-1], np.maximum.accumulate(counted)])[offsets[1:]]
        summary = np.maximum(last - offsets[:-1], 0).astype(np.int32)
    elif template.summary_position < 0:
        summary = np.maximum(lengths + template.summary_position, 0).astype(np.int32)
    return tokens, offsets, types, summary


def range_begins(template: WindowTemplate, parts: Sequence[TokenRanges], index: int) -> IntArray:
    """Returns the position in every window at which a text begins.

    Args:
        template: the arrangement.
        parts: the texts of all windows.
        index: index of the text.
    """
    position = np.full(len(parts[0].lengths), sum(map(len, template.gaps[: index + 1])), np.int64)
    return sum((part.lengths for part in parts[:index]), position)


def runs(begins: IntArray, counts: IntArray) -> IntArray:
    """Returns `counts[i]` consecutive numbers from `begins[i]`, one run after the other."""
    return np.repeat(begins - ends_of(counts)[:-1], counts) + np.arange(counts.sum())
