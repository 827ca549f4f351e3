"""Compares the speed of `bertjax prepare` with the tokenizer library alone, on your text.

    python scripts/prepare_speed.py corpus.txt.gz [--repeats 5] [--workers 2] [--vocab-size 16384]

The library gets the documents as a list of strings in memory, on all its threads: whole documents, and split into
sentences as they are stored. Preparing gets the path: it reads, cleans and splits the text, tokenizes it and writes the
corpus. Runs are interleaved; medians of wall-clock and of CPU seconds are compared, the latter for busy machines.
Tokenizers are trained on the text beforehand, and packages are imported.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import datasets  # noqa: F401 - preparing would import it in the first repeat

from bertjax.config.sources import Source, parse_source
from bertjax.data.prepare import DOCUMENTS_PER_BATCH, CorpusRecipe, prepare_corpus
from bertjax.data.sentence_splitter import split_sentences
from bertjax.data.sources import iter_documents
from bertjax.data.tokenize_documents import batches
from bertjax.data.tokenizer import Tokenizer
from bertjax.data.tokenizer_io import load_tokenizer, save_tokenizer
from bertjax.data.tokenizer_training import train_tokenizer

KINDS = {"wordpiece": "bert", "bpe": "roberta", "unigram": "albert"}
TRAINING_CHARACTERS = 5_000_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("text", help="a text file, documents separated by blank lines, or KIND:PATH")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--vocab-size", type=int, default=16384)
    parser.add_argument("--only", choices=KINDS, help="one kind of tokenizer")
    options = parser.parse_args()
    source = parse_source(options.text if ":" in options.text else f"text:{options.text}")
    documents = list(iter_documents(source))
    size = sum(map(len, documents)) / 1e6
    print(f"{len(documents):,} documents, {size:.1f} million characters, {options.workers} processes")
    print("| tokenizer | library, documents | library, sentences | preparing | of the faster library call | by CPU |")
    print("| --- | --- | --- | --- | --- | --- |")
    for kind, family in KINDS.items():
        if options.only not in (None, kind):
            continue
        with tempfile.TemporaryDirectory() as folder:
            tokenizer = train_tokenizer(
                documents, model=kind, family=family, vocab_size=options.vocab_size, max_chars=TRAINING_CHARACTERS
            )
            save_tokenizer(tokenizer, Path(folder) / "tokenizer")
            print(row(kind, source, documents, size, Path(folder), options.workers, options.repeats), flush=True)


def row(kind: str, source: Source, documents: list[str], size: float, folder: Path, workers: int, repeats: int) -> str:
    """Returns one line of the table; `size` in millions of characters."""
    sentences = [sentence for document in documents for sentence in split_sentences(document)]
    works: list[Callable[[Tokenizer, int], None]] = [
        lambda tokenizer, repeat: alone(tokenizer, documents),
        lambda tokenizer, repeat: alone(tokenizer, sentences),
        lambda tokenizer, repeat: prepared(tokenizer, repeat, source, folder, workers),
    ]
    clock: list[list[float]] = [[] for _ in works]
    processors: list[list[float]] = [[] for _ in works]
    for repeat in range(repeats):
        for number, work in enumerate(works):
            tokenizer = load_tokenizer(folder / "tokenizer")  # with an empty memory
            began, used = time.perf_counter(), processor_seconds()
            work(tokenizer, repeat)
            clock[number].append(time.perf_counter() - began)
            processors[number].append(processor_seconds() - used)
    seconds = [statistics.median(times) for times in clock]
    used_seconds = [statistics.median(times) for times in processors]
    speeds = " | ".join(f"{size / each:.2f}M characters/s" for each in seconds)
    return (
        f"| {kind} | {speeds} | {100 * min(seconds[:2]) / seconds[2]:.0f} % | "
        f"{100 * min(used_seconds[:2]) / used_seconds[2]:.0f} % |"
    )


def alone(tokenizer: Tokenizer, texts: list[str]) -> None:
    """Runs the library alone."""
    for part in batches(texts, DOCUMENTS_PER_BATCH):
        if tokenizer.kind == "unigram":
            tokenizer.library.encode(part, out_type=int, num_threads=len(os.sched_getaffinity(0)))
        else:
            tokenizer.library.encode_batch_fast(part, add_special_tokens=False)


def prepared(tokenizer: Tokenizer, repeat: int, source: Source, folder: Path, workers: int) -> None:
    """Prepares into a new folder."""
    prepare_corpus(
        iter_documents(source),
        source_name=source.text,
        source_digest=str(repeat),
        tokenizer=tokenizer,
        split_sentences=split_sentences,
        recipe=CorpusRecipe(eval_fraction=0.01),
        cache_dir=folder / "cache",
        workers=workers,
    )


def processor_seconds() -> float:
    """Returns the CPU seconds of this process and of its finished children."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


if __name__ == "__main__":
    main()
