"""Document filters (duplicates, evaluation text, length, script), counted, and what a tokenizer loses of a text."""

from __future__ import annotations

import functools
import hashlib
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from bertjax.config.data import SCRIPTS, FilterConfig
from bertjax.data.corpus import offsets
from bertjax.data.tokenize_documents import TokenizedDocuments
from bertjax.data.tokenizer import Tokenizer
from bertjax.data.words import comparable_words

_NAMES = {"han": "CJK"}  # first word of the Unicode names of its letters, where it is not the name of the script
_SCRIPTS = {_NAMES.get(script, script.upper()): script for script in SCRIPTS}
_MAX_RUNS = 8
_MAX_WORDS, _FACTOR = 1 << 20, 0x9E3779B97F4A7C15
_PERMUTATIONS, _SEED, _RUN = 128, 42, 5


class DocumentFilter:
    """Filters documents in order; `num_dropped` counts the others by the first reason that applied."""

    def __init__(self, config: FilterConfig, evaluation: EvaluationText | None = None) -> None:
        self._config, self._evaluation = config, evaluation
        self._duplicates = DuplicateFilter()
        self.num_dropped = {"too_short": 0, "too_long": 0, "other_script": 0, "duplicates": 0}
        if evaluation is not None:
            self.num_dropped["contaminated"] = 0
        if config.near_duplicates is not None:
            self._near_duplicates = NearDuplicateFilter(config.near_duplicates)
            self.num_dropped["near_duplicates"] = 0

    def filter(self, documents: list[str]) -> list[str]:
        """Returns the documents of a batch that pass; batches must come in order: the first duplicate passes."""
        if not self._config.fingerprint and self._evaluation is None:
            return documents
        passed = [document for document in documents if self._passes(document)]
        if self._config.deduplicate:
            passed = self._drop("duplicates", passed, self._duplicates.add(passed))
        if self._config.near_duplicates is not None:
            passed = self._drop("near_duplicates", passed, self._near_duplicates.add(passed))
        return passed

    def filter_each(self, documents: Iterable[str]) -> Iterator[str]:
        """Yields the documents that pass."""
        for document in documents:
            yield from self.filter([document])

    def _drop(self, reason: str, documents: list[str], is_new: np.ndarray) -> list[str]:
        self.num_dropped[reason] += len(documents) - int(is_new.sum())
        return [document for document, new in zip(documents, is_new, strict=True) if new]

    def _passes(self, document: str) -> bool:
        config = self._config
        if len(document) < config.min_chars:
            reason = "too_short"
        elif config.max_chars is not None and len(document) > config.max_chars:
            reason = "too_long"
        elif config.scripts and script_share(document, config.scripts) < config.script_share:
            reason = "other_script"
        elif self._evaluation is not None and self._evaluation.is_quoted_in(document):
            reason = "contaminated"
        else:
            return True
        self.num_dropped[reason] += 1
        return False


class EvaluationText:
    """Runs of 13 words of evaluation texts, as 64-bit hashes, to find documents that quote them.

    Words are those of `comparable_words`. Thirteen words are the length of Brown et al. (2020, arXiv:2005.14165,
    appendix C). Texts of 8 to 12 words are one run; shorter ones are ignored, since they occur by chance.

    Attributes:
        num_texts, num_ignored: texts, and those of fewer than 8 words.
        digest: digest of the runs.
    """

    RUN, SHORTEST = 13, 8

    def __init__(self, texts: Iterable[str]) -> None:
        self._hashes = _WordHashes()
        self.num_texts = self.num_ignored = 0
        runs: dict[int, list[np.ndarray]] = {}
        for text in texts:
            words = self._words(text)
            length = min(len(words), self.RUN)
            self.num_texts += 1
            self.num_ignored += length < self.SHORTEST
            if length >= self.SHORTEST:
                runs.setdefault(length, []).append(_run_hashes(words, length))
        self._runs = {length: np.unique(np.concatenate(hashes)) for length, hashes in sorted(runs.items())}
        content = b"".join(length.to_bytes(8, "little") + hashes.tobytes() for length, hashes in self._runs.items())
        self.digest = hashlib.sha256(content).hexdigest()

    def is_quoted_in(self, document: str) -> bool:
        """Returns whether a document shares a run with any of the texts."""
        words = self._words(document)
        return any(
            _has_any(hashes, _run_hashes(words, length))
            for length, hashes in self._runs.items()
            if len(words) >= length
        )

    def _words(self, text: str) -> np.ndarray:
        words = comparable_words(text)
        if len(self._hashes) > _MAX_WORDS:
            self._hashes.clear()
        return np.fromiter(map(self._hashes.__getitem__, words), np.uint64, len(words))


class _WordHashes(dict[str, int]):
    """Hashes of the words so far."""

    def __missing__(self, word: str) -> int:
        value = int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest(), "little")
        return self.setdefault(word, value)


