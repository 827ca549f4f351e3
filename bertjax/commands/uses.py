"""Flags and calls of the commands that only ask a trained model something; what is heavy is imported when called."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

USES = ("fill-mask", "embed", "minimal-pairs")
"""What only asks a trained model something."""
MODEL_HELP = "a Hugging Face folder, an export, or the work folder of a run"


def add_uses(command: Callable[[str, str], argparse.ArgumentParser]) -> None:
    """Declares their flags; `command` makes a parser of a name and a description."""
    sub = command("fill-mask", "what a model puts behind the [MASK]s of sentences")
    sub.add_argument("sentences", nargs="*", metavar="SENTENCE", help="none, or -: lines of the standard input")
    sub.add_argument("--model", type=Path, required=True, metavar="FOLDER", help=MODEL_HELP)
    sub.add_argument("--top", type=int, default=5, metavar="N", help="pieces for each mask (default 5)")
    sub.add_argument("--jsonl", action="store_true", help="print a JSON object for each sentence")
    sub = command("embed", "one vector for every text of a file")
    sub.add_argument("--model", type=Path, required=True, metavar="FOLDER", help=MODEL_HELP)
    sub.add_argument("--in", dest="source", required=True, metavar="FILE", help="one text a line, or .jsonl; -: stdin")
    sub.add_argument(
        "--out", type=Path, required=True, metavar="FILE", help="ends in .npz (holds `vectors`), .npy or .jsonl"
    )
    sub.add_argument("--field", default="text", metavar="NAME", help="of .jsonl: where the text is (default text)")
    sub.add_argument("--pooling", choices=("mean", "cls"), help="default: as the folder or run says, else mean")
    sub.add_argument(
        "--normalize",
        action=argparse.BooleanOptionalAction,
        help="scale vectors to length one (default: as the folder says, else not)",
    )
    sub.add_argument(
        "--max-length", type=int, metavar="N", help="tokens that are read of a text (default: all that the model can)"
    )
    sub.add_argument("--batch-tokens", type=int, metavar="N", help="tokens of a batch: less takes less memory")
    sub = command("minimal-pairs", "how often a model prefers the right one of two sentences (BLiMP)")
    sub.add_argument("--model", type=Path, required=True, metavar="FOLDER", help=MODEL_HELP)
    sub.add_argument(
        "--pairs", nargs="+", required=True, metavar="FILE", help=".jsonl with sentence_good, sentence_bad"
    )
    sub.add_argument(
        "--score",
        choices=("pll", "within-word", "likelihood"),
        help="pll hides each token in turn, within-word the rest of its word, too (default: likelihood of causal "
        "models, else pll)",
    )
    sub.add_argument("--by", metavar="FIELD", help="group pairs by it (default: phenomenon, linguistics_term or UID)")
    sub.add_argument("--out", type=Path, metavar="FILE", help="a .jsonl file for the scores of every pair")
    sub.add_argument("--batch-tokens", type=int, metavar="N", help="tokens of a batch: less takes less memory")


def run_use(options: argparse.Namespace) -> int:
    """Runs one of them; returns its exit code."""
    if options.command == "fill-mask":
        from bertjax.commands.fill_mask import fill_mask

        fill_mask(options.model, options.sentences, options.top, options.jsonl)
    elif options.command == "embed":
        from bertjax.commands.embed import Wishes, embed

        wishes = Wishes(options.pooling, options.normalize, options.max_length, options.batch_tokens)
        embed(options.model, options.source, options.out, options.field, wishes)
    else:
        from bertjax.commands.minimal_pairs import minimal_pairs

        minimal_pairs(options.model, options.pairs, options.score, options.by, options.out, options.batch_tokens)
    return 0
