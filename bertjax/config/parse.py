"""Reads a checked config into frozen dataclasses."""

from __future__ import annotations

import copy
import itertools
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from bertjax.config.data import DataConfig
from bertjax.config.distributed import DistributedConfig, MeshConfig, check_batch_size
from bertjax.config.fields import read_group
from bertjax.config.filters import FilterConfig
from bertjax.config.model import EncoderConfig, encoder_config
from bertjax.config.objectives import objective_class, objective_config
from bertjax.config.objectives.base import STREAM_FORMATS, ObjectiveConfig
from bertjax.config.optimizer import OptimizerConfig, ScheduleConfig
from bertjax.config.overrides import check_keys, set_values
from bertjax.config.overrides import load_config as read_config_file
from bertjax.config.phases import list_phases, source_texts
from bertjax.config.source_files import check_source
from bertjax.config.source_mixture import SourceMixtureConfig
from bertjax.config.sources import Source, expand_lists, parse_source
from bertjax.config.training import AnomalyConfig, LoopConfig, TrainConfig
from bertjax.errors import UserError
from bertjax.storage import copy_folder, is_url, local_path


def load_config(config: str | os.PathLike[str] | ConfigDict, overrides: Mapping[str, Any] | None = None) -> ConfigDict:
    """Returns a config, checked, to look at, change and pass on.

    Args:
        config: What `--config` takes, such as `bert:base` or `my/config.py:ARGUMENT`; or a ConfigDict, which is copied.
        overrides: Values by dotted key, such as `{"train.num_steps": 100, "data.sources": "text:corpus/*.txt"}`.

    Raises:
        UserError: The file cannot be read, or a key or value is not allowed.
    """
    cfg = copy.deepcopy(config) if isinstance(config, ConfigDict) else read_config_file(os.fspath(config))
    check(set_values(cfg, overrides or {}))
    return cfg


def command_config(
    config: str | os.PathLike[str] | ConfigDict, overrides: Mapping[str, Any] | None = None
) -> ConfigDict:
    """Returns the checked config of a command that cannot estimate (`dry_run=true`) what it would cost."""
    cfg = load_config(config, overrides)
    if cfg.dry_run:
        raise UserError("dry_run=true estimates what pretrain and finetune cost; this command has no such estimate")
    return cfg


def check(cfg: ConfigDict) -> None:
    """Raises `UserError` for every error that can be found without reading text or asking for devices."""
    check_keys(cfg)
    if cfg.deterministic and cfg.train.dropout_prng == "rbg":
        raise UserError(
            f"deterministic=true: train.dropout_prng={cfg.train.dropout_prng} gives other numbers on another mesh or "
            "version of XLA; set train.dropout_prng=threefry, or deterministic=false"
        )
    if cfg.resume_from is not None and cfg.init_from is not None:
        raise UserError("init_from and resume_from both set the state to start from: use one of them")
    for cls in (DataConfig, FilterConfig, SourceMixtureConfig, DistributedConfig, TrainConfig):
        read_group(cfg, cls)
    if not objective_class(cfg.objective.name).is_finetuning:
        _check_eval_sources(cfg)
    if cfg.export.average_last > cfg.checkpoint.keep:
        raise UserError(
            f"export.average_last={cfg.export.average_last} needs as many checkpoints: raise checkpoint.keep to that"
        )
    loop_config(cfg)
    phases = list_phases(cfg)
    for phase in phases:
        try:
            _check_phase(phase.cfg)
        except UserError as error:
            where = f"from step {phase.start} on: " if len(phases) > 1 else ""
            raise UserError(f"{where}{error}") from None


def _check_phase(cfg: ConfigDict) -> None:
    """Checks what phases may change."""
    read_group(cfg, OptimizerConfig)
    schedule_config(cfg)
    model, objective, mesh = encoder_config(cfg), objective_config(cfg), read_group(cfg, MeshConfig)
    objective.check_model(model)
    mesh.check_model(model)
    _check_batch_sizes(cfg, mesh.batch_shards or 1)
    if not objective.is_finetuning:  # a task reads none of data.*
        _check_examples(cfg, model, objective)


