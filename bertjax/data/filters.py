"""Which documents of a source are left out: copies, short and long ones, those in other scripts; all are counted."""

from __future__ import annotations

import functools
import hashlib
import unicodedata
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from bertjax.config.filters import SCRIPTS, FilterConfig

_NAMES = {"han": "CJK"}  # what the Unicode names of its letters begin with, where that is not the script's own name
_RUNS = 8


class DocumentFilter:
    """Lets documents through, in order. `left_out` counts the others by the first reason that held."""

    def __init__(self, config: FilterConfig) -> None:
        self._config = config
        self._seen = DuplicateFilter()
        self.left_out = {"too_short": 0, "too_long": 0, "other_script": 0, "duplicates": 0}

    def keep(self, documents: list[str]) -> list[str]:
        """Those of a batch that stay; batches must come in order, because of duplicates the first stays."""
        if not self._config.fingerprint:
            return documents
        kept = [document for document in documents if self._fits(document)]
        if not self._config.deduplicate:
            return kept
        first = self._seen.add(kept)
        self.left_out["duplicates"] += len(kept) - int(first.sum())
        return [document for document, is_first in zip(kept, first, strict=True) if is_first]

    def each(self, documents: Iterable[str]) -> Iterator[str]:
        """The same one by one."""
        for document in documents:
            yield from self.keep([document])

    def _fits(self, document: str) -> bool:
        config = self._config
        if len(document) < config.min_chars:
            reason = "too_short"
        elif config.max_chars is not None and len(document) > config.max_chars:
            reason = "too_long"
        elif config.scripts and script_share(document, config.scripts) < config.script_share:
            reason = "other_script"
        else:
            return True
        self.left_out[reason] += 1
        return False


class DuplicateFilter:
    """The texts that came so far, as 64-bit hashes: 8 bytes a document. That any two of n different texts share one has
    the probability n^2 / 2^65: 0.03 for a billion of them.
    """

    def __init__(self) -> None:
        self._runs: list[np.ndarray] = []  # sorted, each longer than the one behind it

    def add(self, texts: Sequence[str]) -> np.ndarray:
        """bool [n]: which of these texts come for the first time."""
        raw = b"".join(hashlib.blake2b(text.encode(), digest_size=8).digest() for text in texts)
        hashes = np.frombuffer(raw, "<u8")
        new = np.zeros(len(hashes), bool)
        new[np.unique(hashes, return_index=True)[1]] = True
        for run in self._runs:
            places = np.minimum(np.searchsorted(run, hashes), len(run) - 1)
            new &= run[places] != hashes
        self._insert(np.sort(hashes[new]))
        return new

    def _insert(self, run: np.ndarray) -> None:
        while run.size and self._runs and (len(self._runs[-1]) <= len(run) or len(self._runs) >= _RUNS):
            run = np.sort(np.concatenate([self._runs.pop(), run]), kind="stable")
        self._runs += [run] if run.size else []


def script_share(document: str, scripts: Sequence[str]) -> float:
    """The share of the letters of a document that belong to these scripts; 0 where it has no letter."""
    kinds = _letter_kinds()[np.frombuffer(document.encode("utf-32-le"), "<u4")]
    counts = np.bincount(kinds, minlength=len(SCRIPTS) + 2)[1:]
    letters = int(counts.sum())
    return int(sum(counts[1 + SCRIPTS.index(script)] for script in set(scripts))) / letters if letters else 0.0


@functools.cache
def _letter_kinds() -> np.ndarray:
    """uint8 [code points]: 0 = no letter, 1 = a letter, 2.. = one of `SCRIPTS`, told by its Unicode name."""
    named = {_NAMES.get(script, script.upper()): 2 + number for number, script in enumerate(SCRIPTS)}
    kinds = np.zeros(0x110000, np.uint8)
    for code in range(0x110000):
        letter = chr(code)
        if letter.isalpha():
            name = unicodedata.name(letter, "").removeprefix("FULLWIDTH ").removeprefix("HALFWIDTH ")
            kinds[code] = named.get(name.partition(" ")[0], 1)
    return kinds
