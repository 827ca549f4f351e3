"""Prepares tokenizer and corpora on the first process, and opens them on all others that share a disk with it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from bertjax.config.data import TOKENIZER_MODELS
from bertjax.data import from_config, tokenizer_from_config
from bertjax.data.from_config import Prepared
from bertjax.data.prepare import describe_corpus
from bertjax.data.tokenizer_io import load_tokenizer
from bertjax.errors import UserError
from bertjax.io.hub import is_hub_name
from bertjax.runtime.process_group import ProcessGroup
from bertjax.storage import is_url


def prepare_on_first_process(cfg: ConfigDict, processes: ProcessGroup) -> Prepared:
    """Returns tokenizer and corpora of a config.

    Only the first process reads the sources, and those that do not see its folders: hosts without a shared disk.

    Raises:
        UserError: the text cannot be prepared, or a process reads another one than the first.
    """
    if processes.count == 1:
        return from_config.prepare(cfg)
    made: list[Prepared] = []

    def describe() -> dict[str, Any]:
        made.append(from_config.prepare(cfg))
        from_config.count_sequences(cfg, made[0])
        return _description(cfg, made[0])

    described = processes.run_on_first("the prepared text", describe)
    if made:
        return made[0]
    folders = [described["tokenizer"], *described["training"].values(), *described["held_out"].values()]
    is_shared = not is_url(cfg.data.cache_dir) and all(
        is_hub_name(folder) or is_url(folder) or Path(folder).exists() for folder in folders
    )
    opened = _opened(cfg, described) if is_shared else from_config.prepare(cfg)
    if opened.digests != described["digests"]:
        raise UserError(
            f"process {processes.index} reads another tokenizer or corpus than the first one "
            f"({', '.join(folders)}); give all hosts the same text and the same tokenizer"
        )
    return opened


def _description(cfg: ConfigDict, prepared: Prepared) -> dict[str, Any]:
    """Returns paths and digests of prepared text."""
    folder = tokenizer_from_config.tokenizer_folder(cfg)
    return {
        "tokenizer": str(cfg.data.tokenizer if folder is None else folder),
        "training": {name: str(corpus.folder) for name, corpus in prepared.training.items()},
        "held_out": {name: str(corpus.folder) for name, corpus in prepared.held_out.items()},
        "digests": prepared.digests,
    }


def _opened(cfg: ConfigDict, described: Mapping[str, Any]) -> Prepared:
    """Opens the text that the first process has prepared."""
    if cfg.data.tokenizer not in TOKENIZER_MODELS:
        tokenizer = tokenizer_from_config.load_or_train_tokenizer(cfg)
    else:
        tokenizer = tokenizer_from_config.complete_tokenizer(load_tokenizer(described["tokenizer"]), cfg)
    training = {name: describe_corpus(Path(folder)) for name, folder in described["training"].items()}
    held_out = {name: describe_corpus(Path(folder)) for name, folder in described["held_out"].items()}
    return from_config.join_prepared(cfg, tokenizer, training, held_out)
