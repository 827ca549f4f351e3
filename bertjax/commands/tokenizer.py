"""Train the tokenizer of a config, find words that it splits, or add words to it."""

from __future__ import annotations

import argparse
from pathlib import Path

from bertjax.data.tokenizer_io import save_huggingface_tokenizer, save_tokenizer
from bertjax.errors import UserError, comma_list

REQUIRES_CONFIG = True
_SAMPLE = 12
_SHOWN = 100
EXAMPLE = "bertjax tokenizer --config bert:base --out tokenizer --config.data.sources='text:corpus/*.txt.gz'"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the flags of the command."""
    parser.add_argument(
        "--out", type=Path, required=True, metavar="FOLDER", help="new folder; with --split-words a file"
    )
    parser.add_argument(
        "--split-words",
        type=int,
        metavar="N",
        help="write the N most frequent words of the corpus that the tokenizer splits, for --add-words",
    )
    parser.add_argument(
        "--add-words",
        type=Path,
        metavar="FILE",
        help="words that become single tokens, one per line, after the last id",
    )


def run(options: argparse.Namespace) -> None:
    """Trains or copies the tokenizer into a new folder that bertjax and `transformers` read.

    Raises:
        UserError: the folder of `--out` is not empty.
    """
    from bertjax.data import tokenizer_from_config
    from bertjax.data.added_words import add_words, read_words, split_words
    from bertjax.io.atomic import write_text

    out: Path = options.out
    if options.split_words is not None:
        tokenizer = tokenizer_from_config.load_or_train_tokenizer(options.config)
        candidates = split_words(
            tokenizer_from_config.training_documents(options.config), tokenizer, options.split_words
        )
        write_text(out, "".join(f"{word}\n" for word in candidates))
        print(f"{len(candidates):,} words that the tokenizer splits in {out}: {', '.join(candidates[:_SAMPLE])}")
        return
    if out.exists() and any(out.iterdir()):
        raise UserError(f"--out {out} is not empty; give a new folder")
    words = None if options.add_words is None else read_words(options.add_words)
    tokenizer = tokenizer_from_config.load_or_train_tokenizer(options.config)
    if words is not None:
        result = add_words(tokenizer, words)
        tokenizer = result.tokenizer
        known = (
            f"; {len(result.known):,} were single tokens: {comma_list(result.known, _SAMPLE)}" if result.known else ""
        )
        added = comma_list(result.added, _SHOWN)
        print(f"{len(result.added):,} words added as {result.tokens:,} tokens: {added}{known}")
    save_tokenizer(tokenizer, out)
    save_huggingface_tokenizer(tokenizer, out, options.config.data.seq_len)
    print(f"{tokenizer.kind} tokenizer of {tokenizer.size:,} tokens ({tokenizer.family}) in {out}")
    print(f"some tokens: {', '.join(tokenizer.tokens[:: max(1, tokenizer.size // _SAMPLE)][:_SAMPLE])}")
