"""Tokenizes by words: a tokenizer that treats every word separately is called once per distinct word.

WordPiece with BERT's rules and byte-level BPE with GPT-2's never look across a space between two words, and a corpus
repeats its words. The ids are those of the library, several times as fast.
"""

from __future__ import annotations

import functools
import itertools
import operator
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bertjax.data.corpus import offsets
from bertjax.data.counter_rng import IntArray

FlatTokens = tuple[IntArray, np.ndarray]
"""Token counts of texts int64 [n], and all their ids int32 end to end."""

MOST_WORDS = 500_000  # then it starts again: about 100 MB
_LONGEST_WORD = 16  # characters; text without blanks has longer ones on average, and they hardly ever come again
_FIRST = "\n"  # marks a word without a blank before it
# What changes characters by themselves, or with the marks upon them: never across a blank.
_LOCAL_NORMALIZERS = ("BertNormalizer", "NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents")


_MARKS = re.compile("[A-Za-z0-9]+|[^A-Za-z0-9]")
_WORDS_PER_TEXT, _WORDS_PER_CALL = 64, 1 << 14
_is_none = functools.partial(operator.is_, None)


def has_independent_words(content: Mapping[str, Any]) -> bool:
    """Returns whether a `tokenizer.json` gives words between single spaces the same ids in any text."""
    splitter, model = content.get("pre_tokenizer") or {}, content["model"]
    kind = (model.get("type"), splitter.get("type"))
    if kind not in (("WordPiece", "BertPreTokenizer"), ("BPE", "ByteLevel")) or not splitter.get("use_regex", True):
        return False
    if model.get("dropout") or (kind[0] == "BPE" and model.get("continuing_subword_prefix")):
        return False
    steps = content.get("normalizer") or {"type": "Sequence", "normalizers": []}
    steps = steps["normalizers"] if steps["type"] == "Sequence" else [steps]
    # Added tokens that are not special are matched in raw text, some of them with the spaces around them.
    return all(token["special"] for token in content.get("added_tokens", ())) and all(
        step["type"] in _LOCAL_NORMALIZERS for step in steps
    )


