"""Text made ready for a config: the prepared corpora and the pipelines, cached by their content."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from bertjax.config import inputs
from bertjax.config.data import DataConfig, FilterConfig, SourceMixtureConfig
from bertjax.config.fields import Reader, settings_of
from bertjax.config.model import encoder_config, reuse_len
from bertjax.config.objectives import STREAM_FORMATS
from bertjax.config.phases import list_phases, source_texts
from bertjax.config.sources import Source, read_list
from bertjax.data.corpus import Corpus, CorpusSplit, open_corpus
from bertjax.data.corpus_report import TokenizingProgress, dropped_document_lines
from bertjax.data.formats import ExampleFormat, make_format
from bertjax.data.little_text import cut_documents, hold_out_little
from bertjax.data.mixture import Mixing, mixing_from_config
from bertjax.data.pipeline import MixtureSource, PhaseBatches, PhasedPipeline, Pipeline, ProcessShare, all_sequences
from bertjax.data.prepare import CorpusRecipe, PreparedCorpus, corpus_digest, prepare_corpus
from bertjax.data.readers import DocumentStats
from bertjax.data.sentence_splitter import split_sentences
from bertjax.data.sharded_format import SequenceCounts, ShardedFormat
from bertjax.data.sources import iter_documents
from bertjax.data.text_store import fetch_folder, publish_folder
from bertjax.data.tokenizer import Tokenizer
from bertjax.data.tokenizer_from_config import (
    LogFunction,
    content_digest,
    evaluation_text,
    hash_parts,
    load_or_train_tokenizer,
    require_same_text,
    stored_url,
    tokenizer_folder,
)
from bertjax.errors import UserError
from bertjax.io import atomic
from bertjax.types import Batch, Vocabulary

_MIXTURE_KEYS = ("sources", *settings_of(SourceMixtureConfig))


@dataclasses.dataclass(frozen=True)
class Prepared:
    """A tokenizer and the corpora of all phases tokenized with it; `digests` name all in checkpoints.

    `lists` has the digests of files of sources, because weights and order in them count as well.
    """

    tokenizer: Tokenizer
    vocabulary: Vocabulary
    training: dict[str, PreparedCorpus]
    held_out: dict[str, PreparedCorpus]
    lists: dict[str, str] = dataclasses.field(default_factory=dict)
    formats: dict[str, ExampleFormat] = dataclasses.field(default_factory=dict, compare=False, repr=False)
    """Formats of the corpora, by what makes them."""

    @property
    def digests(self) -> dict[str, str]:
        """Digests of the tokenizer, the corpora and the lists of files, by name."""
        corpora = self.training | {f"eval:{name}": corpus for name, corpus in self.held_out.items()}
        named = {name: corpus.digest for name, corpus in corpora.items()}
        return {"tokenizer": self.tokenizer.digest} | named | self.lists


def prepare(cfg: ConfigDict, say: LogFunction = print) -> Prepared:
    """The tokenizer and corpora of a config, from the cache where they are there."""
    require_cache_dir(cfg)
    for cached in inputs.cache_folder(cfg).glob("*/"):
        atomic.sweep(cached)
    training, held_out = inputs.all_sources(cfg), inputs.eval_sources(cfg)
    folder, tokenizer = tokenizer_folder(cfg), load_or_train_tokenizer(cfg, say)
    fraction = 0.0 if held_out else cfg.data.eval_fraction
    named = dict(zip(source_names(training), training, strict=True))
    corpora = {name: _prepare_one(cfg, tokenizer, say, source, fraction) for name, source in named.items()}
    held_named = dict(zip(source_names(held_out), held_out, strict=True))
    held = {name: _prepare_one(cfg, tokenizer, say, source, 1.0) for name, source in held_named.items()}
    if not held and not any(corpus.splits["eval"].tokens for corpus in corpora.values()):
        held = hold_out_little(cfg, named, corpora, functools.partial(_prepare_one, cfg, tokenizer, say), say)
    require_same_text(cfg, folder)
    return join_prepared(cfg, tokenizer, corpora, held or corpora)


def join_prepared(
    cfg: ConfigDict, tokenizer: Tokenizer, training: dict[str, PreparedCorpus], held_out: dict[str, PreparedCorpus]
) -> Prepared:
    """Returns a tokenizer with corpora, its vocabulary with their counts, and the digests of files of sources.

    Args:
        cfg: Config of the run.
        tokenizer, training, held_out: those of `Prepared`.
    """
    counts = np.sum([open_corpus(corpus.folder)["train"].counts for corpus in training.values()], axis=0)
    texts = [*source_texts(cfg), *cfg.data.eval_sources]
    lists = {text: hash_parts(*read_list(text)) for text in texts if text.startswith("@")}
    return Prepared(tokenizer, tokenizer.vocabulary(counts), training, held_out, lists)


def require_cache_dir(cfg: ConfigDict) -> None:
    """Raises `UserError` if `data.cache_dir` neither exists nor can be made; if it can only be read, it may be full."""
    folder = inputs.cache_folder(cfg)
    if not folder.is_dir():
        atomic.require_writable("data.cache_dir", folder)


def training_pipeline(cfg: ConfigDict, prepared: Prepared, share: ProcessShare | None = None) -> PhasedPipeline:
    """Returns the endless batches of the training split, over all phases.

    A phase whose sequences are like those before it continues after them.

    Args:
        cfg: Config of the run.
        prepared: Its corpora and tokenizer.
        share: Selects the sequences of a batch that this process reads; None = all.
    """
    phases: list[PhaseBatches] = []
    listed = list_phases(cfg)
    stops = [*(phase.start for phase in listed[1:]), cfg.train.num_steps]
    training = inputs.all_sources(cfg)
    names = {source.origin: name for name, source in zip(source_names(training), training, strict=True)}
    totals: Counter[str] = Counter()  # sequences of every stream over the run
    for (start, current), stop in zip(listed, stops, strict=True):
        totals[str(current.data)] += (stop - start) * current.train.batch_size
    position: Counter[str] = Counter()  # where every stream continues
    used: dict[str, dict[str, int]] = {}  # sequences of every source, by what sequences are like
    for (start, current), stop in zip(listed, stops, strict=True):
        stream, sequences = str(current.data), current.train.batch_size
        mixing = mixing_from_config(current, totals[stream])
        weights = {names[source.origin]: source.weight for source in inputs.sources(current)}
        corpora = {name: prepared.training[name] for name in weights}
        pipeline = _pipeline(current, prepared, corpora, "train", weights, sequences, cfg.seed, mixing)
        form, first = str(dict(current.data) | dict.fromkeys(_MIXTURE_KEYS)), position[stream]
        pipeline.continue_at(first, used.get(form, {}))
        phases.append(PhaseBatches(start, first, pipeline))
        position[stream] += (stop - start) * sequences
        used[form] = used.get(form, {}) | pipeline.num_used(position[stream])
    return PhasedPipeline(phases, share or all_sequences)


def count_sequences(cfg: ConfigDict, prepared: Prepared) -> None:
    """Counts the sequences of all shards of corpora in several, so that no host opens one only to count them."""
    if any(len(open_corpus(corpus.folder)["train"].shards) > 1 for corpus in prepared.training.values()):
        training_pipeline(cfg, prepared)
        for form in prepared.formats.values():
            if isinstance(form, ShardedFormat):
                form.count_all()


def eval_sets(cfg: ConfigDict, prepared: Prepared, share: ProcessShare | None = None) -> dict[str, list[Batch]]:
    """Returns held-out batches of every source: the same examples for every seed, so that runs are comparable.

    Args:
        cfg: Config of the run or phase.
        prepared: Its corpora and tokenizer.
        share: Selects the sequences of a batch that this process reads; None = all.
    """
    require_held_out(prepared)
    sets = {}
    for name, corpus in prepared.held_out.items():
        if corpus.splits["eval"].tokens == 0:
            continue
        pipeline = _pipeline(cfg, prepared, {name: corpus}, "eval", {name: None}, cfg.eval.batch_size, seed=0)
        rows = slice(None) if share is None else share(cfg.eval.batch_size)
        sets[name] = list(pipeline.eval_batches(cfg.eval.num_batches, rows))
    return sets


def require_held_out(prepared: Prepared) -> None:
    """Raises `UserError` when there is nothing to evaluate on, before a run finds it out at its first evaluation."""
    if not any(corpus.splits["eval"].tokens for corpus in prepared.held_out.values()):
        raise UserError("no text is held out, because there is too little; give more, or data.eval_sources")


def _pipeline(
    cfg: ConfigDict,
    prepared: Prepared,
    corpora: dict[str, PreparedCorpus],
    split: str,
    weights: dict[str, float | None],
    batch_size: int,
    seed: int,
    mixing: Mixing | None = None,
) -> Pipeline:
    parts = []
    for name, prepared_corpus in corpora.items():
        corpus = open_corpus(prepared_corpus.folder)[split]
        form = _example_format(cfg, prepared, corpus, f"{prepared_corpus.digest}-{split}", batch_size, seed)
        parts.append(MixtureSource(name, form, weights[name], corpus))
    return Pipeline(parts, batch_size=batch_size, seed=seed, vocab_size=prepared.vocabulary.size, mixing=mixing)


def _example_format(
    cfg: ConfigDict, prepared: Prepared, corpus: CorpusSplit, digest: str, batch_size: int, seed: int
) -> ExampleFormat:
    """Returns the format of one corpus, equal for equal settings, so that phases share what it holds in memory."""
    data = cfg.data
    settings: dict[str, Any] = {
        "seq_len": data.seq_len,
        "seed": seed,
        "short_seq_prob": data.short_seq_prob,
        "dupe_factor": data.dupe_factor,
        "sop_drop_single_sentences": data.sop_drop_single_sentences,
        "packing": data.packing,
        "pack_window": data.pack_window,
        "max_examples": Reader(cfg)(DataConfig).max_examples,
    }
    if data.example_format in STREAM_FORMATS:
        settings |= {
            "batch_size": batch_size,
            "reuse_len": reuse_len(cfg),
            "bi_data": encoder_config(cfg).bi_data,
            "end_id": _document_end(prepared.tokenizer),
        }
    key = hash_parts(digest, data.example_format, settings, data.shuffle_shards)
    if key not in prepared.formats:

        def make(part: Corpus) -> ExampleFormat:
            return make_format(data.example_format, part, special_ids=prepared.vocabulary, **settings)

        is_stream = data.example_format in STREAM_FORMATS  # one text of many shards; else many texts, read together
        group_size, part_size = (1, data.shuffle_shards) if is_stream else (data.shuffle_shards, 1)
        if len(corpus.shards) < 2 * part_size:
            prepared.formats[key] = make(corpus.open())
        else:
            file = inputs.cache_folder(cfg) / "sequences" / f"{key}.npy"
            counts = SequenceCounts(file, stored_url(cfg, "sequences", file.name))
            prepared.formats[key] = ShardedFormat(
                corpus, make, group_size=group_size, part_size=part_size, counts=counts
            )
    return prepared.formats[key]


def _document_end(tokenizer: Tokenizer) -> int:
    """Returns the id that ends every document of a stream, -1 if the tokenizer has none (XLNet's has one)."""
    results = [index for index in tokenizer.special_ids if tokenizer.tokens[index] == "<eod>"]
    return results[0] if results else -1


def source_names(sources: Sequence[Source]) -> list[str]:
    """Returns a short unique name per source for metrics: `enwiki-train` for `text:data/enwiki/train.txt.gz`."""
    names: list[str] = []
    for source in sources:
        parts = [part for part in Path(source.where).parts[-2:] if part not in ("/", ".", "..")]
        stem = "-".join(part.split(".")[0] for part in parts) if source.kind != "builtin" else source.where
        name = "".join(char if char.isalnum() or char in "-_" else "-" for char in stem).strip("-") or source.kind
        names.append(name if name not in names else f"{name}-{len(names) + 1}")
    return names


def sequences_if_prepared(cfg: ConfigDict) -> int | None:
    """Rows of an epoch, or None while tokenizer or corpora are not in the cache; prepares nothing."""
    folder = tokenizer_folder(cfg)
    if folder is not None and not folder.exists():
        return None
    tokenizer = load_or_train_tokenizer(cfg)
    fraction = 0.0 if cfg.data.eval_sources else cfg.data.eval_fraction
    selected = [(source, fraction) for source in inputs.all_sources(cfg)] + [
        (source, 1.0) for source in inputs.eval_sources(cfg)
    ]
    folders = [
        inputs.cache_folder(cfg)
        / "corpora"
        / corpus_digest(content_digest(source, cfg), tokenizer.digest, _recipe(cfg, share))
        for source, share in selected
    ]
    if not all(results.exists() for results in folders):
        return None
    return sum(training_pipeline(cfg, prepare(cfg)).sequences_per_epoch.values())


def _prepare_one(
    cfg: ConfigDict, tokenizer: Tokenizer, say: LogFunction, source: Source, eval_fraction: float, part: str = ""
) -> PreparedCorpus:
    def content_of() -> str:
        return hash_parts(content_digest(source, cfg), part) if part else content_digest(source, cfg)

    content, recipe = content_of(), _recipe(cfg, eval_fraction)
    digest = corpus_digest(content, tokenizer.digest, recipe)
    url = stored_url(cfg, "corpora", digest)
    is_stored = url is not None and fetch_folder(url, inputs.cache_folder(cfg) / "corpora" / digest, "meta.json")
    reading = DocumentStats()
    documents = iter_documents(source, cfg.data.encoding_errors, reading)
    with TokenizingProgress(source, reading, say) as progress:
        corpus = prepare_corpus(
            cut_documents(documents, part) if part else documents,
            source_name=source.text,
            source_digest=content,
            tokenizer=tokenizer,
            split_sentences=split_sentences,
            recipe=recipe,
            cache_dir=inputs.cache_folder(cfg) / "corpora",
            workers=cfg.data.workers or _cores(),
            dask_scheduler=cfg.data.dask_scheduler,
            confirm=content_of,
            progress=progress,
            read_facts=reading.facts,
        )
    if url is not None and not is_stored:
        publish_folder(url, corpus.folder, "meta.json")
    if not corpus.reused:
        parts = [
            f"{size.tokens:,} tokens in {size.documents:,} documents ({split})"
            for split, size in corpus.splits.items()
            if size.documents
        ]
        say(f"tokenized {source.text}: {', '.join(parts)}")
        if (evaluation := recipe.evaluation) is not None and evaluation.num_ignored:
            say(f"  {evaluation.num_ignored:,} of {evaluation.num_texts:,} evaluation texts ignored: less than 8 words")
        for line in dropped_document_lines(corpus, tokenizer):
            say(f"  {line}")
    return corpus


def _cores() -> int:
    """Processor cores that this process may use; not every system can tell."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _recipe(cfg: ConfigDict, eval_fraction: float) -> CorpusRecipe:
    filters = Reader(cfg)(FilterConfig)
    return CorpusRecipe(eval_fraction, filters, shard_tokens=cfg.data.shard_tokens, evaluation=evaluation_text(cfg))


def total_tokens(prepared: Prepared) -> int:
    """Tokens of the training split of all sources."""
    return int(np.sum([corpus.splits["train"].tokens for corpus in prepared.training.values()]))