def _check_examples(cfg: ConfigDict, model: EncoderConfig, objective: ObjectiveConfig) -> None:
    """Checks what examples are made of the corpus, and that the model reads them."""
    _check_lengths(cfg, objective)
    example_format = cfg.data.example_format
    if example_format in ("nsp_pairs", "sop_pairs") and model.type_vocab_size == 1:
        raise UserError(
            f"data.example_format={example_format} has two segments, model.type_vocab_size=1: set it to 2, or to "
            "0 for a model without token types"
        )
    objective.check_example_format(example_format)
    _check_sources(cfg)
    if example_format in STREAM_FORMATS:
        _check_stream(cfg, model.bi_data)
    _check_packing(cfg)


def _check_lengths(cfg: ConfigDict, objective: ObjectiveConfig) -> None:
    encoders = objective.read_encoders(cfg)
    lengths = objective.tower_lengths(cfg.data.seq_len, read_group(cfg, DataConfig).max_examples)
    for group, length in lengths.items():
        limit, of_model = encoders[group].max_position_embeddings, length == cfg.data.seq_len
        if length > limit:
            raise UserError(
                f"data.seq_len={cfg.data.seq_len} {'is' if of_model else f'gives {group} {length} tokens,'} longer "
                f"than the position table, {group}.max_position_embeddings={limit}"
            )


def check_batches(cfg: ConfigDict, shards: int) -> None:
    """Raises `UserError` if training or held-out batches cannot be split over this many devices."""
    for phase in list_phases(cfg):
        _check_batch_sizes(phase.cfg, shards)


def _check_batch_sizes(cfg: ConfigDict, shards: int) -> None:
    objective = objective_config(cfg)
    sizes = [("train", cfg.train.batch_size, cfg.train.microbatches), ("eval", cfg.eval.batch_size, 1)]
    # A task's batches of training follow from its examples and the devices.
    for group, batch_size, microbatches in sizes[1:] if objective.is_finetuning else sizes:
        key = f"{group}.batch_size"
        check_batch_size(key, batch_size, microbatches, shards)
        objective.check_batch_size(key, batch_size, microbatches)


def sources(cfg: ConfigDict) -> list[Source]:
    """Returns the training sources of a phase; raises `UserError` for one that is not there."""
    return _sources(cfg.data.sources, "data.sources")


def all_sources(cfg: ConfigDict) -> list[Source]:
    """Returns the training sources of all phases, each once, whatever its weights."""
    origins: dict[object, Source] = {}
    for phase in list_phases(cfg):
        for source in sources(phase.cfg):
            origins.setdefault(source.origin, source)
    return list(origins.values())


def eval_sources(cfg: ConfigDict) -> list[Source]:
    """Returns the held-out sources, none if documents of the training sources are held out."""
    return _sources(cfg.data.eval_sources, "data.eval_sources")


def evaluation_sources(cfg: ConfigDict) -> list[Source]:
    """Returns the sources of evaluation text of which the corpus must hold nothing."""
    return _sources(cfg.data.decontaminate, "data.decontaminate")


def cache_folder(cfg: ConfigDict) -> Path:
    """Returns the absolute path of `data.cache_dir`, of a URL that of its local copy; raises `UserError`."""
    if is_url(cfg.data.cache_dir):
        return copy_folder(cfg.data.cache_dir)
    try:
        return Path(local_path(cfg.data.cache_dir)).absolute()
    except OSError as error:
        raise UserError(f"data.cache_dir={error.filename}: {error.strerror}") from None


def schedule_config(cfg: ConfigDict) -> ScheduleConfig:
    """Returns the learning rate schedule of a config."""
    return read_group(cfg, ScheduleConfig, learning_rate=cfg.optimizer.learning_rate, num_steps=cfg.train.num_steps)


