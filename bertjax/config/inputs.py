"""The sources of a config, and the folder of its cache."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from ml_collections import ConfigDict

from bertjax.config.phases import list_phases, source_texts
from bertjax.config.source_files import check_source
from bertjax.config.sources import Source, expand_lists, parse_source
from bertjax.errors import UserError
from bertjax.storage import copy_folder, is_url, local_path


def sources(cfg: ConfigDict) -> list[Source]:
    """Returns the training sources of a phase; raises `UserError` for one that is not there."""
    return _sources(cfg, "sources")


def all_sources(cfg: ConfigDict) -> list[Source]:
    """Returns the training sources of all phases, each once, whatever its weights."""
    origins: dict[object, Source] = {}
    for phase in list_phases(cfg):
        for source in sources(phase.cfg):
            origins.setdefault(source.origin, source)
    return list(origins.values())


def eval_sources(cfg: ConfigDict) -> list[Source]:
    """Returns the held-out sources, none if documents of the training sources are held out."""
    return _sources(cfg, "eval_sources")


def evaluation_sources(cfg: ConfigDict) -> list[Source]:
    """Returns the sources of evaluation text of which the corpus must hold nothing."""
    return _sources(cfg, "decontaminate")


def cache_folder(cfg: ConfigDict) -> Path:
    """Returns the absolute path of `data.cache_dir`, of a URL that of its local copy; raises `UserError`."""
    if is_url(cfg.data.cache_dir):
        return copy_folder(cfg.data.cache_dir)
    try:
        return Path(local_path(cfg.data.cache_dir)).absolute()
    except OSError as error:
        raise UserError(f"data.cache_dir={error.filename}: {error.strerror}") from None


def limits_epochs(cfg: ConfigDict) -> bool:
    """Returns whether the shares of sources follow the length of the run, because their epochs are limited."""
    has_limits = any(parse_source(text).epochs for text in expand_lists(source_texts(cfg)))
    return has_limits or any(phase.cfg.data.mixture_epochs != ".." for phase in list_phases(cfg))


def _sources(cfg: ConfigDict, name: str) -> list[Source]:
    key = f"data.{name}"
    parsed = [_with_field(parse_source(text, key), cfg) for text in expand_lists(cfg.data[name], key)]
    for source in parsed:
        check_source(source)
    if len({source.origin for source in parsed}) < len(parsed):
        raise UserError(f"{key} names a source twice")
    return parsed


def _with_field(source: Source, cfg: ConfigDict) -> Source:
    """Returns a source whose kind has the default of its field in the config."""
    if source.field is not None or not source.spec.field_key:
        return source
    return dataclasses.replace(source, field=cfg.data[source.spec.field_key])
