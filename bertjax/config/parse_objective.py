"""Reads the encoder, the mesh and the task of a ConfigDict as frozen configs. Needs no jax."""

from __future__ import annotations

from typing import Any

from ml_collections import ConfigDict

from bertjax.config.fields import PRESET, names_where, read_group
from bertjax.config.model import EncoderConfig
from bertjax.config.presets import preset
from bertjax.config.task import QaConfig, TaskConfig, TokensConfig
from bertjax.config.training import MeshConfig
from bertjax.types import Vocabulary


def encoder_config(cfg: ConfigDict, vocabulary: Vocabulary | None = None) -> EncoderConfig:
    """Returns the model: the values of the preset, and over them those that the config sets.

    Args:
        cfg: The whole config.
        vocabulary: The tokenizer's, which knows the true size, the padded size and the id of padding.

    Raises:
        UserError: The preset is unknown, or the model cannot be built.
    """
    values = preset(cfg.model.preset) | explicit_values(cfg.model) | {"vocab_size": cfg.data.vocab_size}
    if vocabulary is not None:
        values |= {
            "vocab_size": vocabulary.size,
            "padded_vocab_size": vocabulary.padded_size,
            "pad_token_id": vocabulary.pad_id,
        }
    return EncoderConfig(**values)


def explicit_values(group: ConfigDict) -> dict[str, Any]:
    """Returns the fields of `EncoderConfig` that `model` or `generator` sets, without those left to the preset."""
    names = names_where(EncoderConfig, lambda each: each.key)
    return {name: group[name] for name in names if group[name] != PRESET}


def reuse_len(cfg: ConfigDict) -> int:
    """Returns the tokens that the next sequence of the format segments starts after: by default half a sequence."""
    length = encoder_config(cfg).reuse_len
    return cfg.data.seq_len // 2 if length is None else length


def task_config(cfg: ConfigDict) -> TaskConfig:
    """Returns the settings of `task`."""
    return read_group(cfg, TaskConfig, tokens=read_group(cfg, TokensConfig), qa=read_group(cfg, QaConfig))


def mesh_config(cfg: ConfigDict) -> MeshConfig:
    return read_group(cfg, MeshConfig)
