"""Count how often a model prefers the correct sentence of a minimal pair (BLiMP)."""

from __future__ import annotations

import argparse
from pathlib import Path

from bertjax.commands.shared_flags import add_batch_tokens, add_model

EXAMPLE = "bertjax eval-minimal-pairs --model runs/quickstart --pairs 'blimp/*.jsonl'"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the flags of the command."""
    add_model(parser)
    add = parser.add_argument
    add("--pairs", nargs="+", required=True, metavar="FILE", help=".jsonl with sentence_good, sentence_bad")
    add(
        "--score",
        choices=("pll", "within-word", "likelihood"),
        help="pll masks each token in turn, within-word also the rest of its word (default: likelihood for causal "
        "models, pll for others)",
    )
    add("--group-by", metavar="FIELD", help="field to group by (default: phenomenon, linguistics_term or UID)")
    add("--out", type=Path, metavar="FILE", help="a .jsonl file for the scores of every pair")
    add_batch_tokens(parser)


def run(options: argparse.Namespace) -> None:
    """Prints the accuracy of every group."""
    from bertjax.experiment.eval_minimal_pairs import eval_minimal_pairs

    eval_minimal_pairs(options.model, options.pairs, options.score, options.group_by, options.out, options.batch_tokens)
