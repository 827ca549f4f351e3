"""Parts of a corpus in preparation, so that a killed process can resume, and the splits that they become.

A part is one file, written atomically; its checksums (those of a zip archive) are verified before it is used. Which
documents form a part depends on the documents alone, so an interrupted corpus ends as the same files as another.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from bertjax.data.corpus import SPLITS, CorpusShard, SplitSize, offsets
from bertjax.data.counter_rng import IntArray
from bertjax.data.filters import TextCheck, join_checks
from bertjax.data.tokenize_documents import TokenizedDocuments
from bertjax.io.atomic import atomic_file

CHARACTERS_PER_PART = 1 << 25  # lost at most when a process is killed: seconds of work
_LOCK = "lock"


class SplitPart(NamedTuple):
    """Stored documents of one split: ids end to end, tokens of sentences, sentences of documents.

    `dropped` counts those that are not there because they gave no token.
    """

    ids: np.ndarray
    sentence_lengths: np.ndarray
    document_sentences: np.ndarray
    dropped: int


class PartStore:
    """The finished parts of one corpus, in a folder of their own; `documents` are those that they were made of."""

    def __init__(self, folder: Path, max_document_tokens: int) -> None:
        self.folder = folder
        self._max_document_tokens = max_document_tokens
        self._waiting: list[tuple[TokenizedDocuments, np.ndarray, TextCheck]] = []
        self._characters = 0
        self.documents = self._count = 0
        for unfinished in folder.glob("*.tmp"):
            unfinished.unlink()
        while (documents := _documents_of(self._path(self._count))) is not None:
            self.documents += documents
            self._count += 1
        for path in folder.glob("*.npz"):  # broken, or after a broken one
            if int(path.stem) >= self._count:
                path.unlink()

    def __len__(self) -> int:
        return self._count

    def add(self, encoded: TokenizedDocuments, held_out: np.ndarray, characters: int, check: TextCheck) -> None:
        """Adds a batch.

        Args:
            encoded: Token ids of the batch.
            held_out: bool [documents], true sends a document to eval.
            characters: Characters of the batch.
            check: What the tokens lack of its text.
        """
        self._waiting.append((encoded, held_out, check))
        self._characters += characters
        if self._characters >= CHARACTERS_PER_PART:
            self.flush()

    def flush(self) -> None:
        """Writes what waits; only the last part is shorter than the others."""
        if not self._waiting:
            return
        batches, held, checks = zip(*self._waiting, strict=True)
        encoded = TokenizedDocuments(*(np.concatenate(arrays) for arrays in zip(*batches, strict=True)))
        held_out = np.concatenate(held)
        check = json.dumps(join_checks(checks)._asdict())
        arrays: dict[str, Any] = {"documents": np.array(len(held_out)), "check": np.array(check)}
        for name, chosen in (("train", ~held_out), ("eval", held_out)):
            split = _chosen(encoded, chosen, self._max_document_tokens)
            arrays |= {f"{name}_{field}": np.asarray(value) for field, value in split._asdict().items()}
        path = self._path(self._count)
        with atomic_file(path) as file:
            np.savez(file, **arrays)
        self.documents += len(held_out)
        self._count += 1
        self._waiting, self._characters = [], 0

    def __iter__(self) -> Iterator[dict[str, SplitPart]]:
        """The splits of one part after the other."""
        for number in range(self._count):
            with np.load(self._path(number), allow_pickle=False) as file:
                yield {
                    name: SplitPart(
                        file[f"{name}_ids"],
                        file[f"{name}_sentence_lengths"],
                        file[f"{name}_document_sentences"],
                        int(file[f"{name}_dropped"]),
                    )
                    for name in SPLITS
                }

    def check(self) -> TextCheck:
        """Returns what the tokens of all parts lack; parts of an earlier release do not say it."""
        checks = []
        for number in range(self._count):
            with np.load(self._path(number), allow_pickle=False) as file:
                checks += [TextCheck(**json.loads(str(file["check"])))] if "check" in file else []
        return join_checks(checks)

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:08d}.npz"


def _documents_of(path: Path) -> int | None:
    """Returns the number of documents of a part; None if it is missing or incomplete."""
    try:
        with zipfile.ZipFile(path) as archive:
            if archive.testzip() is not None:
                return None
        with np.load(path, allow_pickle=False) as file:
            return int(file["documents"])
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, NotImplementedError):
        return None


def _chosen(encoded: TokenizedDocuments, chosen: np.ndarray, max_document_tokens: int) -> SplitPart:
    """The stored documents of those that are `chosen`; too long ones become several."""
    document = np.repeat(np.arange(len(chosen)), encoded.document_sentences)
    here = chosen[document]
    lengths = encoded.sentence_lengths[here]
    ids = encoded.ids[np.repeat(here, encoded.sentence_lengths)]
    tokens = _split_arrays(document[here], lengths, max_document_tokens)
    sentences = np.bincount(tokens)[1:] if len(tokens) else np.zeros(0, np.int64)
    return SplitPart(ids, lengths, sentences, int((chosen & (encoded.document_sentences == 0)).sum()))


def _split_arrays(document: IntArray, lengths: np.ndarray, max_document_tokens: int) -> IntArray:
    """Numbers the stored document of each sentence from 1."""
    begins = offsets(lengths)[:-1]
    first = np.searchsorted(document, document)  # the document's first sentence
    token = (begins - begins[first]) // max_document_tokens if len(document) else begins
    new = (np.diff(document, prepend=-1) != 0) | (np.diff(token, prepend=-1) != 0)
    return np.cumsum(new)


class ResumableFolder:
    """A folder for parts that outlives its process, held by one process at a time; use it in a `with`.

    Where another process has it, `folder` is a private one, which goes with its process: both do the same work, and the
    first to finish wins.
    """

    def __init__(self, shared: Path, private: Path) -> None:
        self._shared, self._private = shared, private
        self._lock: IO[str] | None = None

    @property
    def is_shared(self) -> bool:
        """True if this process holds the lock of the shared folder; False = it works in a private one."""
        return self._lock is not None

    @property
    def folder(self) -> Path:
        """The folder to work in."""
        return self._shared if self.is_shared else self._private

    def remove(self) -> None:
        """Deletes the folder with everything in it."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> ResumableFolder:
        self._lock = _locked(self._shared)
        self.folder.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(self, *_: object) -> None:
        if not self.is_shared or not any(self.folder.glob("*.npz")):
            self.remove()
        if self._lock is not None:
            self._lock.close()