def _has_any(sorted_values: np.ndarray, values: np.ndarray) -> bool:
    nearest = np.minimum(np.searchsorted(sorted_values, values), len(sorted_values) - 1)
    return bool((sorted_values[nearest] == values).any())


def _run_hashes(words: np.ndarray, length: int) -> np.ndarray:
    """Returns uint64 [n - length + 1]: a polynomial of the hashes of every run of `length` words, modulo 2**64."""
    count, factor = len(words) - length + 1, 1
    total = np.zeros(count, np.uint64)
    for offset in range(length):
        total += words[offset : offset + count] * np.uint64(factor)
        factor = factor * _FACTOR % 2**64
    return total


class DuplicateFilter:
    """Set of the texts so far, as 64-bit hashes: 8 bytes per document.

    Any two of n different texts share a hash with probability n^2 / 2^65: 0.03 for a billion texts.
    """

    def __init__(self) -> None:
        self._runs: list[np.ndarray] = []  # sorted, each longer than the next

    def add(self, texts: Sequence[str]) -> np.ndarray:
        """Adds texts; returns bool [n], whether a text is new."""
        raw = b"".join(hashlib.blake2b(text.encode(), digest_size=8).digest() for text in texts)
        hashes = np.frombuffer(raw, "<u8")
        is_new = np.zeros(len(hashes), bool)
        is_new[np.unique(hashes, return_index=True)[1]] = True
        for run in self._runs:
            nearest = np.minimum(np.searchsorted(run, hashes), len(run) - 1)
            is_new &= run[nearest] != hashes
        self._insert(np.sort(hashes[is_new]))
        return is_new

    def _insert(self, run: np.ndarray) -> None:
        while run.size and self._runs and (len(self._runs[-1]) <= len(run) or len(self._runs) >= _MAX_RUNS):
            run = np.sort(np.concatenate([self._runs.pop(), run]), kind="stable")
        self._runs += [run] if run.size else []


class NearDuplicateFilter:
    """MinHash signatures of the texts so far, by `rensa`: 2 KB per text; a text that is dropped is not remembered.

    A text is compared with those that share a band of its signature, which one of the threshold's similarity does with
    a probability of at least 0.99. The estimate of the similarity has a standard deviation of at most 0.045.

    Args:
        threshold: Jaccard similarity of the sets of shingles from which on a text is dropped.
    """

    def __init__(self, threshold: float) -> None:
        import rensa

        def recall(bands: int) -> float:
            return float(1 - (1 - threshold ** (_PERMUTATIONS // bands)) ** bands)

        self._threshold, self._signature = threshold, functools.partial(rensa.RMinHash, _PERMUTATIONS, _SEED)
        bands = next(bands for bands in (8, 16, 32, 64) if recall(bands) >= 0.99)
        self._index = rensa.RMinHashLSH(threshold, _PERMUTATIONS, bands)
        self._known: list[np.ndarray] = []

    def add(self, texts: Sequence[str]) -> np.ndarray:
        """Adds texts; returns bool [n], whether a text is new."""
        return np.array([self._is_new(shingles(text)) for text in texts], bool)

    def _is_new(self, parts: list[str]) -> bool:
        if not parts:
            return True
        signature = self._signature()
        signature.update(parts)
        values = np.array(signature.digest(), np.uint32)
        if any(np.mean(values == self._known[each]) >= self._threshold for each in self._index.query(signature)):
            return False
        self._index.insert(len(self._known), signature)
        self._known.append(values)
        return True


def shingles(text: str) -> list[str]:
    """Returns all runs of five of the `comparable_words`; a shorter text is one run, one without words has none."""
    words = comparable_words(text)
    return [" ".join(words[start : start + _RUN]) for start in range(max(len(words) - _RUN + 1, min(len(words), 1)))]


def script_share(document: str, scripts: Sequence[str]) -> float:
    """Returns the share of the letters of a document in these scripts; 0 if it has no letter."""
    kinds = _letter_kinds()[np.frombuffer(document.encode("utf-32-le"), "<u4")]
    counts = np.bincount(kinds, minlength=len(SCRIPTS) + 2)[1:]
    letters = int(counts.sum())
    return int(sum(counts[1 + SCRIPTS.index(script)] for script in set(scripts))) / letters if letters else 0.0


@functools.cache
def _letter_kinds() -> np.ndarray:
    """Returns uint8 [code points]: 0 = not a letter, 1 = other letter, 2.. = letter of one of `SCRIPTS`."""
    numbers = {script: 2 + number for number, script in enumerate(SCRIPTS)}
    kinds = np.zeros(0x110000, np.uint8)
    for code in range(0x110000):
        letter = chr(code)
        if letter.isalpha():
            kinds[code] = numbers.get(script_of(letter), 1)
    return kinds


def script_of(character: str) -> str:
    """Returns which of `SCRIPTS` the name of a letter or mark begins with; empty for others."""
    name = unicodedata.name(character, "").removeprefix("FULLWIDTH ").removeprefix("HALFWIDTH ").partition(" ")[0]
    return _SCRIPTS.get(name, "")


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
