"""Measure the training step of a config, alone or next to transformers."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

REQUIRES_CONFIG = True
EXAMPLE = "bertjax benchmark --config bert:mini --baseline hf"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the flags of the command."""
    add = parser.add_argument
    add("--baseline", choices=("hf",), help="hf: transformers and PyTorch, same weights and text, interleaved")
    add("--repeats", type=int, default=5, help="timed repeats per side (default 5)")
    add("--steps", type=int, default=10, help="steps per repeat (default 10)")
    add("--warmup", type=int, default=3, help="steps before the first repeat (default 3)")
    add("--no-compile", action="store_true", help="do not try torch.compile for the baseline")
    add("--out", type=Path, metavar="FILE", help="JSON file for all metrics")


def run(options: argparse.Namespace) -> None:
    """Prints times and throughput."""
    if options.baseline is not None:
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # the baseline needs device memory as well
    from bertjax.benchmark.run import BenchmarkCounts, benchmark

    counts = BenchmarkCounts(options.repeats, options.steps, options.warmup)
    benchmark(options.config, counts, options.baseline, not options.no_compile, options.out)
