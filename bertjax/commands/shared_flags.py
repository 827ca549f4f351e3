"""Flags that several inference commands share."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

MODEL_HELP = "a Hugging Face folder, an export, the work directory of a run, or hub:NAME[@REVISION]"
IN_HELP = "jsonl, txt (one text per line), tsv, csv, conll, json (SQuAD), or KIND:WHERE as in task.train; -: stdin"
_COLUMNS = (("text", "text"), ("pair", "none"), ("label", "label"), ("id", "id of .jsonl, otherwise none"))


def add_model(parser: argparse.ArgumentParser, *, required: bool = True) -> None:
    """Declares `--model`."""
    parser.add_argument("--model", type=Path, required=required, metavar="FOLDER", help=MODEL_HELP)


def add_batch_tokens(parser: argparse.ArgumentParser) -> None:
    """Declares `--batch-tokens`."""
    parser.add_argument("--batch-tokens", type=int, metavar="N", help="tokens per batch; fewer need less memory")


def add_header(parser: argparse.ArgumentParser) -> None:
    """Declares `--header` and `--no-header`."""
    parser.add_argument(
        "--header",
        action=argparse.BooleanOptionalAction,
        help="the first line of .tsv and .csv names the columns (default: it does where a column is given by name)",
    )


def add_columns(parser: argparse.ArgumentParser) -> None:
    """Declares how labelled and unlabelled examples are read: columns, header, length, batch."""
    for name, default in _COLUMNS:
        parser.add_argument(
            f"--{name}-column",
            metavar="COLUMN",
            help=f"name or number (0 = first) of the {name} column (default: as finetuned, else {default})",
        )
    add_header(parser)
    parser.add_argument("--max-length", type=int, metavar="N", help="tokens per example (default: as finetuned)")
    add_batch_tokens(parser)


def column_options(options: argparse.Namespace) -> dict[str, Any]:
    """Returns the values of `add_columns` as fields of `PredictOptions`."""
    return {
        **{f"{name}_column": getattr(options, f"{name}_column") for name, _ in _COLUMNS},
        "header": options.header,
        "max_length": options.max_length,
        "batch_tokens": options.batch_tokens,
    }


def add_pooling(parser: argparse.ArgumentParser) -> None:
    """Declares how sentence vectors are computed: pooling, length, batch."""
    parser.add_argument("--pooling", choices=("mean", "cls"), help="default: as the folder or run says, else mean")
    parser.add_argument(
        "--max-length", type=int, metavar="N", help="tokens per text (default: all that the model can read)"
    )
    add_batch_tokens(parser)
