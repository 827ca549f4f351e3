"""Write a checkpoint as a Hugging Face folder, and verify it."""

from __future__ import annotations

import argparse
from pathlib import Path

from bertjax.errors import UserError
from bertjax.io.units import parse_size

EXAMPLE = "bertjax export --workdir runs/quickstart --out exported --dtype bfloat16"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the flags of the command."""
    add = parser.add_argument
    add("--workdir", type=Path, required=True, help="work directory of a run")
    add("--out", type=Path, required=True, metavar="FOLDER", help="folder to write")
    add("--step", type=int, help="step of the checkpoint (default: the newest)")
    add("--average-last", type=int, default=1, metavar="K", help="average the weights of the last K checkpoints")
    add("--network", help="network to export where there are several, such as generator (default: the main one)")
    add("--dtype", choices=("float32", "bfloat16", "float16"), default="float32", help="type of the weights")
    add("--max-shard-size", default="5GB", metavar="SIZE", help="size of a file of weights (default 5GB)")
    add("--format", choices=("safetensors",), default="safetensors", help="of the weights; pickled ones can run code")
    add("--overwrite", action="store_true", help="replace an earlier export")
    add("--sentence-transformers", action="store_true", help="write a sentence-transformers folder")
    add("--pooling", choices=("mean", "cls"), help="pooling of its sentence vectors (default mean)")
    add("--max-length", type=int, help="maximum tokens per text (default: the model's maximum)")
    add("--push-to-hub", metavar="OWNER/NAME", help="upload the export to the Hugging Face Hub, private")
    add("--public", action="store_true", help="make a new repository public")


def run(options: argparse.Namespace) -> None:
    """Exports, and uploads with `--push-to-hub`.

    Raises:
        UserError: flags contradict each other.
    """
    if (options.pooling or options.max_length is not None) and not options.sentence_transformers:
        raise UserError("--pooling and --max-length need --sentence-transformers")
    if options.public and not options.push_to_hub:
        raise UserError("--public needs --push-to-hub OWNER/NAME")
    if options.average_last < 1:
        raise UserError(f"--average-last must be at least 1, not {options.average_last}")
    shard_bytes = parse_size("--max-shard-size", options.max_shard_size)
    from bertjax.experiment.workdir import read_config

    read_config(options.workdir)  # reports a wrong directory before jax is imported
    from bertjax.experiment.export import Upload, export
    from bertjax.hf.sentence_transformers import Pooling

    pooling = None
    if options.sentence_transformers:
        pooling = Pooling(options.pooling or "mean", max_length=options.max_length)
    export(
        options.workdir,
        options.out,
        step=options.step,
        average_last=options.average_last,
        network=options.network,
        pooling=pooling,
        overwrite=options.overwrite,
        upload=Upload(options.push_to_hub, options.public) if options.push_to_hub else None,
        dtype=options.dtype,
        max_shard_bytes=shard_bytes,
    )
