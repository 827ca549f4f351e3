"""Generate texts with an encoder-decoder or a causal model."""

from __future__ import annotations

import argparse
from typing import Any

from bertjax.commands.shared_flags import add_batch_tokens, add_model
from bertjax.config.fields import settings_of
from bertjax.config.generation import GenerationConfig

EXAMPLE = "bertjax generate --model runs/translation --in source.txt --out target.jsonl --num-beams 5"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the flags of the command."""
    parser.add_argument("sentences", nargs="*", metavar="TEXT", help="texts, instead of a file")
    add_model(parser)
    add = parser.add_argument
    add("--in", dest="source", metavar="FILE", help="one text per line, or .jsonl; -: standard input")
    add("--out", default="-", metavar="FILE", help="a .jsonl file; -: standard output (default)")
    add("--text-column", default="text", metavar="FIELD", help="field of the text in .jsonl (default: text)")
    add("--seed", type=int, default=0, metavar="N", help="of samples (default 0)")
    add_batch_tokens(parser)
    group = parser.add_argument_group("settings of generation (default: as generation_config.json says)")
    for name, each in settings_of(GenerationConfig).items():
        flag, text = f"--{name.replace('_', '-')}", each.help.replace("%", "%%")
        if each.kind is bool:
            group.add_argument(flag, action=argparse.BooleanOptionalAction, default=None, help=text)
        else:
            group.add_argument(flag, metavar="IDS" if each.many else "VALUE", help=text)


def generation_arguments(options: argparse.Namespace) -> dict[str, Any]:
    """Returns the settings of generation that the command line names."""
    arguments = {}
    for name, each in settings_of(GenerationConfig).items():
        value = getattr(options, name)
        if value is not None:
            arguments[name] = each.parse(f"--{name.replace('_', '-')}", value) if isinstance(value, str) else value
    return arguments


def run(options: argparse.Namespace) -> None:
    """Writes one JSON object per text."""
    from bertjax.experiment.generate import generate

    generate(
        options.model,
        options.sentences,
        options.source,
        options.out,
        options.text_column,
        generation_arguments(options),
        options.seed,
        options.batch_tokens,
    )
