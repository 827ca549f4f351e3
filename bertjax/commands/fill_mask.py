"""Print the most likely tokens for every [MASK] of sentences."""

from __future__ import annotations

import argparse

from bertjax.commands.shared_flags import add_model

EXAMPLE = 'bertjax fill-mask --model runs/quickstart "Open the [MASK] for reading."'


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the flags of the command."""
    parser.add_argument("sentences", nargs="*", metavar="SENTENCE", help="none, or -: lines of the standard input")
    add_model(parser)
    parser.add_argument("--top-k", type=int, default=5, metavar="N", help="tokens per mask (default 5)")
    parser.add_argument("--jsonl", action="store_true", help="print one JSON object per sentence")


def run(options: argparse.Namespace) -> None:
    """Prints sentences and predictions."""
    from bertjax.experiment.fill_mask import fill_mask

    fill_mask(options.model, options.sentences, options.top_k, options.jsonl)
