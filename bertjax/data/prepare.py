"""Text to corpus: tokenises all documents once, in one pass and bounded memory, into a folder named by its content.

The folder is written under a temporary name and renamed at the end, so a folder that has its name is complete, and of
two processes that prepare the same corpus at the same time one wins and both use its folder.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
import uuid
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from bertjax.data.corpus import FORMAT_VERSION, SPLITS, SplitSize, find_damage, offsets, read_meta
from bertjax.data.draws import IntArray
from bertjax.types import UserError

DOCUMENTS_PER_BATCH = 1000
MAX_DOCUMENT_TOKENS = 1 << 20  # longer documents are cut at sentence ends
CHARACTERS_PER_BATCH = 1 << 22  # of the documents held at once, and of the sentences of one tokenizer call
CHARACTERS_PER_SENTENCE = 1 << 18  # longer ones are cut: tokenizers need memory in proportion, or worse
SECONDS_TO_ABANDON = 24 * 3600


class CorpusTokenizer(Protocol):
    """What preparation asks of a tokenizer; `encode_batch` adds no special pieces."""

    @property
    def size(self) -> int: ...
    @property
    def digest(self) -> str: ...
    def encode_batch(self, texts: list[str], /) -> Sequence[np.ndarray]: ...


class PreparedCorpus(NamedTuple):
    """A complete folder; `reused` is True when it was there already."""

    folder: Path
    digest: str
    splits: Mapping[str, SplitSize]
    reused: bool


def corpus_digest(source_digest: str, tokenizer_digest: str, eval_fraction: float, max_document_tokens: int) -> str:
    """The content address of a corpus: equal inputs give equal folders, whatever libraries write them."""
    parts = [FORMAT_VERSION, source_digest, tokenizer_digest, repr(float(eval_fraction)), max_document_tokens]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def prepare_corpus(
    documents: Iterable[str],
    *,
    source_name: str,
    source_digest: str,
    tokenizer: CorpusTokenizer,
    split_sentences: Callable[[str], list[str]],
    eval_fraction: float,
    is_held_out: Callable[[str, float], bool],
    cache_dir: Path,
    max_document_tokens: int = MAX_DOCUMENT_TOKENS,
    progress: Callable[[int, int], None] | None = None,
) -> PreparedCorpus:
    """Tokenise `documents` into `<cache_dir>/<digest>` unless that is there; read once, in bounded memory.

    `source_digest` must change whenever the documents or `split_sentences` do. `eval_fraction` 0 sends all to train, 1
    all to eval, else `is_held_out(document, eval_fraction)` decides. A document of more than `max_document_tokens`
    tokens is cut at sentence ends into several. `progress` is told (documents, UTF-8 bytes) read so far. A damaged
    folder is made again with a warning. Raises `UserError` for an empty corpus and for ids outside the vocabulary.
    """
    digest = corpus_digest(source_digest, tokenizer.digest, eval_fraction, max_document_tokens)
    cache_dir = Path(cache_dir)
    folder = cache_dir / digest
    if folder.exists():
        damage = find_damage(folder)
        if damage is None:
            return _prepared(folder, reused=True)
        warnings.warn(f"the prepared corpus {folder} is damaged ({damage}) and is made again", stacklevel=2)
    temporary = cache_dir / f".{digest}.{uuid.uuid4().hex}.tmp"
    temporary.mkdir(parents=True)
    _sweep(cache_dir)
    try:
        pass_ = _Pass(temporary, source_name, tokenizer, split_sentences, max_document_tokens, digest)
        held_out = _held_out_rule(eval_fraction, is_held_out)
        done = size = 0
        for batch in _batches(documents, DOCUMENTS_PER_BATCH):
            pass_.add(batch, np.fromiter((held_out(text) for text in batch), bool, len(batch)))
            done += len(batch)
            size += sum(len(text.encode("utf-8", "surrogatepass")) for text in batch)
            if progress is not None:
                progress(done, size)
        splits = pass_.finish(required="eval" if eval_fraction >= 1 else "train")
        made_of = {
            "format_version": FORMAT_VERSION,
            "source": source_name,
            "source_digest": source_digest,
            "tokenizer_digest": tokenizer.digest,
            "vocab_size": tokenizer.size,
            "eval_fraction": eval_fraction,
            "max_document_tokens": max_document_tokens,
        }
        _write_meta(temporary, made_of | {"splits": {name: size._asdict() for name, size in splits.items()}})
        _publish(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return _prepared(folder, reused=False)


class _Pass:
    """The one pass over the documents: tokenises batch after batch and appends to both splits."""

    def __init__(
        self,
        folder: Path,
        source_name: str,
        tokenizer: CorpusTokenizer,
        split_sentences: Callable[[str], list[str]],
        max_document_tokens: int,
        digest: str,
    ) -> None:
        self._folder, self._source_name, self._tokenizer = folder, source_name, tokenizer
        self._split_sentences, self._max_document_tokens = split_sentences, max_document_tokens
        self._counts = np.zeros(tokenizer.size, dtype=np.int64)
        self._dtype = np.dtype(np.uint16 if tokenizer.size <= 1 << 16 else np.int32)
        self._writers = {name: _SplitWriter(folder, name, self._dtype, f"{digest}-{name}") for name in SPLITS}

    def add(self, documents: list[str], held_out: np.ndarray) -> None:
        """Tokenise documents; `held_out` bool [documents] sends each to eval or train."""
        sentences = [_cut(self._split_sentences(text)) for text in documents]
        lengths, ids = self._encode([sentence for group in sentences for sentence in group])
        document = np.repeat(np.arange(len(documents)), [len(group) for group in sentences])
        document, lengths = document[lengths > 0], lengths[lengths > 0]
        empty = np.bincount(document, minlength=len(documents)) == 0
        parts = self._part(document, lengths)
        for name, chosen in (("train", ~held_out), ("eval", held_out)):
            here = chosen[document]
            part_sentences = np.unique(parts[here], return_counts=True)[1]
            chosen_ids = ids[np.repeat(here, lengths)]
            self._writers[name].add(chosen_ids, lengths[here], part_sentences, int((chosen & empty).sum()))
            if name == "train":
                self._counts += np.bincount(chosen_ids, minlength=len(self._counts))

    def finish(self, required: str) -> dict[str, SplitSize]:
        """Close both splits and write `counts.npy`."""
        splits = {name: writer.finish() for name, writer in self._writers.items()}
        if not splits[required].tokens:
            seen = sum(size.documents + size.dropped_documents for size in splits.values())
            reason = f"none of its {seen} documents gives the {required} split a token" if seen else "no documents"
            raise UserError(f"the corpus of source {self._source_name} is empty: {reason}; check its path and field")
        np.save(self._folder / "counts.npy", self._counts)
        return splits

    def _encode(self, sentences: list[str]) -> tuple[IntArray, np.ndarray]:
        """The token counts of the sentences int64 [n], and all their ids end to end in the dtype of the corpus."""
        arrays = [ids for part in _batches(sentences, len(sentences)) for ids in self._tokenizer.encode_batch(part)]
        lengths = np.fromiter(map(len, arrays), np.int64, len(arrays))
        ids = np.concatenate(arrays) if arrays else np.zeros(0, np.int32)
        if ids.size and not 0 <= ids.min() <= ids.max() < self._tokenizer.size:
            wrong = int(ids.min()) if ids.min() < 0 else int(ids.max())
            raise UserError(
                f"the tokenizer gave id {wrong} for source {self._source_name}, outside its own vocabulary "
                f"of {self._tokenizer.size} pieces; its files do not belong together"
            )
        return lengths, ids.astype(self._dtype, copy=False)

    def _part(self, document: IntArray, lengths: IntArray) -> IntArray:
        """Numbers the stored document of each sentence: too long documents become several."""
        begins = offsets(lengths)[:-1]
        first = np.searchsorted(document, document)  # the document's first sentence
        piece = (begins - begins[first]) // self._max_document_tokens if len(document) else begins
        new = (np.diff(document, prepend=-1) != 0) | (np.diff(piece, prepend=-1) != 0)
        return np.cumsum(new)


class _SplitWriter:
    """Appends documents of one split to an Arrow file, hashing them, and saves it as a dataset at the end."""

    def __init__(self, folder: Path, name: str, dtype: np.dtype, fingerprint: str) -> None:
        import datasets
        from datasets.arrow_writer import ArrowWriter

        self._folder, self._raw, self._fingerprint = folder / name, folder / f"{name}.raw.arrow", fingerprint
        columns = {
            "input_ids": datasets.List(datasets.Value(dtype.name)),
            "sentence_lengths": datasets.List(datasets.Value("int32")),
        }
        self._features = datasets.Features(columns)
        self._writer = ArrowWriter(path=str(self._raw), features=self._features)
        self._sizes = np.zeros(4, dtype=np.int64)
        self._hashes = [hashlib.sha256() for _ in range(3)]

    def add(self, ids: np.ndarray, sentence_lengths: IntArray, document_sentences: IntArray, dropped: int) -> None:
        """`ids` of all documents end to end, tokens per sentence, sentences per document."""
        self._sizes += (len(document_sentences), len(sentence_lengths), len(ids), dropped)
        for hash_, array in zip(self._hashes, (ids, sentence_lengths, document_sentences), strict=True):
            hash_.update(array.astype("<i4").tobytes())  # three streams: batch limits leave no trace
        if not len(document_sentences):
            return
        import pyarrow as pa

        ends = offsets(document_sentences)
        columns = [
            pa.ListArray.from_arrays(offsets(sentence_lengths)[ends].astype(np.int32), pa.array(ids)),
            pa.ListArray.from_arrays(ends.astype(np.int32), pa.array(sentence_lengths.astype(np.int32))),
        ]
        self._writer.write_table(pa.Table.from_arrays(columns, schema=self._features.arrow_schema))

    def finish(self) -> SplitSize:
        import datasets

        self._writer.finalize()
        table = datasets.table.MemoryMappedTable.from_file(str(self._raw))
        whole = datasets.Dataset(table, fingerprint=self._fingerprint)  # else it would name the time of day
        silent = datasets.are_progress_bars_disabled()
        datasets.disable_progress_bars()
        try:
            whole.save_to_disk(str(self._folder), num_shards=None if len(whole) else 1)
        finally:
            if not silent:
                datasets.enable_progress_bars()
        del whole, table
        self._raw.unlink()
        digest = hashlib.sha256(b"".join(hash_.digest() for hash_ in self._hashes)).hexdigest()
        documents, sentences, tokens, dropped = self._sizes.tolist()
        return SplitSize(documents, sentences, tokens, dropped, digest)


def _held_out_rule(eval_fraction: float, is_held_out: Callable[[str, float], bool]) -> Callable[[str], bool]:
    if not 0 <= eval_fraction <= 1:
        raise UserError(f"the held-out fraction must lie in [0, 1], not {eval_fraction}")
    if eval_fraction in (0, 1):
        return lambda document: eval_fraction == 1
    return lambda document: is_held_out(document, eval_fraction)


def _batches(texts: Iterable[str], most: int) -> Iterator[list[str]]:
    """Groups of at most `most` texts and, unless a single text is longer, a few million characters."""
    group: list[str] = []
    characters = 0
    for text in texts:
        if group and (len(group) == most or characters + len(text) > CHARACTERS_PER_BATCH):
            yield group
            group, characters = [], 0
        group.append(text)
        characters += len(text)
    if group:
        yield group


def _cut(sentences: list[str]) -> list[str]:
    """Cuts gigantic sentences (texts without any punctuation), at a space where there is one."""
    if all(len(sentence) <= CHARACTERS_PER_SENTENCE for sentence in sentences):
        return sentences
    parts: list[str] = []
    for sentence in sentences:
        while len(sentence) > CHARACTERS_PER_SENTENCE:
            end = sentence.rfind(" ", 1, CHARACTERS_PER_SENTENCE)
            end = CHARACTERS_PER_SENTENCE if end < 0 else end
            parts.append(sentence[:end])
            sentence = sentence[end:]
        parts.append(sentence)
    return parts


def _sweep(cache_dir: Path) -> None:
    """Remove what killed processes left behind: temporary folders that nobody has written to for a day."""
    for folder in cache_dir.glob(".*.tmp"):
        written = [path.stat().st_mtime for path in (folder, *folder.rglob("*")) if path.exists()]
        if written and time.time() - max(written) > SECONDS_TO_ABANDON:
            shutil.rmtree(folder, ignore_errors=True)


def _publish(temporary: Path, folder: Path) -> None:
    """Give the finished folder its name; if another process was faster, its folder stands and ours goes."""
    if folder.exists() and find_damage(folder) is not None:
        aside = temporary.with_suffix(".damaged")
        os.rename(folder, aside)
        shutil.rmtree(aside, ignore_errors=True)
    try:
        os.rename(temporary, folder)
    except OSError:
        if find_damage(folder) is not None:
            raise


def _write_meta(folder: Path, meta: dict[str, Any]) -> None:
    files = {str(path.relative_to(folder)): path.stat().st_size for path in sorted(folder.rglob("*")) if path.is_file()}
    (folder / "meta.json").write_text(json.dumps(meta | {"files": files}, indent=2) + "\n", encoding="utf-8")


def _prepared(folder: Path, *, reused: bool) -> PreparedCorpus:
    splits = read_meta(folder)["splits"]
    return PreparedCorpus(folder, folder.name, {name: SplitSize(**splits[name]) for name in SPLITS}, reused)
