"""Correlate cosine similarities of sentence pairs with gold scores (STS)."""

from __future__ import annotations

import argparse

from bertjax.commands.shared_flags import add_header, add_model, add_pooling

EXAMPLE = "bertjax eval-sts --model runs/simcse --pairs tsv:sts-dev.tsv"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the flags of the command."""
    add_model(parser)
    add = parser.add_argument
    add("--pairs", nargs="+", required=True, metavar="SOURCE", help="tsv:, csv:, jsonl: or hub:, as in task.train")
    add("--text-column", metavar="COLUMN", help="column of the first text (default: text)")
    add("--pair-column", default="pair", metavar="COLUMN", help="column of the second text (default: pair)")
    add("--label-column", metavar="COLUMN", help="column of the similarity, on any scale (default: label)")
    add_header(parser)
    add_pooling(parser)


def run(options: argparse.Namespace) -> None:
    """Prints Spearman's and Pearson's correlation."""
    from bertjax.experiment.embed import EmbedOptions
    from bertjax.experiment.eval_sts import eval_sts

    columns = options.text_column, options.pair_column, options.label_column
    pooling = EmbedOptions(options.pooling, None, options.max_length, options.batch_tokens)
    eval_sts(options.model, options.pairs, columns, options.header, pooling)
