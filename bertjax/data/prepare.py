"""Text to corpus: tokenizes all documents once, in one pass and bounded memory, into a folder named by its content.

What is done lies on the disk in parts (`parts.py`), so that a killed process goes on where it was. The folder is then
written under a temporary name and renamed, so a folder that has its name is complete, and of two processes that prepare
the same corpus at the same time one wins and both use its folder.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import shutil
import time
import uuid
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bertjax.config.data import FilterConfig
from bertjax.data.corpus import FORMAT_VERSION, SPLITS, CorpusShard, SplitSize, find_damage, read_meta
from bertjax.data.filters import DocumentFilter, EvaluationText, TextCheck, check_batch
from bertjax.data.parts import PartStore, ResumableFolder, SplitWriter
from bertjax.data.sources import is_held_out
from bertjax.data.tokenize_documents import (
    DocumentError,
    Splitter,
    TokenizedDocuments,
    batches,
    id_type,
    tokenize_documents,
)
from bertjax.data.tokenizer import Tokenizer
from bertjax.data.workers import DaskPool, WorkerDiedError, WorkerPool
from bertjax.errors import UserError
from bertjax.io.atomic import atomic_folder

if TYPE_CHECKING:
    from bertjax.data.workers import DaskPool, WorkerPool

DOCUMENTS_PER_BATCH = 10_000
MAX_DOCUMENT_TOKENS = 1 << 20  # longer documents are cut at sentence ends
SHARD_TOKENS = 1 << 26
CHARACTERS_BEFORE_WORKERS = 1 << 21  # text that is done before other processes would have started
SECONDS_TO_ABANDON = 24 * 3600
SECONDS_TO_ABANDON_PARTS = 7 * SECONDS_TO_ABANDON


class PreparedCorpus(NamedTuple):
    """A complete folder; `reused` is True when it was there already, `facts` counts what became of the documents.

    `unknown` is the number of unknown tokens, None in a folder of an earlier release; `check` samples what is lost.
    """

    folder: Path
    digest: str
    splits: Mapping[str, SplitSize]
    reused: bool
    facts: Mapping[str, int] = MappingProxyType({})
    unknown: int | None = None
    check: TextCheck = TextCheck()


@dataclasses.dataclass(frozen=True)
class CorpusRecipe:
    """Settings that determine a corpus besides its text and tokenizer; its digest covers them.

    `eval_fraction` 0 sends all documents to train, 1 all to eval, else `is_held_out` decides.
    A document of more than `max_document_tokens` tokens is split at sentence ends. A shard ends with the document
    with which it has `shard_tokens` tokens. Documents that quote `evaluation` are dropped.
    """

    eval_fraction: float
    filters: FilterConfig = dataclasses.field(default_factory=FilterConfig)
    max_document_tokens: int = MAX_DOCUMENT_TOKENS
    shard_tokens: int = SHARD_TOKENS
    evaluation: EvaluationText | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.eval_fraction <= 1:
            raise UserError(f"the held-out fraction must lie in [0, 1], not {self.eval_fraction}")


def corpus_digest(source_digest: str, tokenizer_digest: str, recipe: CorpusRecipe) -> str:
    """Returns the content address of a corpus: equal inputs give equal digests.

    Args:
        source_digest: Digest of the documents.
        tokenizer_digest: Digest of the tokenizer.
        recipe: Settings of the corpus.
    """
    parts: list[Any] = [FORMAT_VERSION, source_digest, tokenizer_digest, repr(float(recipe.eval_fraction))]
    parts += [recipe.max_document_tokens, recipe.shard_tokens, *recipe.filters.fingerprint]
    parts += [] if recipe.evaluation is None else [["evaluation", recipe.evaluation.digest]]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def prepare_corpus(
    documents: Iterable[str],
    *,
    source_name: str,
    source_digest: str,
    tokenizer: Tokenizer,
    split_sentences: Splitter,
    recipe: CorpusRecipe,
    cache_dir: Path,
    workers: int = 1,
    dask_scheduler: str | None = None,
    confirm: Callable[[], str] | None = None,
    progress: Callable[[int, int], None] | None = None,
    read_facts: Callable[[], Mapping[str, int]] = dict,
) -> PreparedCorpus:
    """Tokenizes documents into `<cache_dir>/<digest>` unless it exists, in one pass and bounded memory.

    A damaged directory is rebuilt with a warning.

    Args:
        documents: Documents in order.
        source_name: Name of the source, for messages.
        source_digest: Digest that changes whenever the documents or `split_sentences` do.
        tokenizer: Tokenizer of the corpus.
        split_sentences: Splits a document; worker processes always use `bertjax.data.sentence_splitter`.
        recipe: Settings of the corpus.
        cache_dir: Directory of all corpora.
        workers: Number of processes; more than one are separate programs.
        dask_scheduler: Address or file of the scheduler of a dask cluster that tokenizes instead of these processes.
        confirm: Returns the source digest again at the end, to detect a source that changed while it was read.
        progress: Receives (documents, UTF-8 bytes) done.
        read_facts: Returns counts of the reader for `meta.json`.

    Raises:
        UserError: The corpus is empty, a document cannot be tokenized, or a process died.
    """
    digest = corpus_digest(source_digest, tokenizer.digest, recipe)
    cache_dir = Path(cache_dir)
    folder = cache_dir / digest
    if _is_there(folder):
        return describe_corpus(folder)
    made_of = {
        "format_version": FORMAT_VERSION,
        "source": source_name,
        "source_digest": source_digest,
        "tokenizer_digest": tokenizer.digest,
        "vocab_size": tokenizer.size,
        "eval_fraction": recipe.eval_fraction,
        "max_document_tokens": recipe.max_document_tokens,
        "shard_tokens": recipe.shard_tokens,
        "filters": recipe.filters.fingerprint,
        "evaluation_digest": None if recipe.evaluation is None else recipe.evaluation.digest,
    }
    cache_dir.mkdir(parents=True, exist_ok=True)
    _sweep(cache_dir)
    private = cache_dir / f".{digest}.{uuid.uuid4().hex}.parts.tmp"
    with ResumableFolder(cache_dir / f".{digest}.parts", private) as position:
        if _is_there(folder):  # another process held the lock until now
            position.remove()
            return describe_corpus(folder)
        parts = PartStore(position.folder, recipe.max_document_tokens)
        filter_ = DocumentFilter(recipe.filters, recipe.evaluation)
        encoder = _Encoder(tokenizer, split_sentences, workers, dask_scheduler, source_name)
        _fill(parts, documents, filter_, encoder, recipe.eval_fraction, progress)
        if confirm is not None and confirm() != source_digest:
            position.remove()
            raise UserError(f"the text of {source_name} changed while it was being tokenized; start again")
        with atomic_folder(folder, replace=False) as temporary:
            splits, shards, counts, unknown = _write(temporary, parts, tokenizer, digest, recipe.shard_tokens)
            facts = {**read_facts(), **filter_.num_dropped, "kept": parts.documents}
            if not splits["eval" if recipe.eval_fraction >= 1 else "train"].tokens:
                position.remove()
                raise UserError(_why_empty(source_name, facts))
            np.save(temporary / "counts.npy", counts)
            sizes = {name: size._asdict() for name, size in splits.items()}
            lost = {"unknown": unknown, "check": parts.check()._asdict()}
            _write_meta(temporary, made_of | {"splits": sizes, "facts": facts, "shards": shards} | lost)
            if folder.exists() and find_damage(folder) is not None:
                shutil.rmtree(folder)
        position.remove()
    return describe_corpus(folder, reused=False)


def _is_there(folder: Path) -> bool:
    """Returns whether the corpus is complete; warns about a damaged one."""
    damage = find_damage(folder) if folder.exists() else "it is not there"
    if damage is not None and folder.exists():
        warnings.warn(f"the prepared corpus {folder} is damaged ({damage}) and is made again", stacklevel=3)
    return damage is None


class _Batch(NamedTuple):
    """Documents to tokenize, number `first` and on of those that the filter let through."""

    first: int
    documents: list[str]
    held_out: np.ndarray  # bool [documents]
    characters: int
    bytes: int


def _fill(
    parts: PartStore,
    documents: Iterable[str],
    filter_: DocumentFilter,
    encoder: _Encoder,
    eval_fraction: float,
    progress: Callable[[int, int], None] | None,
) -> None:
    """Tokenize what the parts do not hold yet."""
    done, size, first = parts.documents, 0, 0

    def todo() -> Iterator[_Batch]:
        nonlocal size, first
        for group in batches(documents, DOCUMENTS_PER_BATCH):
            saved = filter_.filter(group)
            if saved and first >= done:
                held_out = _held_out(saved, eval_fraction)
                yield _Batch(first, saved, held_out, sum(map(len, saved)), _utf8(saved))
            elif progress is not None:
                size += _utf8(saved)
                progress(first + len(saved), size)
            first += len(saved)

    for batch, encoded in encoder.map(todo()):
        parts.add(encoded, batch.held_out, batch.characters, check_batch(batch.documents, encoded, encoder.tokenizer))
        size += batch.bytes
        if progress is not None:
            progress(batch.first + len(batch.documents), size)
    parts.flush()
    if parts.documents != first:
        raise RuntimeError(f"{first} documents came and {parts.documents} are in the parts of {parts.folder}")


def _utf8(documents: list[str]) -> int:
    return sum(len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass")) for text in documents)


class _Encoder:
    """Tokenizes batches in this process, and in several others as soon as there is enough to do for them."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        split_sentences: Splitter,
        workers: int,
        dask_scheduler: str | None,
        source_name: str,
    ) -> None:
        self.tokenizer, self._split_sentences = tokenizer, split_sentences
        self._workers, self._dask_scheduler, self._source_name = workers, dask_scheduler, source_name

    def map(self, results: Iterator[_Batch]) -> Iterator[tuple[_Batch, TokenizedDocuments]]:
        """The batches in order, each with its tokens."""
        characters = 0
        for batch in results:
            if (self._workers > 1 or self._dask_scheduler) and characters >= CHARACTERS_BEFORE_WORKERS:
                yield from self._by_workers(itertools.chain([batch], results))
                return
            characters += batch.characters
            try:
                yield batch, tokenize_documents(batch.documents, self.tokenizer, self._split_sentences)
            except DocumentError as error_text:
                raise self._explain(batch, error_text) from error_text

    def _by_workers(self, results: Iterator[_Batch]) -> Iterator[tuple[_Batch, TokenizedDocuments]]:
        waiting: list[_Batch] = []

        def texts() -> Iterator[list[str]]:
            for batch in results:
                waiting.append(batch)
                yield batch.documents

        with self._start_pool() as processes:
            answers = processes.map(texts())
            while True:
                try:
                    encoded = next(answers, None)
                except DocumentError as error_text:
                    raise self._explain(waiting[0], error_text) from error_text
                except WorkerDiedError as died:
                    begin, end = waiting[0].first + 1, waiting[-1].first + len(waiting[-1].documents)
                    raise UserError(
                        f"tokenizing documents {begin:,} to {end:,} of {self._source_name} failed: {died} (out of "
                        "memory?); what is done is kept: start again, or with fewer processes, data.workers"
                    ) from died
                if encoded is None:
                    return
                yield waiting.pop(0), encoded

    def _start_pool(self) -> WorkerPool | DaskPool:
        if self._dask_scheduler is None:
            return WorkerPool(self.tokenizer, self._workers)
        return DaskPool(self.tokenizer, self._dask_scheduler)

    def _explain(self, batch: _Batch, error: DocumentError) -> UserError:
        text = " ".join(batch.documents[error.index][:200].split())[:60]
        return UserError(
            f"document {batch.first + error.index + 1:,} of source {self._source_name}, which begins {text!r}, cannot "
            f"be tokenized: {error.reason}"
        )


