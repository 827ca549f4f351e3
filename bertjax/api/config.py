"""Configs: needs no jax, so that errors of a config appear at once."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, TypeAlias

from ml_collections import ConfigDict

from bertjax.api.errors import python_errors
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
