"""Lines about prepared text: its progress, what was left out, and warnings where it would teach a model nothing."""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np
from ml_collections import ConfigDict

from bertjax.config.source_files import source_entries
from bertjax.config.sources import Source
from bertjax.data.filters import check_lines
from bertjax.data.readers import DocumentStats
from bertjax.io.progress_bar import ProgressBar

if TYPE_CHECKING:
    from bertjax.data.formats import ExampleFormat
    from bertjax.data.pipeline import PhasedPipeline
    from bertjax.data.prepare import PreparedCorpus
    from bertjax.data.tokenizer import Tokenizer

PAIR_FORMATS = ("nsp_pairs", "sop_pairs")
_SAMPLED, _FEWEST = 1000, 20  # pairs that are looked at, and that say something
_NEARLY_ALL = 0.95
_SENTENCES = 1.05  # per document: hardly any has two

DROPPED_DOCUMENTS = {
    "empty": "empty documents",
    "duplicates": "documents left out, whose text came before (data.deduplicate)",
    "near_duplicates": "documents left out, nearly equal to one before (data.near_duplicates)",
    "contaminated": "documents left out, which quote evaluation text (data.decontaminate)",
    "too_short": "documents left out, shorter than data.min_chars",
    "too_long": "documents left out, longer than data.max_chars",
    "other_script": "documents left out, mostly in other scripts than data.scripts",
    "cut": "gigantic documents cut into several",
    "invalid_lines": "lines with invalid UTF-8, replaced by U+FFFD",
    "control_characters": "control characters removed",
}


def dropped_document_lines(corpus: PreparedCorpus, tokenizer: Tokenizer) -> list[str]:
    """Returns one line per kind of document that a prepared corpus dropped or changed, and what its tokens lack."""
    lines = [f"{corpus.facts[name]:,} {text}" for name, text in DROPPED_DOCUMENTS.items() if corpus.facts.get(name)]
    dropped = sum(size.dropped_documents for size in corpus.splits.values())
    lines += [f"{dropped:,} documents left out, without a token"] if dropped else []
    unknown, sizes = corpus.unknown, corpus.splits
    tokens = sum(size.tokens for size in sizes.values())
    if unknown is None:  # made by an earlier release
        unknown, tokens = _count_in_train(corpus, tokenizer.unk_id), sizes["train"].tokens
    return lines + check_lines(corpus.check, unknown, tokens)


def _count_in_train(corpus: PreparedCorpus, index: int) -> int:
    return int(np.load(corpus.folder / "counts.npy", allow_pickle=False)[index]) if index >= 0 else 0


def corpus_warnings(data: ConfigDict, pipeline: PhasedPipeline, corpora: Mapping[str, PreparedCorpus]) -> list[str]:
    """Returns warnings about text that gives few sequences, or pairs of segments that teach nothing.

    Args:
        data: The group `data` of the config.
        pipeline: Batches of all phases.
        corpora: The corpus of every source.
    """
    tokens = sum(corpus.splits["train"].tokens for corpus in corpora.values())
    sources = {source.name: source.format for phase in pipeline.phases for source in phase.pipeline.sources}
    lines = []
    if data.example_format in PAIR_FORMATS:
        for name, form in sources.items():
            lines += [f"warning: {name}: {line}" for line in _about_pairs(data.example_format, form, corpora[name])]
    return lines + _unused_text_warning(pipeline, data.seq_len, tokens)


def _about_pairs(kind: str, form: ExampleFormat, corpus: PreparedCorpus) -> list[str]:
    part, size, lines = form.first_part(), corpus.splits["train"], list[str]()
    if count := min(part.num_sequences(0), _SAMPLED):
        batch = part.sequences(0, np.arange(count))
        labels = batch["pair_labels"][batch["example_weights"] > 0]
        share = max(labels.mean(), 1 - labels.mean())
    if count >= _FEWEST and share >= _NEARLY_ALL:
        lines.append(f"{share:.0%} of the pairs have the same label, {labels[0]}: nothing can be learnt from them")
    if size.sentences < _SENTENCES * size.documents:
        lines.append(
            "nearly all documents are one sentence, so that no second segment follows the first: is every sentence a "
            "document of its own, or do its sentences end without a mark? A line always is one"
        )
    if size.documents == 1 and kind == "nsp_pairs":
        lines.append("the text is one document, from which random second segments come, too; part it by blank lines")
    return lines


def _unused_text_warning(pipeline: PhasedPipeline, seq_len: int, tokens: int) -> list[str]:
    """Returns a warning if most of the text is in no sequence of an epoch."""
    reached = sum(pipeline.sequences_per_epoch.values()) * seq_len / tokens
    if reached >= 0.5:
        return []
    return [
        f"warning: the sequences of an epoch hold only {100 * reached:.0f} % of the tokens. Sentence pairs need "
        "documents of several sentences: is every sentence a document of its own (text: splits at blank lines)?"
    ]


_SECONDS_BETWEEN_LINES = 15.0
_SECONDS_BETWEEN_UPDATES = 0.2


class TokenizingProgress:
    """Reports the progress of preparing a corpus: a bar on a terminal, a line every 15 seconds elsewhere.

    Call it with (documents, bytes of text) done; `reading` counts how much of the source's files was read.
    """

    def __init__(
        self, source: Source, reading: DocumentStats, say: Callable[[str], None], interactive: bool | None = None
    ) -> None:
        self._source, self._reading, self._say = source, reading, say
        if say is not print and interactive is None:
            interactive = False
        self._bar = ProgressBar(f"tokenizing {source.text}", file=sys.stdout, percent=True, interactive=interactive)
        self._last = time.monotonic()

    @functools.cached_property
    def _total(self) -> int:
        return sum(entry.size for entry in source_entries(self._source).values())

    def __call__(self, documents: int, size: int) -> None:
        now = time.monotonic()
        if now - self._last < (_SECONDS_BETWEEN_UPDATES if self._bar.interactive else _SECONDS_BETWEEN_LINES):
            return
        self._last = now
        text = f"{documents:,} documents, {size / 2**20:,.0f} MiB"
        total = self._total
        if self._bar.interactive:
            self._bar.update(self._reading.bytes, total or None, text)
            return
        share = f" ({100 * self._reading.bytes / total:.0f} % of the files)" if total else ""
        self._say(f"tokenizing {self._source.text}: {text} so far{share}")

    def __enter__(self) -> TokenizingProgress:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()