def _write(
    folder: Path, parts: PartStore, tokenizer: Tokenizer, digest: str, shard_tokens: int
) -> tuple[dict[str, SplitSize], dict[str, list[CorpusShard]], np.ndarray, int]:
    """Writes both splits from the parts; returns their sizes and shards, counts of train [V], and unknown tokens."""
    dtype = id_type(tokenizer.size)
    writers = {name: SplitWriter(folder, name, dtype, f"{digest}-{name}", shard_tokens) for name in SPLITS}
    counts, unknown = np.zeros(tokenizer.size, dtype=np.int64), 0
    for part in parts:
        for name, split in part.items():
            writers[name].add(split)
            unknown += int((split.ids == tokenizer.unk_id).sum())
        counts += np.bincount(part["train"].ids, minlength=len(counts))
    sizes = {name: writer.finish() for name, writer in writers.items()}
    return sizes, {name: writer.shards for name, writer in writers.items()}, counts, unknown


def _why_empty(source_name: str, facts: Mapping[str, int]) -> str:
    reasons = ("too_short", "too_long", "other_script", "contaminated", "duplicates", "near_duplicates")
    left_out = sum(facts.get(reason, 0) for reason in reasons)
    reason = "no documents"
    if facts["kept"]:
        reason = f"none of its {facts['kept']} documents gives its split a token"
    elif left_out:
        reason = (
            f"the filters (data.min_chars, max_chars, scripts, decontaminate) leave out all of its {left_out} documents"
        )
    return f"the corpus of source {source_name} is empty: {reason}; check its path and field"