class WordCache:
    """Cache of the word ids of a `HuggingFaceBackend`, by its `lists` and `located`. Not thread-safe.

    `marks_first` means that a word at the start of a text differs from the same word after a space (byte-level BPE
    without `add_prefix_space`), `splits_marks` that every ASCII mark is a word (BERT's rules).
    """

    def __init__(self, backend: Any, marks_first: bool, splits_marks: bool) -> None:
        self._backend, self._marks_first, self._splits_marks = backend, marks_first, splits_marks
        self._clear()

    def _clear(self) -> None:
        self._slots: dict[str, int] = {}
        self._ends = np.zeros(1, np.int64)
        self._ids = np.zeros(0, np.int32)
        self._new: list[FlatTokens] = []  # of words that have an index, but are not yet in the two arrays

    def encode(self, texts: Sequence[str]) -> FlatTokens:
        """Returns the ids that the library gives for `texts`."""
        if len(self._slots) > MOST_WORDS:
            self._clear()
        by_words = [self._words(text) for text in texts]
        others = [text for text, words in zip(texts, by_words, strict=True) if words is None]
        results = self._known(list(itertools.chain.from_iterable(words for words in by_words if words is not None)))
        if not others:
            return _sums(results[0], np.fromiter((len(words or ()) for words in by_words), np.int64)), results[1]
        return _merged(by_words, results, flatten_ids(self._backend.lists(others)))

    def _words(self, text: str) -> list[str] | None:
        """The words of a text, None for one that must be encoded as a whole."""
        words = text.split()
        # Python's idea of whitespace holds that of both libraries.
        if not words or len(text) > _LONGEST_WORD * len(words) or " ".join(words) != text:
            return None
        if self._marks_first:
            words[0] = _FIRST + words[0]
        return words

    def _known(self, words: list[str]) -> FlatTokens:
        slots = list(map(self._slots.get, words))
        if None in slots:
            unknown = list(itertools.compress(range(len(words)), map(_is_none, slots)))
            self._learn(list(dict.fromkeys(words[index] for index in unknown)))
            for index in unknown:
                slots[index] = self._slots[words[index]]
        if self._new:
            lengths, ids = (np.concatenate(arrays) for arrays in zip(*self._new, strict=True))
            self._ends = np.concatenate([self._ends, self._ends[-1] + np.cumsum(lengths)])
            self._ids = np.concatenate([self._ids, ids])
            self._new = []
        which = np.array(slots, np.int64)
        begins = self._ends[which]
        lengths = self._ends[which + 1] - begins
        ends = np.cumsum(lengths)
        total = int(ends[-1]) if len(ends) else 0
        return lengths, self._ids[np.repeat(begins - ends + lengths, lengths) + np.arange(total)]

    def _learn(self, words: list[str]) -> None:
        """Ask for words; those with marks in or around them are put together of what is known without."""
        parts = [self._parts(word) for word in words]
        new = dict.fromkeys(part for current in parts for part in current if part not in self._slots)
        first = [word for word in new if word.startswith(_FIRST)]
        self._store(first, *flatten_ids(self._backend.lists([word[1:] for word in first])))
        self._ask([word for word in new if not word.startswith(_FIRST)])
        compound = [(word, current) for word, current in zip(words, parts, strict=True) if len(current) > 1]
        lengths, ids = self._known([part for _, current in compound for part in current])
        counts = np.fromiter((len(current) for _, current in compound), np.int64, len(compound))
        self._store([word for word, _ in compound], _sums(lengths, counts), ids)

    def _parts(self, word: str) -> list[str]:
        return _MARKS.findall(word) if self._splits_marks and word.isascii() and word.isprintable() else [word]

    def _ask(self, words: list[str]) -> None:
        """Calls have a fixed cost per text, so unknown words are joined into lines."""
        for begin in range(0, len(words), _WORDS_PER_CALL):
            group = words[begin : begin + _WORDS_PER_CALL]
            lines = [group[start : start + _WORDS_PER_TEXT] for start in range(0, len(group), _WORDS_PER_TEXT)]
            texts = [" " * self._marks_first + " ".join(line) for line in lines]
            for line, (ids, spans) in zip(lines, self._backend.located(texts), strict=True):
                # Each word with the preceding space, for which byte-level BPE may have a token.
                begins = offsets([len(word) + 1 for word in line])[:-1] - (not self._marks_first)
                last = np.fromiter((end for _, end in spans), np.int64, len(spans)) - 1
                lengths = np.bincount(np.searchsorted(begins, last, side="right") - 1, minlength=len(line))
                self._store(line, lengths, np.array(ids, np.int32))

    def _store(self, words: list[str], lengths: IntArray, ids: np.ndarray) -> None:
        self._slots.update(zip(words, range(len(self._slots), len(self._slots) + len(words)), strict=True))
        self._new.append((lengths, ids))


def flatten_ids(results: Sequence[Sequence[int]]) -> FlatTokens:
    """Lists of ids, end to end."""
    lengths = np.fromiter(map(len, results), np.int64, len(results))
    return lengths, np.fromiter(itertools.chain.from_iterable(results), np.int32, int(lengths.sum()))


def _sums(values: IntArray, counts: IntArray) -> IntArray:
    """Sums of the first `counts[0]` values, of the next `counts[1]`, ..."""
    return np.diff(offsets(values)[offsets(counts)])


def _merged(by_words: list[list[str] | None], known: FlatTokens, others: FlatTokens) -> FlatTokens:
    """The texts in order again: those encoded by words, and those as wholes."""
    is_other = np.fromiter((words is None for words in by_words), bool, len(by_words))
    counts = np.fromiter((len(words) for words in by_words if words is not None), np.int64)
    lengths = np.zeros(len(by_words), np.int64)
    lengths[~is_other], lengths[is_other] = _sums(known[0], counts), others[0]
    from_other = np.repeat(is_other, lengths)
    ids = np.zeros(len(from_other), np.int32)
    ids[~from_other], ids[from_other] = known[1], others[1]
    return lengths, ids
