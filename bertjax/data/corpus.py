"""Prepared corpus on disk, read through zero-copy views of its Arrow buffers.

A prepared corpus is one folder, named by the digest of its inputs (`bertjax/data/prepare.py` writes it):

    <cache_dir>/<digest>/train, eval    Arrow datasets that `datasets.load_from_disk` opens, one row per document:
                                        `input_ids` list<uint16 or int32>, `sentence_lengths` list<int32> (tokens)
    <cache_dir>/<digest>/counts.npy     int64 [V], occurrences of every token in train
    <cache_dir>/<digest>/meta.json      inputs, sizes and digests; written last
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bertjax.data.counter_rng import IntArray
from bertjax.errors import UserError, one_line

FORMAT_VERSION = 1  # raise it when the files or the way of tokenizing change: old folders are then made again
SPLITS = ("train", "eval")


class SplitSize(NamedTuple):
    """Size of a split; `dropped_documents` had no token, `digest` covers the ids and all boundaries."""

    documents: int
    sentences: int
    tokens: int
    dropped_documents: int
    digest: str


def open_corpus(folder: Path) -> dict[str, Corpus]:
    """Opens the splits of a prepared folder, memory-mapped; raises `UserError` if the folder is damaged."""
    folder = Path(folder)
    damage = find_damage(folder)
    if damage is not None:
        raise UserError(f"the prepared corpus {folder} is damaged ({damage}); delete that folder and prepare it again")
    try:
        meta = read_meta(folder)
        counts = np.load(folder / "counts.npy", allow_pickle=False)
        if counts.shape != (meta["vocab_size"],) or counts.dtype != np.int64:
            raise ValueError(f"counts.npy is {counts.dtype} {counts.shape} instead of int64 ({meta['vocab_size']},)")
        return {name: _open_split(folder / name, SplitSize(**meta["splits"][name]), counts) for name in SPLITS}
    except Exception as error:  # the libraries raise errors of any type for a broken file
        raise UserError(
            f"the prepared corpus {folder} is damaged ({one_line(error)}); delete that folder and prepare it again"
        ) from error


class Corpus:
    """One split: the token ids of all documents end to end, and the boundaries of sentences and documents.

    Attributes:
        sentence_tokens: int64 [sentences + 1], offsets of the sentences into tokens.
        document_sentences: int64 [documents + 1], offsets of the documents into sentences.
        counts: int64 [V], occurrences of every token in the train split.
        digest: of the ids and boundaries.
        folder: where it is stored, for messages.
    """

    def __init__(
        self,
        chunks: Sequence[np.ndarray],
        sentence_lengths: np.ndarray,
        document_sentences: IntArray,
        counts: IntArray,
        digest: str,
        folder: Path | None = None,
    ) -> None:
        """Wraps arrays.

        Args:
            chunks: 1-D arrays of ids; no document crosses from one to the next.
            sentence_lengths: int [sentences], tokens.
            document_sentences, counts, digest, folder: see the attributes.
        """
        self.folder = folder
        self._chunks = [chunk for chunk in chunks if len(chunk)]
        self._chunk_tokens = offsets([len(chunk) for chunk in self._chunks])
        self.sentence_tokens = offsets(sentence_lengths)
        self.document_sentences = document_sentences
        self.counts = counts
        self.digest = digest
        if self._chunk_tokens[-1] != self.num_tokens or document_sentences[-1] != self.num_sentences:
            raise ValueError("sentence lengths do not sum to the tokens, or documents not to the sentences")

    @property
    def num_documents(self) -> int:
        return len(self.document_sentences) - 1

    @property
    def num_sentences(self) -> int:
        return len(self.sentence_tokens) - 1

    @property
    def num_tokens(self) -> int:
        return int(self.sentence_tokens[-1])

    @property
    def document_tokens(self) -> IntArray:
        """Offsets of the documents into tokens, int64 [documents + 1]."""
        return self.sentence_tokens[self.document_sentences]

    def read(self, starts: IntArray, lengths: IntArray) -> list[np.ndarray]:
        """Returns views of the ids [start, start + length); a slice must not leave its document."""
        chunk = np.searchsorted(self._chunk_tokens, starts, side="right") - 1
        begin = starts - self._chunk_tokens[chunk]
        slices = zip(chunk.tolist(), begin.tolist(), (begin + lengths).tolist(), strict=True)
        return [self._chunks[number][first:last] for number, first, last in slices]

    def gather(
        self, starts: IntArray, lengths: IntArray, out: np.ndarray, columns: IntArray, rows: IntArray | None = None
    ) -> None:
        """Copies slices, each from one document.

        Args:
            starts, lengths: int64 [n], the slices.
            out: int32 [B, S].
            columns: int64 [n], the column at which each slice begins.
            rows: int64 [n], the row of each slice; None: row i.
        """
        row_of = range(len(starts)) if rows is None else rows.tolist()
        slices = zip(row_of, columns.tolist(), (columns + lengths).tolist(), self.read(starts, lengths), strict=True)
        for row, first, last, ids in slices:
            out[row, first:last] = ids

    def find(self, value: int) -> int | None:
        """Returns the first token with this id, None if there is none; reads a million ids at a time."""
        for begin, chunk in zip(self._chunk_tokens[:-1].tolist(), self._chunks, strict=True):
            for first in range(0, len(chunk), 1 << 20):
                matches = np.flatnonzero(chunk[first : first + (1 << 20)] == value)
                if len(matches):
                    return begin + first + int(matches[0])
        return None


def offsets(lengths: Sequence[int] | np.ndarray) -> IntArray:
    """Returns int64 [n + 1]: the begin of each of n items laid end to end, and the end of the last."""
    out = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=out[1:])
    return out


def read_meta(folder: Path) -> dict[str, Any]:
    """Returns the content of meta.json."""
    return json.loads((folder / "meta.json").read_text(encoding="utf-8"))


def find_damage(folder: Path) -> str | None:
    """Returns a description of the damage of a folder, None if names and sizes of its files are correct."""
    try:
        meta = read_meta(folder)
        if meta["format_version"] != FORMAT_VERSION:
            return f"format {meta['format_version']}, this program reads {FORMAT_VERSION}"
        for name, size in meta["files"].items():
            actual = (folder / name).stat().st_size
            if actual != size:
                return f"{name} has {actual} bytes instead of {size}"
    except FileNotFoundError as error:
        return f"{Path(error.filename).name} is missing"
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        return f"meta.json cannot be used: {error!r}"
    return None


def _open_split(folder: Path, size: SplitSize, counts: IntArray) -> Corpus:
    import datasets

    table = datasets.load_from_disk(str(folder), keep_in_memory=False).data
    for name in ("input_ids", "sentence_lengths"):
        for chunk in table.column(name).chunks:
            chunk.validate(full=True)  # offsets outside their buffer would crash the process instead of raising
    ids = [chunk.flatten().to_numpy() for chunk in table.column("input_ids").chunks]
    lengths = table.column("sentence_lengths").chunks
    sentence_lengths = [chunk.flatten().to_numpy() for chunk in lengths]
    sentences = [np.diff(chunk.offsets.to_numpy()) for chunk in lengths]
    corpus = Corpus(ids, _concatenate(sentence_lengths), offsets(_concatenate(sentences)), counts, size.digest, folder)
    actual = (corpus.num_documents, corpus.num_sentences, corpus.num_tokens)
    if actual != size[:3]:
        raise ValueError(f"{folder.name} has {actual} documents, sentences and tokens instead of {size[:3]}")
    return corpus


def _concatenate(arrays: list[np.ndarray]) -> np.ndarray:
    return np.concatenate(arrays) if arrays else np.zeros(0, np.int32)
