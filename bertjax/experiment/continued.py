"""Configs that continue a model: its architecture, weights, tokenizer and objective, and a recipe for pretraining."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from bertjax.config.defaults import base_config, set_linear_schedule
from bertjax.config.fields import names_where
from bertjax.config.model import EncoderConfig
from bertjax.config.objectives import objective_class
from bertjax.data.tokenizer_io import load_tokenizer
from bertjax.errors import UserError, named
from bertjax.experiment.config import load_config
from bertjax.experiment.load import require_model
from bertjax.experiment.task import copy_start_token
from bertjax.experiment.workdir import read_config
from bertjax.hf import native_format
from bertjax.hf.encoder_decoder.family import find_family as find_encoder_decoder
from bertjax.hf.export_plan import read_sidecar
from bertjax.hf.keymaps import find_family
from bertjax.hf.load import is_encoder_decoder, local_model, read_config_json
from bertjax.objectives.rtd.objective import Rtd

_SEQ_LEN = 128
_MASKING_OF_RTD = {"mask_token_rate": 0.85, "random_token_rate": 0.0}  # ELECTRA's


def continue_config(
    model: str | os.PathLike[str],
    overrides: Mapping[str, Any] | None = None,
    *,
    config: str | os.PathLike[str] | ConfigDict | None = None,
) -> ConfigDict:
    """Returns a config of pretraining that continues a model: its architecture, weights and tokenizer.

    Args:
        model: A run, a folder of `transformers`, or `hub:NAME[@REVISION]`.
        overrides: Values by dotted key, such as `{"data.sources": "text:corpus/*.txt", "train.num_steps": 1000}`.
        config: Config with the objective and the recipe. None: the objective that the head of the model was trained
            with, in a run its own, and 2,000 steps of 32 sequences of 128 tokens, with a rate of 5e-5 that rises for a
            tenth of them and falls to zero.

    Raises:
        UserError: There is no such model, it is not supported, or a key or value is not allowed.
    """
    source = os.fspath(model)
    folder = require_model(source)
    is_run = (folder / "checkpoints").is_dir()
    cfg = base_config() if config is None else load_config(config)
    if is_run:
        stored = read_config(folder)
        if config is None and not objective_class(stored.objective.name).is_finetuning:
            cfg = stored
        else:
            for name, value in stored.model.items():
                cfg.model[name] = value
    else:
        objective = copy_architecture(cfg, source)
        if config is None:
            _set_objective(cfg, objective, source)
    if config is None:
        _set_recipe(cfg)
    cfg.init_from, cfg.resume_from = source, None
    cfg.data.tokenizer = str(Path(source) / "tokenizer") if is_run else source
    return load_config(cfg, overrides)


def copy_architecture(cfg: ConfigDict, source: str) -> str:
    """Sets `init_from`, and the keys of `model` to what a folder of a class of `transformers` or of our own says.

    Args:
        cfg: the config of a pretraining run, which is changed.
        source: a folder, or `hub:NAME[@REVISION]`.

    Returns:
        The objective that a model of the class was trained with; "" if bertjax has none.

    Raises:
        UserError: there is no such model, or it is not supported.
    """
    folder = local_model(source)
    values, architecture = read_config_json(folder)
    where, kind = f"{source}/config.json", values["model_type"]
    if kind == native_format.MODEL_TYPE:
        model, heads = native_format.parse_config(values, where)
        objective = _objective_of(model, heads)
    elif not is_encoder_decoder(values) and (family := find_family(kind)) is not None:
        model, heads = family.parse_config(values, where), family.heads_of(architecture) or ()
        if (sidecar := read_sidecar(folder, family, values, model)) is not None:
            model, heads = sidecar[0], (*heads, *sidecar[1])
        objective = _objective_of(model, heads)
    elif (pair := find_encoder_decoder(kind)) is not None:
        both = pair.parse_config(values, where)
        _copy_network(cfg.decoder, both.decoder)
        cfg.decoder.sharing = both.sharing
        copy_start_token(cfg, both, load_tokenizer(folder))
        model, objective = both.encoder, pair.objective
    else:
        raise UserError(f"{source}: model_type {kind!r} is not a model of transformers that bertjax reads")
    _copy_network(cfg.model, model)
    if objective == "mlm":
        cfg.objective.mlm.masked_next_token = model.masked_next_token
    cfg.data.vocab_size, cfg.init_from = model.vocab_size, source
    return objective


def _copy_network(group: ConfigDict, model: EncoderConfig) -> None:
    group.preset = "none"
    for name in names_where(EncoderConfig, lambda each: each.key):
        if name in group:
            group[name] = getattr(model, name)


def _objective_of(model: EncoderConfig, heads: tuple[str, ...]) -> str:
    if "rtd" in heads:
        return "rtd"
    if model.causal:
        return "clm"
    return "plm" if model.attention_position == "relative" else "mlm"  # XLNet's two streams


def _set_objective(cfg: ConfigDict, objective: str, source: str) -> None:
    """Sets an objective, with the values that it has where it continues a published model."""
    if not objective:
        raise UserError(
            f"{source}: models of its class are not pretrained by an objective of bertjax; choose one by "
            f"{named('config')}, such as bart"
        )
    cfg.objective.name = objective
    formats = objective_class(objective).example_formats
    cfg.data.example_format = "full_sentences" if "full_sentences" in formats else formats[0]
    if objective_class(objective) is Rtd:
        cfg.generator.width_ratio = 0.25
        cfg.objective.masking.update(_MASKING_OF_RTD)


def _set_recipe(cfg: ConfigDict) -> None:
    positions = cfg.model.max_position_embeddings
    cfg.data.seq_len = min(_SEQ_LEN, positions) if isinstance(positions, int) else _SEQ_LEN
    cfg.train.phases, cfg.train.initial_batch_size, cfg.train.batch_ramp_steps = (), None, None
    cfg.train.num_steps, cfg.train.batch_size = 2000, 32
    cfg.optimizer.learning_rate = 5e-5
    set_linear_schedule(cfg)


def describe_recipe(cfg: ConfigDict) -> str:
    """Returns what continues, and how, in one line."""
    tokens = cfg.train.num_steps * cfg.train.batch_size * cfg.data.seq_len
    return (
        f"continuing {cfg.init_from}, objective {cfg.objective.name}: {cfg.train.num_steps:,} steps of "
        f"{cfg.train.batch_size} x {cfg.data.seq_len} tokens ({tokens:,}), learning rate "
        f"{cfg.optimizer.learning_rate:g} with {cfg.schedule.warmup_steps:,} steps of warmup"
    )
