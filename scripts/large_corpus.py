"""Measures reading a corpus of many shards: 10**12 tokens by default, simulated by hard links to a real one.

    python scripts/large_corpus.py copies OUT FILE... --copies 16     # perturbed copies of real text, as OUT/*.txt
    python scripts/large_corpus.py measure [--tokens 1e12] [--config bert:base] --config.data.sources=text:OUT/*.txt ...

`copies` writes every document of the files (separated by blank lines) in several versions, in each of which a tenth of
the words is replaced by other words of the document. `measure` prepares the corpus of the config unless it is cached,
makes a folder in which every shard has several names until they hold so many tokens, and reads batches as training
does: the first one and the next ones; then it counts the sequences of all shards, as `bertjax prepare` does; then one
in the middle of the epoch, as a resumed run, and random ones. Memory is what the process itself holds (RssAnon); the
files are mapped.
"""

from __future__ import annotations

import argparse
import dataclasses
import gzip
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from bertjax.config.overrides import apply_overrides, load_config
from bertjax.data import from_config
from bertjax.data.corpus import open_corpus, read_meta
from bertjax.data.pipeline import PhasedPipeline
from bertjax.data.prepare import describe_corpus
from bertjax.data.sharded_format import ShardedFormat
from bertjax.experiment.config import parse

REPLACED = 0.1


def write_copies(files: list[str], out: Path, copies: int) -> None:
    """Writes perturbed copies of the documents of some files, one file per copy."""
    documents = [document for file in files for document in read_documents(file)]
    out.mkdir(parents=True, exist_ok=True)
    for copy in range(copies):
        rng = np.random.default_rng(copy)
        with (out / f"{copy:04d}.txt").open("w") as file:
            for number in rng.permutation(len(documents)):
                lines = [line.split(" ") for line in documents[number].split("\n")]
                words = [word for line in lines for word in line]
                for line in lines:
                    for position in np.flatnonzero(rng.random(len(line)) < REPLACED):
                        line[position] = words[rng.integers(len(words))]
                file.write("\n".join(" ".join(line) for line in lines) + "\n\n")


def read_documents(file: str) -> Iterator[str]:
    """Yields the documents of a file."""
    with gzip.open(file, "rt") if file.endswith(".gz") else open(file) as text:
        yield from (document.strip() for document in text.read().split("\n\n") if document.strip())


def simulate(real: Path, folder: Path, tokens: float) -> None:
    """Makes a corpus of at least so many training tokens whose shards are links to those of a real one."""
    meta = read_meta(real)
    shards = meta["shards"]["train"]
    for name in ("train", "eval"):
        (folder / name).mkdir(parents=True)
    for name in ("counts.npy", *(shard[0] for shard in meta["shards"]["eval"])):
        shutil.copyfile(real / name, folder / name)
    linked: list[list[str]] = []
    total = 0
    while total < tokens:
        shard = shards[len(linked) % len(shards)]
        name = f"train/data-{len(linked):05d}.arrow"
        os.link(real / shard[0], folder / name)
        linked.append([name, *shard[1:]])
        total += shard[3]
    sizes = np.sum([shard[1:4] for shard in linked], axis=0).tolist()
    meta["splits"]["train"] |= dict(zip(("documents", "sentences", "tokens"), sizes, strict=True))
    meta["shards"]["train"] = linked
    meta["files"] = {str(p.relative_to(folder)): p.stat().st_size for p in sorted(folder.rglob("*")) if p.is_file()}
    (folder / "meta.json").write_text(json.dumps(meta))


def memory() -> int:
    """Returns the bytes that this process holds by itself."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


class Clock:
    """Prints what took how long."""

    def __init__(self) -> None:
        self._began = time.perf_counter()

    def lap(self, text: str, count: int = 1) -> None:
        """Prints a line, and begins the next one."""
        seconds = (time.perf_counter() - self._began) / count
        print(f"{text:60} {seconds:10.4f} s   {memory() / 1e6:8.0f} MB", flush=True)
        self._began = time.perf_counter()


def open_pipeline(options: argparse.Namespace, rest: list[str], folder: Path) -> PhasedPipeline:
    """Returns the batches of a config, read from `folder`."""
    cfg = load_config(options.config)
    apply_overrides(cfg, rest)
    parse(cfg)
    prepared = from_config.prepare(cfg)
    (name,) = prepared.training
    corpus = describe_corpus(folder)
    return from_config.training_pipeline(cfg, dataclasses.replace(prepared, training={name: corpus}))


def measure(options: argparse.Namespace, rest: list[str], folder: Path) -> None:
    """Prints the table; in a process of its own."""
    clock = Clock()
    before = memory()
    pipeline = open_pipeline(options, rest, folder)
    clock.lap(f"{options.case}: open ({before / 1e6:.0f} MB before)")
    (source,) = pipeline.phases[0].pipeline.sources
    tokens = sum(shard.tokens for shard in open_corpus(folder)["train"].shards)
    sequences = pipeline.sequences_per_epoch[source.name]
    size = pipeline.phases[0].pipeline.batch_size
    middle = sequences // 2 // size
    if options.case == "start":
        print(f"{tokens:,} tokens, {len(open_corpus(folder)['train'].shards):,} shards, about {sequences:,} sequences")
        pipeline.batch(0)
        clock.lap("first batch")
        for cursor in range(1, 201):
            pipeline.batch(cursor)
        clock.lap(f"next 200 batches of {size}, per batch", 200)
        rng = np.random.default_rng(0)
        for _ in range(200):
            pipeline.batch(int(rng.integers(0, 1000)))
        clock.lap(f"200 random ones of the first thousand, per batch of {size}", 200)
    elif options.case == "count":
        assert isinstance(source.format, ShardedFormat)
        source.format.count_all()
        clock.lap("counting")
    else:
        pipeline.batch(middle)
        clock.lap(f"batch {middle:,}, in the middle of the epoch")
        pipeline.batch(middle + 1)
        clock.lap("the next batch")
        rng = np.random.default_rng(0)
        for _ in range(10):
            pipeline.batch(int(rng.integers(0, 2 * middle)), slice(0, size // 8))
        clock.lap("10 random batches of the whole epoch, an eighth of the rows", 10)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("copies", "measure"))
    parser.add_argument("out", nargs="?", type=Path)
    parser.add_argument("files", nargs="*")
    parser.add_argument("--copies", type=int, default=16)
    parser.add_argument("--tokens", type=float, default=1e12)
    parser.add_argument("--config", default="bert:base")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options, rest = parser.parse_known_args()
    if options.command == "copies":
        write_copies(options.files, options.out, options.copies)
    elif options.case:
        measure(options, rest, options.folder)
    else:
        cfg = load_config(options.config)
        apply_overrides(cfg, rest)
        parse(cfg)
        (real,) = from_config.prepare(cfg).training.values()
        with tempfile.TemporaryDirectory(dir=real.folder.parent) as folder:
            clock = Clock()
            simulate(real.folder, Path(folder) / "corpus", options.tokens)
            clock.lap("links")
            for case in ("start", "count", "resume"):
                arguments = ["--case", case, "--folder", str(Path(folder) / "corpus")]
                subprocess.run([sys.executable, *sys.argv, *arguments], check=True)


if __name__ == "__main__":
    main()
