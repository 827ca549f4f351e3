"""Write one vector per text of a file."""

from __future__ import annotations

import argparse
from pathlib import Path

from bertjax.commands.shared_flags import add_model, add_pooling

EXAMPLE = "bertjax embed --model runs/quickstart --in texts.txt --out vectors.npz"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the flags of the command."""
    add_model(parser)
    add = parser.add_argument
    add("--in", dest="source", required=True, metavar="FILE", help="one text per line, or .jsonl; -: stdin")
    add("--out", type=Path, required=True, metavar="FILE", help="ends in .npz (holds `vectors`), .npy or .jsonl")
    add("--text-column", default="text", metavar="NAME", help="field of the text in .jsonl (default text)")
    add(
        "--normalize",
        action=argparse.BooleanOptionalAction,
        help="scale vectors to length one (default: as the folder says, else not)",
    )
    add_pooling(parser)


def run(options: argparse.Namespace) -> None:
    """Writes the vectors in the order of the texts."""
    from bertjax.experiment.embed import EmbedOptions, embed

    pooling = EmbedOptions(options.pooling, options.normalize, options.max_length, options.batch_tokens)
    embed(options.model, options.source, options.out, options.text_column, pooling)