def _locked(folder: Path) -> IO[str] | None:
    """The open lock of a folder, None where another process holds it; the kernel frees it when a process dies."""
    try:
        import fcntl
    except ImportError:  # Windows
        return None
    folder.mkdir(parents=True, exist_ok=True)
    try:
        lock = os.fdopen(os.open(folder / _LOCK, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666), "w")
    except FileNotFoundError:  # removed in this moment
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(lock.fileno()).st_nlink:  # else its folder went before we had it
            return lock
    except OSError:  # held, or a file system without locks
        pass
    lock.close()
    return None


class SplitWriter:
    """Appends documents of one split to Arrow files of about `shard_tokens` tokens, hashing them.

    `finish` adds what `datasets.load_from_disk` needs to open the files as one data set.
    """

    def __init__(self, folder: Path, name: str, dtype: np.dtype, fingerprint: str, shard_tokens: int) -> None:
        import datasets

        self._folder, self._name, self._fingerprint = folder / name, name, fingerprint
        self._shard_tokens = shard_tokens
        columns = {
            "input_ids": datasets.List(datasets.Value(dtype.name)),
            "sentence_lengths": datasets.List(datasets.Value("int32")),
        }
        self._features = datasets.Features(columns)
        self._save_empty_dataset()
        self.shards: list[CorpusShard] = []
        self._dropped = 0
        self._hashes = [hashlib.sha256() for _ in range(3)]
        self._begin_shard()

    def add(self, part: SplitPart) -> None:
        """Adds the documents of a part; a shard ends with the document that reaches `shard_tokens`."""
        ids, sentence_lengths, document_sentences, dropped = part
        self._dropped += dropped
        for hash_, array in zip(self._hashes, (ids, sentence_lengths, document_sentences), strict=True):
            hash_.update(array.astype("<i4").tobytes())  # three streams: the limits of parts leave no trace
        if not len(document_sentences):
            return
        import pyarrow as pa

        ends = offsets(document_sentences)
        token_ends = offsets(sentence_lengths)[ends]
        columns = [
            pa.ListArray.from_arrays(token_ends.astype(np.int32), pa.array(ids)),
            pa.ListArray.from_arrays(ends.astype(np.int32), pa.array(sentence_lengths.astype(np.int32))),
        ]
        table = pa.Table.from_arrays(columns, schema=self._features.arrow_schema)
        first = 0
        while first < len(document_sentences):
            if self._sizes[2] >= self._shard_tokens:
                self._end_shard()
                self._begin_shard()
            limit = token_ends[first] + self._shard_tokens - self._sizes[2]
            stop = min(int(np.searchsorted(token_ends, limit)), len(document_sentences))
            self._writer.write_table(table.slice(first, stop - first))
            sizes = [offsets_[stop] - offsets_[first] for offsets_ in (ends, token_ends)]
            self._sizes += (stop - first, *sizes)
            first = stop

    def finish(self) -> SplitSize:
        """Ends the last shard, writes the list of shards that `datasets` reads, and returns the size of the split."""
        self._end_shard()
        state = json.loads((self._folder / "state.json").read_text())
        state |= {
            "_data_files": [{"filename": Path(shard.file).name} for shard in self.shards],
            "_fingerprint": self._fingerprint,  # else it would name the time of day
        }
        (self._folder / "state.json").write_text(json.dumps(state, indent=2, sort_keys=True), encoding="utf-8")
        digest = hashlib.sha256(b"".join(hash_.digest() for hash_ in self._hashes)).hexdigest()
        documents, sentences, tokens = np.sum([shard[1:4] for shard in self.shards], axis=0).tolist()
        return SplitSize(documents, sentences, tokens, self._dropped, digest)

    def _begin_shard(self) -> None:
        from datasets.arrow_writer import ArrowWriter

        self._path = self._folder / f"data-{len(self.shards):05d}.arrow"
        self._writer = ArrowWriter(path=str(self._path), features=self._features)
        self._sizes = np.zeros(3, np.int64)

    def _end_shard(self) -> None:
        self._writer.finalize()
        name = f"{self._name}/{self._path.name}"
        documents, sentences, tokens = self._sizes.tolist()
        with self._path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        self.shards.append(CorpusShard(name, documents, sentences, tokens, digest))

    def _save_empty_dataset(self) -> None:
        """Writes `state.json` and `dataset_info.json` as the installed `datasets` does."""
        import datasets

        silent = datasets.are_progress_bars_disabled()
        datasets.disable_progress_bars()
        try:
            empty = datasets.Dataset.from_dict({name: [] for name in self._features}, features=self._features)
            empty.save_to_disk(str(self._folder), num_shards=1)
        finally:
            if not silent:
                datasets.enable_progress_bars()
        for path in self._folder.glob("*.arrow"):
            path.unlink()
