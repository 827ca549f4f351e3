"""Prepared corpus on disk, read through zero-copy views of its Arrow buffers.

A prepared corpus is one folder, named by the digest of its inputs (`bertjax/data/prepare.py` writes it):

    <cache_dir>/<digest>/train, eval    Arrow datasets that `datasets.load_from_disk` opens, one row per document:
                                        `input_ids` list<uint16 or int32>, `sentence_lengths` list<int32> (tokens);
                                        a file is a shard, of whole documents
    <cache_dir>/<digest>/counts.npy     int64 [V], occurrences of every token in train
    <cache_dir>/<digest>/meta.json      inputs, sizes and digests; written last

A shard is opened as a `Corpus` when it is needed, so that memory does not grow with the corpus.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bertjax.data.counter_rng import IntArray
from bertjax.data.text_store import open_downloads
from bertjax.errors import UserError, one_line

FORMAT_VERSION = 2  # raise it when the files or the way of tokenizing change: old folders are then made again
SPLITS = ("train", "eval")


class SplitSize(NamedTuple):
    """Size of a split; `dropped_documents` had no token, `digest` covers the ids and all boundaries."""

    documents: int
    sentences: int
    tokens: int
    dropped_documents: int
    digest: str


class CorpusShard(NamedTuple):
    """File of a split: its path in the folder of the corpus, its sizes, and the SHA-256 of its bytes."""

    file: str
    documents: int
    sentences: int
    tokens: int
    sha256: str


def open_corpus(folder: Path) -> dict[str, CorpusSplit]:
    """Opens the splits of a prepared folder, whose shards follow on demand; raises `UserError` for a damaged one."""
    folder = Path(folder)
    damage = find_damage(folder)
    if damage is not None:
        raise _damaged(folder, damage)
    try:
        meta = read_meta(folder)
        counts = np.load(folder / "counts.npy", allow_pickle=False)
        if counts.shape != (meta["vocab_size"],) or counts.dtype != np.int64:
            raise ValueError(f"counts.npy is {counts.dtype} {counts.shape} instead of int64 ({meta['vocab_size']},)")
        return {
            name: CorpusSplit(folder, [CorpusShard(*shard) for shard in meta["shards"][name]], counts, size)
            for name, size in ((name, SplitSize(**meta["splits"][name])) for name in SPLITS)
        }
    except Exception as error:  # the libraries raise errors of any type for a broken file
        raise _damaged(folder, one_line(error)) from error


def _damaged(folder: Path, damage: str) -> UserError:
    return UserError(f"the prepared corpus {folder} is damaged ({damage}); delete that folder and prepare it again")


class CorpusSplit:
    """One split of a prepared corpus: its shards, opened on demand.

    Attributes:
        folder: folder of the split.
        shards: in the order of the documents.
        counts: int64 [V], occurrences of every token in the train split.
        size: size of the split.
        first_token: 0, as of a corpus that begins with the split.
    """

    first_token = 0

    def __init__(self, folder: Path, shards: Sequence[CorpusShard], counts: IntArray, size: SplitSize) -> None:
        totals = tuple(np.sum([shard[1:4] for shard in shards], axis=0).tolist())
        if totals != size[:3]:
            raise ValueError(f"the shards have {totals} documents, sentences and tokens instead of {size[:3]}")
        self.shards, self.counts, self.size = tuple(shards), counts, size
        self.folder = (folder / shards[0].file).parent
        self._begins = offsets([shard.tokens for shard in shards])
        self._downloads = open_downloads(folder)

    @property
    def digest(self) -> str:
        """SHA-256 of ids and boundaries, the same for any size of shards."""
        return self.size.digest

    @property
    def document_tokens(self) -> IntArray:
        """Offsets of the documents into tokens, int64 [documents + 1]; opens all shards."""
        return self.open().document_tokens

    def find(self, value: int) -> int | None:
        """Returns the first token with this id, None if there is none; opens all shards."""
        return self.open().find(value)

    def open(self, first: int = 0, stop: int | None = None, *, verify: bool = True) -> Corpus:
        """Opens consecutive shards as one corpus, memory-mapped.

        Args:
            first, stop: Range of shards; all by default.
            verify: Compare the digests, which reads all bytes.

        Raises:
            UserError: A file is missing or damaged.
        """
        chosen = range(len(self.shards))[first:stop]
        try:
            tables = [self._read(self.shards[number], verify) for number in chosen]
            ids, lengths, sentences = (list(itertools.chain(*arrays)) for arrays in zip(*tables, strict=True))
        except Exception as error:
            if isinstance(error, OSError) and error.filename is not None:  # pyarrow's for damage name no file
                raise UserError(f"{error.filename} cannot be read: {error.strerror or error}") from error
            raise _damaged(self.folder.parent, one_line(error)) from error
        document_sentences, begin = offsets(_concatenate(sentences)), int(self._begins[first])
        return Corpus(ids, _concatenate(lengths), document_sentences, self.counts, self.digest, self.folder, begin)

    def _read(self, shard: CorpusShard, verify: bool) -> tuple[list[np.ndarray], ...]:
        if self._downloads is not None:
            try:
                self._downloads.fetch(shard.file)
                return _read_shard(self.folder.parent, shard, verify)
            except FileNotFoundError:  # another process of this host has deleted it meanwhile
                self._downloads.fetch(shard.file)
        return _read_shard(self.folder.parent, shard, verify)


class Corpus:
    """One split: the token ids of all documents end to end, and the boundaries of sentences and documents.

    Attributes:
        sentence_tokens: int64 [sentences + 1], offsets of the sentences into tokens.
        document_sentences: int64 [documents + 1], offsets of the documents into sentences.
        counts: int64 [V], occurrences of every token in the train split.
        digest: digest of the ids and boundaries.
        folder: where it is stored, for messages.
        first_token: where its first token is in the split, for a shard of one.
    """

    def __init__(
        self,
        chunks: Sequence[np.ndarray],
        sentence_lengths: np.ndarray,
        document_sentences: IntArray,
        counts: IntArray,
        digest: str,
        folder: Path | None = None,
        first_token: int = 0,
    ) -> None:
        """Wraps arrays.

        Args:
            chunks: 1-D arrays of ids; no document crosses from one to the next.
            sentence_lengths: int [sentences], tokens.
            document_sentences, counts, digest, folder, first_token: see the attributes.
        """
        self.folder, self.first_token = folder, first_token
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
        """Number of documents."""
        return len(self.document_sentences) - 1

    @property
    def num_sentences(self) -> int:
        """Number of sentences of all documents."""
        return len(self.sentence_tokens) - 1

    @property
    def num_tokens(self) -> int:
        """Number of tokens of all documents, without special tokens."""
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
        downloaded = open_downloads(folder) is not None
        for name, size in meta["files"].items():
            if downloaded and name.endswith(".arrow") and not (folder / name).exists():
                continue
            actual = (folder / name).stat().st_size
            if actual != size:
                return f"{name} has {actual} bytes instead of {size}"
    except FileNotFoundError as error:
        return f"{Path(error.filename).name} is missing"
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        return f"meta.json cannot be used: {error!r}"
    return None


def _read_shard(folder: Path, shard: CorpusShard, verify: bool) -> tuple[list[np.ndarray], ...]:
    """Returns the token ids, sentence lengths and numbers of sentences of its record batches, memory-mapped."""
    import pyarrow as pa

    path = folder / shard.file
    if verify and _file_digest(str(path), path.stat().st_mtime_ns) != shard.sha256:
        raise ValueError(f"{shard.file} has other bytes than were written")
    table = pa.ipc.open_stream(pa.memory_map(str(path))).read_all()
    for name in ("input_ids", "sentence_lengths"):
        for chunk in table.column(name).chunks:
            chunk.validate(full=True)  # offsets outside their buffer would crash the process instead of raising
    ids = [chunk.flatten().to_numpy() for chunk in table.column("input_ids").chunks]
    lengths = table.column("sentence_lengths").chunks
    sentence_lengths = [chunk.flatten().to_numpy() for chunk in lengths]
    sentences = [np.diff(chunk.offsets.to_numpy()) for chunk in lengths]
    sizes = tuple(sum(map(len, arrays)) for arrays in (sentences, sentence_lengths, ids))
    if sizes != shard[1:4]:
        raise ValueError(f"{shard.file} has {sizes} documents, sentences and tokens instead of {shard[1:4]}")
    return ids, sentence_lengths, sentences


@functools.lru_cache(maxsize=1 << 16)
def _file_digest(path: str, _modified: int) -> str:
    """Returns the SHA-256 of a file, computed once per process while the file stays as it is."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _concatenate(arrays: list[np.ndarray]) -> np.ndarray:
    return np.concatenate(arrays) if arrays else np.zeros(0, np.int32)