def schedule_configs(cfg: ConfigDict) -> list[tuple[int, ScheduleConfig]]:
    """Returns first step and schedule of every phase; phases without a change of it are one."""
    configs = [(phase.start, schedule_config(phase.cfg)) for phase in list_phases(cfg)]
    return configs[:1] + [each for before, each in itertools.pairwise(configs) if each[1] != before[1]]


def loop_config(cfg: ConfigDict) -> LoopConfig:
    """Returns the settings of the training loop of a config."""
    return LoopConfig(
        num_steps=cfg.train.num_steps,
        log_interval_steps=cfg.train.log_interval_steps,
        eval_interval_steps=cfg.eval.interval_steps,
        checkpoint_interval_steps=cfg.checkpoint.interval_steps,
        checkpoint_interval_minutes=cfg.checkpoint.interval_minutes,
        profile_steps=cfg.profile.steps,
        anomalies=read_group(cfg, AnomalyConfig),
        steps_per_dispatch=cfg.train.steps_per_dispatch,
        best_metric=best_metric(cfg),
        patience=cfg.eval.patience,
    )


def best_metric(cfg: ConfigDict) -> str | None:
    """Returns the metric that selects the best checkpoint: `checkpoint.best_metric`, else a task's main metric."""
    metric = objective_config(cfg).main_metric
    if cfg.checkpoint.best_metric is None and metric is not None:
        return f"eval/{metric}"
    return cfg.checkpoint.best_metric


def _check_sources(cfg: ConfigDict) -> None:
    training = sources(cfg)
    weighted = [source for source in training if source.weight is not None]
    if weighted and len(weighted) < len(training):
        raise UserError("data.sources: give every source a weight (@NUMBER) or none of them")
    if weighted and read_group(cfg, SourceMixtureConfig).mixture_alpha is not None:
        raise UserError("data.mixture_alpha mixes by size: remove @WEIGHT from data.sources, or set it to None")


def _check_eval_sources(cfg: ConfigDict) -> None:
    if any(source.weight is not None or source.epochs for source in eval_sources(cfg)):
        raise UserError("data.eval_sources: held-out sources have no weights and no epochs")
    if any(source.weight is not None or source.epochs for source in evaluation_sources(cfg)):
        raise UserError("data.decontaminate: evaluation text has no weights and no epochs")


def limits_epochs(cfg: ConfigDict) -> bool:
    """Returns whether the shares of sources follow the length of the run, because their epochs are limited."""
    has_limits = any(parse_source(text).epochs for text in expand_lists(source_texts(cfg)))
    return has_limits or any(phase.cfg.data.mixture_epochs != ".." for phase in list_phases(cfg))


def _check_stream(cfg: ConfigDict, bi_data: bool) -> None:
    if (count := len(sources(cfg))) > 1:
        raise UserError(
            f"data.example_format={cfg.data.example_format}: streams need a single source, not {count}; a pattern "
            "such as text:corpus/*.txt names many files"
        )
    for key in ("train", "eval"):
        if bi_data and cfg[key].batch_size % 2:
            raise UserError(
                f"model.bi_data reverses half of the sequences: {key}.batch_size={cfg[key].batch_size} must be even"
            )


def _check_packing(cfg: ConfigDict) -> None:
    reason = None
    if cfg.data.example_format in STREAM_FORMATS:
        reason = f"sequences of data.example_format={cfg.data.example_format} are full and continue in the next batch"
    elif not objective_config(cfg).can_pack:
        reason = f"objective.name={cfg.objective.name} permutes whole sequences, across examples"
    if reason is not None and cfg.data.packing != "none":
        raise UserError(f"data.packing={cfg.data.packing} has nothing to pack: {reason}; set data.packing=none")


def _sources(texts: tuple[str, ...], key: str) -> list[Source]:
    parsed = [parse_source(text, key) for text in expand_lists(texts, key)]
    for source in parsed:
        check_source(source)
    if len({source.origin for source in parsed}) < len(parsed):
        raise UserError(f"{key} names a source twice")
    return parsed
