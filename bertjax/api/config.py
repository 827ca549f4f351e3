"""Configs: needs no jax, so that errors of a config appear at once."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, TypeAlias

from ml_collections import ConfigDict

from bertjax.api.errors import python_errors
from bertjax.config.defaults import base_config
from bertjax.config.parse import checked_config

Config: TypeAlias = str | os.PathLike[str] | ConfigDict


@python_errors()
def load_config(config: Config, overrides: Mapping[str, Any] | None = None) -> ConfigDict:
    """Returns a config, checked, to look at, change and pass on.

    Args:
        config: What `--config` takes, such as `bert:base` or `my/config.py:ARGUMENT`; or a ConfigDict, which is copied.
        overrides: Values by dotted key, such as `{"train.num_steps": 100, "data.sources": "text:corpus/*.txt"}`.

    Raises:
        UserError: The file cannot be read, or a key or value is not allowed.
    """
    return checked_config(config, overrides)


@python_errors()
def continue_config(
    model: str | os.PathLike[str], overrides: Mapping[str, Any] | None = None, *, config: Config | None = None
) -> ConfigDict:
    """Returns a config of pretraining that continues a public model: its architecture, weights and tokenizer.

    Args:
        model: A folder of `transformers`, or `hub:NAME[@REVISION]`.
        overrides: Values by dotted key, such as `{"data.sources": "text:corpus/*.txt", "train.num_steps": 1000}`.
        config: Config with the other values, such as the learning rate; `base_config()` by default.

    Raises:
        UserError: There is no such model, it is not supported, or a key or value is not allowed.
    """
    from bertjax.experiment.init_from import copy_architecture

    cfg = base_config() if config is None else checked_config(config)
    copy_architecture(cfg, os.fspath(model))
    cfg.data.tokenizer = os.fspath(model)
    return checked_config(cfg, overrides)
