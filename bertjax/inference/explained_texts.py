"""Texts as windows whose tokens belong to words, and texts without one of their words."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from bertjax.data.tokenizer import Tokenizer
from bertjax.data.words import token_spans
from bertjax.errors import UserError
from bertjax.inference.attributions import ScoredWindow
from bertjax.tasks.qa_features import tokenize_contexts
from bertjax.tasks.templates import TokenRanges, assemble_windows, find_template, range_begins


class Word(NamedTuple):
    """A word, or a sign, of an input; characters [start, end) of the text in `field`, None for words given alone."""

    text: str
    field: str
    start: int | None
    end: int | None


@dataclasses.dataclass(frozen=True, eq=False)
class WordedWindow:
    """A window with its words, those that have tokens, and the position of the token that represents it."""

    window: ScoredWindow
    words: list[Word]
    summary_position: int


def find_words(text: str, begins: np.ndarray, ends: np.ndarray, field: str = "text") -> tuple[list[Word], np.ndarray]:
    """Returns the words of a text that have tokens, and the word of every token.

    Words are those of `token_spans`; a token that covers a part of several joins them. A token of blanks belongs to the
    next word.

    Args:
        text: the text.
        begins, ends: characters [begin, end) of each token [n].
        field: name of the text.
    """
    spans = np.array(token_spans(text), np.int64).reshape(-1, 2)
    if not len(spans) or not len(begins):
        return [], np.full(len(begins), -1)
    first = np.searchsorted(spans[:, 1], begins, side="right")
    last = np.searchsorted(spans[:, 0], ends, side="left") - 1
    first = np.minimum(first, len(spans) - 1)
    is_joined = np.zeros(len(spans), bool)
    for begin, end in zip(first.tolist(), last.tolist(), strict=True):
        is_joined[begin + 1 : end + 1] = True
    group = np.cumsum(~is_joined) - 1
    present, of_token = np.unique(group[first], return_inverse=True)
    words = []
    for each in present:
        members = spans[group == each]
        start, end = int(members[0, 0]), int(members[-1, 1])
        words.append(Word(text[start:end], field, start, end))
    return words, of_token


def fixed_ids(tokenizer: Tokenizer) -> np.ndarray:
    """Returns the ids of special tokens, which every baseline keeps; the unknown token stands for a word."""
    return np.array([index for index in tokenizer.special_ids if index != tokenizer.unk_id], np.int32)


def text_windows(
    tokenizer: Tokenizer, texts: Sequence[tuple[str, ...]], fields: tuple[str, ...] = ("text", "pair"), skipped: int = 0
) -> list[WordedWindow]:
    """Returns the windows of texts, whole.

    Args:
        tokenizer: tokenizer of the model.
        texts: single texts, or pairs.
        fields: names of the texts.
        skipped: first characters of every text that belong to no word (a prompt).

    Raises:
        UserError: a text has no word.
    """
    template, fixed = find_template(tokenizer, len(texts[0]) == 2), fixed_ids(tokenizer)
    columns = [tokenize_contexts(tokenizer, column) for column in zip(*texts, strict=True)]
    parts = [TokenRanges.of(each.lengths, each.ids) for each in columns]
    tokens, offsets, types, summary = assemble_windows(template, parts)
    result = []
    for index, of_window in enumerate(texts):
        ids = tokens[offsets[index] : offsets[index + 1]]
        words: list[Word] = []
        word_of_token = np.full(len(ids), -1)
        for side, (text, column, part) in enumerate(zip(of_window, columns, parts, strict=True)):
            inside = slice(int(part.starts[index]), int(part.starts[index] + part.lengths[index]))
            is_text = column.ends[inside] > skipped
            begins, ends = (each[inside][is_text] - skipped for each in (column.begins, column.ends))
            text_words, of_token = find_words(text[skipped:], begins, ends, fields[side])
            first = int(range_begins(template, parts, side)[index])
            word_of_token[first + np.flatnonzero(is_text)] = np.where(of_token < 0, -1, of_token + len(words))
            words += text_words
        replaceable = (word_of_token >= 0) & ~np.isin(ids, fixed)
        window = ScoredWindow(
            ids,
            types[offsets[index] : offsets[index + 1]],
            replaceable,
            word_of_token,
            len(words),
            (int(summary[index]),),
        )
        result.append(WordedWindow(window, words, int(summary[index])))
    return result


def require_words(windows: Sequence[WordedWindow], locations: Sequence[str], limit: int | None) -> None:
    """Raises `UserError` for an input without words, or one that is longer than the model reads."""
    for each, location in zip(windows, locations, strict=True):
        if not each.words:
            raise UserError(f"{location}: the text has no word to explain")
        length = len(each.window.input_ids)
        if limit is not None and length > limit:
            raise UserError(f"{location}: {length:,} tokens, and the model reads {limit:,}; shorten the text")


def without_word(text: str, word: Word) -> str:
    """Returns a text without a word and one of the blanks around it."""
    assert word.start is not None and word.end is not None
    before, after = text[: word.start], text[word.end :]
    if before.endswith(" ") and (not after or after.startswith(" ")):
        before = before[:-1]
    return before + (after if before else after.removeprefix(" "))
