"""Tokenize the corpus of a config once, into a cache keyed by content."""

from __future__ import annotations

import argparse

REQUIRES_CONFIG = True
EXAMPLE = "bertjax prepare --config bert:base --config.data.sources='text:corpus/*.txt.gz'"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares no flag beyond `--config`."""


def run(options: argparse.Namespace) -> None:
    """Fills the cache and prints what it holds."""
    from bertjax.data import from_config

    cfg = options.config
    prepared = from_config.prepare(cfg)
    from_config.count_sequences(cfg, prepared)
    pipeline = from_config.training_pipeline(cfg, prepared)
    sequences = pipeline.sequences_per_epoch
    for name, corpus in prepared.training.items():
        size = corpus.splits["train"]
        print(
            f"{name}: {size.documents:,} documents, {size.sentences:,} sentences, {size.tokens:,} tokens, "
            f"{sequences[name]:,} sequences per epoch; {corpus.folder}"
        )
        for line in from_config.losses(corpus) if corpus.reused else ():  # `prepare` has printed them for a new corpus
            print(f"  {line}")
    for line in pipeline.mixture_lines(cfg.train.num_steps):
        print(f"in a run of {cfg.train.num_steps:,} steps, {line}")
    for line in from_config.few_rows_warning(cfg, prepared, sum(sequences.values())):
        print(line)
    for name, corpus in prepared.held_out.items():
        size = corpus.splits["eval"]
        print(f"{name}, held out: {size.documents:,} documents, {size.tokens:,} tokens")