def _held_out(documents: list[str], fraction: float) -> np.ndarray:
    """Returns bool [documents], True for eval."""
    if fraction in (0, 1):
        return np.full(len(documents), fraction == 1)
    return np.fromiter((is_held_out(document, fraction) for document in documents), bool, len(documents))


def _sweep(cache_dir: Path) -> None:
    """Removes leftovers of killed processes: directories without writes for a day, parts for a week."""
    for pattern, seconds in ((".*.tmp", SECONDS_TO_ABANDON), (".*.parts", SECONDS_TO_ABANDON_PARTS)):
        for folder in cache_dir.glob(pattern):
            written = [path.stat().st_mtime for path in (folder, *folder.rglob("*")) if path.exists()]
            if written and time.time() - max(written) > seconds:
                shutil.rmtree(folder, ignore_errors=True)


def _write_meta(folder: Path, meta: dict[str, Any]) -> None:
    files = {str(path.relative_to(folder)): path.stat().st_size for path in sorted(folder.rglob("*")) if path.is_file()}
    (folder / "meta.json").write_text(json.dumps(meta | {"files": files}, indent=2) + "\n", encoding="utf-8")


def describe_corpus(folder: Path, *, reused: bool = True) -> PreparedCorpus:
    """Returns the description of a complete corpus from its metadata."""
    meta = read_meta(folder)
    splits = {name: SplitSize(**meta["splits"][name]) for name in SPLITS}
    check = TextCheck(**meta.get("check", {}))
    return PreparedCorpus(folder, folder.name, splits, reused, meta.get("facts", {}), meta.get("unknown"), check)
