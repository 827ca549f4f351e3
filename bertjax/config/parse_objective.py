"""Reads the encoder, the mesh and the task of a ConfigDict as frozen configs. Needs no jax."""

from __future__ import annotations

from ml_collections import ConfigDict

from bertjax.config.fields import read_group
from bertjax.config.model import EncoderConfig
from bertjax.config.presets import preset
from bertjax.config.task import QaConfig, TaskConfig, TokensConfig
from bertjax.config.training import MeshConfig
from bertjax.types import Vocabulary


def encoder_config(cfg: ConfigDict, vocabulary: Vocabulary | None = None) -> EncoderConfig:
    """The preset with the config's own values over it; vocabulary and padding are the tokenizer's once there is one."""
    values = preset(cfg.model.preset)
    values |= {name: value for name, value in cfg.model.items() if name != "preset" and value is not None}
    values |= {"vocab_size": cfg.data.vocab_size}
    if vocabulary is not None:
        values |= {
            "vocab_size": vocabulary.size,
            "padded_vocab_size": vocabulary.padded_size,
            "pad_token_id": vocabulary.pad_id,
        }
    return EncoderConfig(**values)


def reuse_len(cfg: ConfigDict) -> int:
    """Tokens after which the next row of form segments begins: half a row where the model does not say."""
    given = encoder_config(cfg).reuse_len
    return cfg.data.seq_len // 2 if given is None else given


def pack_examples(cfg: ConfigDict) -> int:
    """Most examples in a row."""
    if cfg.data.packing == "none":
        return 1
    return max(8, cfg.data.seq_len // 32) if cfg.data.pack_examples is None else cfg.data.pack_examples


def task_config(cfg: ConfigDict) -> TaskConfig:
    """Returns the settings of `task`."""
    return read_group(cfg, TaskConfig, tokens=read_group(cfg, TokensConfig), qa=read_group(cfg, QaConfig))


def mesh_config(cfg: ConfigDict) -> MeshConfig:
    return read_group(cfg, MeshConfig)
