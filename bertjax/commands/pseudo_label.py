"""Label texts with a larger model, and measure how reliable the labels are."""

from __future__ import annotations

import argparse
from pathlib import Path

from bertjax.commands.shared_flags import IN_HELP, add_columns, add_model, column_options

EXAMPLE = "bertjax pseudo-label --model runs/teacher --in texts.txt --gold hundred.tsv --out silver.jsonl"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the flags of the command."""
    add_model(parser, required=False)
    add = parser.add_argument
    add("--labels-file", metavar="FILE", help=".jsonl of a language model instead: text or id, label, confidence")
    add("--labels", metavar="A,B", help="labels of --labels-file (default: those of the gold sample)")
    add("--in", dest="source", nargs="+", default=[], metavar="FILE", help=IN_HELP)
    add("--out", type=Path, required=True, metavar="FILE", help=".jsonl or .tsv to train on")
    add("--min-confidence", type=float, metavar="P", help="keep labels of at least this probability")
    add("--max-per-class", type=int, metavar="N", help="keep at most N examples per label, the most confident ones")
    add("--balance", action="store_true", help="keep as many examples of each label as the rarest has")
    add("--gold", metavar="FILE", help="a sample labelled by people (.tsv, .csv, .jsonl)")
    add_columns(parser)


def run(options: argparse.Namespace) -> None:
    """Writes the selected labels and prints a summary."""
    from bertjax.commands.pseudo_label_run import LabelSource, PredictOptions, Selection, pseudo_label

    names = tuple(name.strip() for name in (options.labels or "").split(",") if name.strip())
    selection = Selection(options.min_confidence, options.max_per_class, options.balance)
    source = LabelSource(options.model, options.labels_file, names)
    reading = PredictOptions(**column_options(options))
    pseudo_label(source, options.source, options.out, options.gold, selection, reading)
