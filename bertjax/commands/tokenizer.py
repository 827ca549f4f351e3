"""The tokenizer of a config: trained, given more words, or searched for words that it splits."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from bertjax.commands.arguments import Config, Flag, Overrides
from bertjax.commands.signatures import command
from bertjax.config.defaults import base_config
from bertjax.data import tokenizer_from_config
from bertjax.data.changed_vocabulary import add_words as with_words
from bertjax.data.changed_vocabulary import read_words
from bertjax.data.changed_vocabulary import split_words as find_split_words
from bertjax.data.tokenizer_io import save_huggingface_tokenizer, save_tokenizer
from bertjax.errors import UserError, comma_list, named
from bertjax.experiment.config import command_config
from bertjax.io.atomic import write_text
from bertjax.io.output import Summary, require_output_folder
from bertjax.io.staging import output_path

_SAMPLE = 12
_SHOWN = 100


@command
def tokenizer(
    config: Config | None = None,
    out: Annotated[str | Path | None, Flag(type=Path, metavar="FOLDER", required=True)] = None,
    overrides: Overrides = None,
    *,
    tokenizer: Annotated[str | Path | None, Flag(type=Path, metavar="FOLDER")] = None,
    split_words: int | None = None,
    add_words: Annotated[str | Path | None, Flag(type=Path, metavar="FILE")] = None,
) -> Summary:
    """Train the tokenizer of a config, find words that it splits, or add words to it.

    Args:
        config: its tokenizer and text (default: those that --config.KEY=VALUE sets)
        out: new folder; with --split-words a file
        tokenizer: folder, tokenizer.json or hub:NAME of a trained tokenizer, instead of that of the config
        split_words: write the N most frequent words of the corpus that the tokenizer splits, for --add-words
        add_words: words that become single tokens, one per line, after the last id

    Returns:
        What was written. The folder of a tokenizer is one that bertjax and `transformers` read.

    Raises:
        UserError: the config is not valid, its text cannot be read, or the folder is not empty.

    Example:
        bertjax tokenizer --config bert:base --out tokenizer --config.data.sources='text:corpus/*.txt.gz'
    """
    if out is None:
        raise UserError(f"{named('out')} is missing: the folder to write")
    if config is None and tokenizer is None and not overrides:
        raise UserError(f"give a config with {named('config')}, or a tokenizer with {named('tokenizer')}")
    of_folder = {} if tokenizer is None else {"data.tokenizer": str(tokenizer)}
    cfg = command_config(base_config() if config is None else config, {**(overrides or {}), **of_folder})
    require_output_folder(out)
    with output_path(Path(out)) as local:
        if split_words is not None:
            trained = tokenizer_from_config.load_or_train_tokenizer(cfg)
            words = find_split_words(tokenizer_from_config.training_documents(cfg), trained, split_words)
            write_text(local, "".join(f"{word}\n" for word in words))
            sample = ", ".join(words[:_SAMPLE])
            return Summary(f"{len(words):,} words that the tokenizer splits in {local}: {sample}")
        if local.exists() and any(local.iterdir()):
            raise UserError(f"{named('out')} {out} is not empty; give a new folder")
        added = None if add_words is None else read_words(Path(add_words))
        trained, lines = tokenizer_from_config.load_or_train_tokenizer(cfg), []
        if added is not None:
            result = with_words(trained, added)
            trained = result.tokenizer
            known = f"; {len(result.known):,} were single tokens: {comma_list(result.known, _SAMPLE)}"
            lines.append(
                f"{len(result.added):,} words added as {result.tokens:,} tokens: {comma_list(result.added, _SHOWN)}"
                + (known if result.known else "")
            )
        save_tokenizer(trained, local)
        save_huggingface_tokenizer(trained, local, cfg.data.seq_len)
    lines.append(f"{trained.kind} tokenizer of {trained.size:,} tokens ({trained.family}) in {local}")
    some = trained.tokens[:: max(1, trained.size // _SAMPLE)][:_SAMPLE]
    return Summary("\n".join([*lines, f"some tokens: {', '.join(some)}"]))
