"""Packing on a corpus: padding, examples a row, examples planned and tokens read per second, bytes of a plan.

    python scripts/packing_speed.py [--config configs/bert.py:base] [--lengths 128 512 1024] [--copies 1]
        [--forms block doc_sentences full_sentences nsp_pairs sop_pairs] --config.data.sources=text:corpus/*.txt

The corpus of the config is prepared, if it is not in the cache. `--copies` says how often the lengths of the corpus are
repeated where planning is timed, so that a small corpus shows the speed of a large one; padding is that of the corpus
itself. Everything runs on one thread; the best of three is shown.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from bertjax import check, corpora
from bertjax.data.corpus import Corpus, open_corpus
from bertjax.data.forms import SINGLE, make_form
from bertjax.data.forms.packed import Packed
from bertjax.data.packing import plan_rows
from bertjax.overrides import apply_overrides, load_config
from bertjax.types import Vocabulary

CONFIG = Path(__file__).parents[1] / "configs" / "bert.py"
ROWS_READ = 256


def seconds(work: Callable[[], object], repeats: int = 3) -> float:
    """The least of a few times."""
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        work()
        times.append(time.perf_counter() - begin)
    return min(times)


def measure(corpus: Corpus, vocabulary: Vocabulary, name: str, length: int, options: argparse.Namespace) -> str:
    """One line of the table."""
    most = options.most or max(8, length // 32)
    window = options.window
    form = make_form(
        name,
        corpus,
        seq_len=length,
        seed=0,
        special_ids=vocabulary,
        packing="best_fit",
        pack_window=window,
        max_examples=most,
    )
    assert isinstance(form, Packed)
    lengths = form.form.lengths(0)
    rows = form.num_rows(0)
    bare = 1.0 - lengths.sum() / (len(lengths) * length)
    many = np.tile(lengths, options.copies)
    plan = plan_rows(many, seq_len=length, most=most, window=window, seed=0, epoch=0)
    planning = seconds(lambda: plan_rows(many, seq_len=length, most=most, window=window, seed=0, epoch=1))
    some = np.arange(min(ROWS_READ, rows))
    form.rows(0, some)
    read = form.rows(0, some)
    reading = seconds(lambda: form.rows(0, some))
    tokens = int((read["segment_ids"] > 0).sum())
    return (
        f"{name:15} {length:5} {len(lengths):9,} {rows:9,} {len(lengths) / rows:5.2f} {100 * bare:7.2f} "
        f"{100 * form.padding(0):7.2f} {len(many) / planning / 1e6:8.2f} {plan.num_bytes / len(many):7.1f} "
        f"{tokens / reading / 1e6:8.1f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", default=str(CONFIG), help="a config file")
    parser.add_argument("--lengths", type=int, nargs="+", default=[128, 512, 1024], help="tokens of a row")
    parser.add_argument("--forms", nargs="+", default=list(SINGLE), choices=list(SINGLE), help="what rows hold")
    parser.add_argument("--copies", type=int, default=1, help="how often lengths are repeated where planning is timed")
    parser.add_argument("--most", type=int, default=0, help="most examples in a row; 0 = as the config would have it")
    parser.add_argument("--window", type=int, default=1 << 20, help="examples packed together")
    options, rest = parser.parse_known_args()
    cfg = load_config(options.config)
    apply_overrides(cfg, rest)
    check.check(cfg)
    prepared = corpora.prepare(cfg)
    print("form             tokens  examples    rows  a row unpacked  packed  M ex./s  B/ex.  M tokens/s read")
    print("                                               padding %  padding %")
    for part in prepared.training.values():
        corpus = open_corpus(part.folder)["train"]
        for name in options.forms:
            for length in options.lengths:
                print(measure(corpus, prepared.vocabulary, name, length, options), flush=True)


if __name__ == "__main__":
    main()
