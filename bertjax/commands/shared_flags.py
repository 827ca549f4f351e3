"""Flags that several inference commands share."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

MODEL_HELP = "a Hugging Face folder, an export, or the work directory of a run"
IN_HELP = "jsonl, txt (one text per line), tsv, csv, conll, json (SQuAD), or KIND:WHERE as in task.train; -: stdin"
_COLUMNS = (("text", "text"), ("pair", "none"), ("label", "label"), ("id", "id of .jsonl, otherwise none"))


def add_model(parser: argparse.ArgumentParser, *, required: bool = True) -> None:
    """Declares `--model`."""
    parser.add_argument("--model", type=Path, required=required, metavar="FOLDER", help=MODEL_HELP)


def add_batch_tokens(parser: argparse.ArgumentParser) -> None:
    """Declares `--batch-tokens`."""
    parser.add_argument("--batch-tokens", type=int, metavar="N", help="tokens per batch; fewer need less memory")


def add_no_header(parser: argparse.ArgumentParser) -> None:
    """Declares `--no-header`."""
    parser.add_argument(
        "--no-header", action="store_true", help=".tsv and .csv name no columns: give numbers, 0 = first"
    )


def add_columns(parser: argparse.ArgumentParser) -> None:
    """Declares how labelled and unlabelled examples are read: columns, header, length, batch."""
    for name, default in _COLUMNS:
        parser.add_argument(
            f"--{name}", metavar="COLUMN", help=f"{name} column (default: as finetuned, else {default})"
        )
    add_no_header(parser)
    parser.add_argument("--max-length", type=int, metavar="N", help="tokens per example (default: as finetuned)")
    add_batch_tokens(parser)


def column_options(options: argparse.Namespace) -> dict[str, Any]:
    """Returns the values of `add_columns` as fields of `PredictOptions`."""
    return {
        **{f"{name}_column": getattr(options, name) for name, _ in _COLUMNS},
        "header": False if options.no_header else None,
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
