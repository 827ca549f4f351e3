"""Losses of a tokenizer on a text: unknown tokens by script, and marks that uncased rules delete."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from bertjax.data.corpus import offsets
from bertjax.data.filters import script_of
from bertjax.data.tokenize_documents import TokenizedDocuments
from bertjax.data.tokenizer import Tokenizer

_CHARACTERS = 1 << 16  # of a batch of up to a million that are looked at
_MANY_UNKNOWN, _MANY_MARKS, _FEWEST = 0.01, 0.05, 100
_SHOWN = 3
_OTHERS = "other characters"


class TextCheck(NamedTuple):
    """Counts of a sample of a text.

    unknown: unknown tokens by script · examples: text of one of each · characters: letters and marks · marks: those
    that uncased rules delete, by script
    """

    unknown: Mapping[str, int] = {}
    examples: Mapping[str, str] = {}
    characters: int = 0
    marks: Mapping[str, int] = {}


def check_batch(documents: Sequence[str], encoded: TokenizedDocuments, tokenizer: Tokenizer) -> TextCheck:
    """Returns what a batch of documents loses; what is sampled depends on the batch alone.

    Args:
        documents: The batch.
        encoded: Its tokens.
        tokenizer: Tokenizer that made them.
    """
    unknown, examples = Counter[str](), dict[str, str]()
    for text in _sample(documents, _with_unknown(encoded, tokenizer)):
        encoding = tokenizer.engine.encode(text, add_special_tokens=False)
        for index, (begin, end) in zip(encoding.ids, encoding.offsets, strict=True):
            if index == tokenizer.unk_id:
                script = next(filter(None, map(script_of, text[begin:end])), _OTHERS)
                unknown[script] += 1
                examples.setdefault(script, text[begin:end][:20])
    characters, marks = 0, Counter[str]()
    if tokenizer.lowercase and tokenizer.engine.normalizer is not None:
        for text in _sample(documents, range(len(documents))):
            counts, deleted = _deleted_marks(text, tokenizer)
            characters += counts
            marks += deleted
    return TextCheck(unknown, examples, characters, marks)


def join_checks(checks: Iterable[TextCheck]) -> TextCheck:
    """Returns the check of several batches."""
    unknown, examples, characters, marks = Counter[str](), dict[str, str](), 0, Counter[str]()
    for each in checks:
        unknown.update(each.unknown)
        marks.update(each.marks)
        examples = {**each.examples, **examples}
        characters += each.characters
    return TextCheck(dict(sorted(unknown.items())), dict(sorted(examples.items())), characters, dict(marks))


def check_lines(check: TextCheck, unknown: int, tokens: int) -> list[str]:
    """Returns lines, or warnings if it is much, about what a corpus lost.

    Args:
        check: What became of a sample of it.
        unknown: Its unknown tokens.
        tokens: All its tokens.
    """
    lines = list[str]()
    if unknown:
        line = f"{unknown:,} unknown tokens, {unknown / tokens:.2%} of all{_shares(check)}"
        is_much = unknown >= _MANY_UNKNOWN * tokens
        lines.append(f"warning: {line}; was the tokenizer made for this text?" if is_much else line)
    deleted = sum(check.marks.values())
    if deleted > max(_MANY_MARKS * check.characters, _FEWEST):
        script = max(check.marks, key=lambda name: check.marks[name])
        lines.append(
            f"warning: the rules of uncased models delete {deleted / check.characters:.0%} of the letters and marks, "
            f"such as vowel signs, mostly {script}; data.lowercase=false keeps them where a tokenizer is trained"
        )
    return lines


def _shares(check: TextCheck) -> str:
    """Returns the scripts of unknown tokens with an example of each, and whether that is not composed."""
    total, parts = sum(check.unknown.values()), list[str]()
    for script, count in Counter(check.unknown).most_common(_SHOWN):
        example = check.examples[script]
        hint = "" if unicodedata.is_normalized("NFC", example) else " in parts (NFD)"
        parts.append(f"{script} {count / total:.0%}, such as {example!r}{hint}")
    return f": {'; '.join(parts)}" if parts else ""


def _sample(documents: Sequence[str], chosen: Iterable[int]) -> Iterable[str]:
    left = _CHARACTERS
    for index in chosen:
        if left <= 0:
            return
        yield documents[index][:left]
        left -= len(documents[index])


def _with_unknown(encoded: TokenizedDocuments, tokenizer: Tokenizer) -> list[int]:
    """Returns the numbers of the documents that have unknown tokens."""
    if tokenizer.unk_id < 0:
        return []
    ends = offsets(encoded.sentence_lengths)[offsets(encoded.document_sentences)][1:]
    positions = np.flatnonzero(encoded.ids == tokenizer.unk_id)
    return np.unique(np.searchsorted(ends, positions, side="right")).tolist()


def _deleted_marks(text: str, tokenizer: Tokenizer) -> tuple[int, Counter[str]]:
    """Returns the letters and marks of a text, and the marks by script that remain when it is composed, yet go."""
    if text.isascii():
        return sum(map(str.isalpha, text)), Counter()
    remaining = Counter(tokenizer.engine.normalizer.normalize_str(text))
    counts = Counter(unicodedata.normalize("NFC", text))
    marks = {c: n for c, n in counts.items() if unicodedata.category(c) == "Mn"}
    deleted = Counter[str]()
    for mark, count in marks.items():
        if not remaining[mark]:
            deleted[script_of(mark) or _OTHERS] += count
    return sum(count for c, count in counts.items() if c.isalpha()) + sum(marks.values()), deleted
