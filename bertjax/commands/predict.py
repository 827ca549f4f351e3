"""Write the predictions of a finetuned model for the examples of files."""

from __future__ import annotations

import argparse

from bertjax.commands.shared_flags import IN_HELP, add_columns, add_model, column_options
from bertjax.config.extensions import TASK_KINDS

EXAMPLE = "bertjax predict --model runs/reviews --in test.tsv --out predictions.jsonl --score"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the flags of the command."""
    add_model(parser)
    add = parser.add_argument
    add("--in", dest="source", nargs="+", required=True, metavar="FILE", help=IN_HELP)
    add("--out", required=True, metavar="FILE", help="a .jsonl file; -: standard output")
    add("--kind", help=f"task, for a model with the heads of several: {', '.join(TASK_KINDS.builtin)}")
    add("--score", action="store_true", help="print the metrics against the labels of the input")
    add("--with-input", action="store_true", help="write the texts next to the predictions")
    add("--top-k", type=int, metavar="N", help="probabilities or answers to write (default: all, 5 answers)")
    add("--no-answer", action="store_true", help="questions may have no answer (SQuAD 2.0)")
    add_columns(parser)


def run(options: argparse.Namespace) -> None:
    """Writes one JSON object per example."""
    from bertjax.experiment.predict import PredictOptions, predict

    allow_no_answer = True if options.no_answer else None
    reading = PredictOptions(
        options.kind, allow_no_answer=allow_no_answer, top_k=options.top_k, **column_options(options)
    )
    predict(options.model, options.source, options.out, reading, options.score, options.with_input)
