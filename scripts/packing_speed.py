"""Measures packing on a corpus: padding, examples per sequence, examples planned and tokens read per second.

    python scripts/packing_speed.py [--config bert:base] [--lengths 128 512 1024] [--copies 1]
        [--forms block doc_sentences full_sentences nsp_pairs sop_pairs] --config.data.sources=text:corpus/*.txt

The corpus of the config is prepared unless cached. `--copies` repeats the lengths of the corpus where planning is
timed, so that a small corpus shows the speed of a large one; padding is that of the corpus itself, without packing,
packed, and the lower bound of any packing of these examples. Tokens are read as in training: whole batches with checked
ids, and the words of every token. Everything runs on one thread; seconds are CPU seconds, the best of three.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from bertjax.config.overrides import apply_overrides, load_config
from bertjax.data import from_config
from bertjax.data.corpus import Corpus, open_corpus
from bertjax.data.formats import PACKABLE, PackedFormat, make_format
from bertjax.data.packing import plan_packing
from bertjax.data.pipeline import MixtureSource, Pipeline
from bertjax.experiment.config import parse
from bertjax.types import Vocabulary

CONFIG = Path(__file__).parents[1] / "configs" / "bert.py"
TOKENS_A_BATCH = 1 << 17
BATCHES = 8


def seconds(work: Callable[[], object], repeats: int = 3) -> float:
    """Returns the least CPU seconds of a few calls."""
    times = []
    for _ in range(repeats):
        begin = time.process_time()
        work()
        times.append(time.process_time() - begin)
    return min(times)


def measure(corpus: Corpus, vocabulary: Vocabulary, name: str, length: int, options: argparse.Namespace) -> str:
    """Returns one line of the table."""
    max_examples = options.most or max(8, length // 32)
    window = options.window
    form = make_format(
        name,
        corpus,
        seq_len=length,
        seed=0,
        special_ids=vocabulary,
        packing="best_fit",
        pack_window=window,
        max_examples=max_examples,
    )
    assert isinstance(form, PackedFormat)
    lengths = form.unpacked.lengths(0)
    rows = form.num_sequences(0)
    bare = 1.0 - lengths.sum() / (len(lengths) * length)
    many = np.tile(lengths, options.copies)
    plan = plan_packing(many, seq_len=length, max_examples=max_examples, window=window, seed=0, epoch=0)
    planning = seconds(
        lambda: plan_packing(many, seq_len=length, max_examples=max_examples, window=window, seed=0, epoch=1)
    )
    minimum = 1.0 - lengths.sum() / (fewest_rows(lengths, length) * length)
    return (
        f"{name:15} {length:5} {len(lengths):9,} {rows:9,} {len(lengths) / rows:5.2f} {100 * bare:7.2f} "
        f"{100 * form.padding(0):7.2f} {100 * minimum:7.2f} {len(many) / planning / 1e6:8.2f} "
        f"{plan.num_bytes / len(many):7.1f} {reading_speed(form, vocabulary) / 1e6:8.1f}"
    )


def fewest_rows(lengths: np.ndarray, seq_len: int) -> int:
    """Returns a lower bound on packed sequences for these lengths (bound L2 of Martello and Toth, 1990)."""
    count = np.bincount(lengths, minlength=seq_len + 1)
    examples, tokens = np.cumsum(count), np.cumsum(count * np.arange(seq_len + 1))
    half = seq_len // 2  # two longer ones never share a row
    large, bound = int(examples[seq_len] - examples[half]), 0
    for minimum in range(half + 1):  # what is shorter than this may fill every gap
        alone = seq_len - minimum  # what is longer shares its row with none of the others
        capacity = (examples[alone] - examples[half]) * seq_len - (tokens[alone] - tokens[half])
        small = tokens[half] - (tokens[minimum - 1] if minimum else 0)
        bound = max(bound, large - int((capacity - small) // seq_len) if small > capacity else large)
    return bound


def reading_speed(form: PackedFormat, vocabulary: Vocabulary) -> float:
    """Returns tokens per second, word ids included."""
    batch_size = max(TOKENS_A_BATCH // form.settings.seq_len, 1)
    pipeline = Pipeline([MixtureSource("corpus", form)], batch_size=batch_size, seed=0, vocab_size=vocabulary.size)

    def read() -> int:
        tokens = 0
        for cursor in range(BATCHES):
            batch = pipeline.batch(cursor)
            np.cumsum(vocabulary.starts_word[batch["input_ids"]], axis=1, dtype=np.int32)
            tokens += int((batch["segment_ids"] > 0).sum())
        return tokens

    return read() / seconds(read)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", default=str(CONFIG), help="a config file")
    parser.add_argument("--lengths", type=int, nargs="+", default=[128, 512, 1024], help="tokens of a row")
    parser.add_argument("--forms", nargs="+", default=list(PACKABLE), choices=list(PACKABLE), help="what rows hold")
    parser.add_argument("--copies", type=int, default=1, help="how often lengths are repeated where planning is timed")
    parser.add_argument("--most", type=int, default=0, help="most examples in a row; 0 = as the config would have it")
    parser.add_argument("--window", type=int, default=1 << 20, help="examples packed together")
    options, rest = parser.parse_known_args()
    cfg = load_config(options.config)
    apply_overrides(cfg, rest)
    parse(cfg)
    prepared = from_config.prepare(cfg)
    print("form           tokens  examples      rows   a row    padding % of rows      planned   plan      read")
    print("                                          unpacked  packed   least   M ex./s   B/ex.  M tok./s")
    for part in prepared.training.values():
        corpus = open_corpus(part.folder)["train"].open()
        for name in options.forms:
            for length in options.lengths:
                print(measure(corpus, prepared.vocabulary, name, length, options), flush=True)


if __name__ == "__main__":
    main()
