"""What the hub must know of a family, and the reading of config.json that families share."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

from bertjax.hub.keymap import KeyMap
from bertjax.models.config import EncoderConfig
from bertjax.types import UserError


@dataclasses.dataclass(frozen=True)
class Family:
    """A value of `model_type`: its names, its classes with the heads that each requires, and its config.json."""

    model_type: str
    keymap: KeyMap
    architectures: Mapping[str, tuple[str, ...]]
    config_from_huggingface: Callable[[dict[str, Any], str], EncoderConfig]
    config_to_huggingface: Callable[[EncoderConfig, str], dict[str, Any]]
    architecture_for: Callable[[tuple[str, ...]], str]
    rename_for: Callable[[str, str], str]


def refuse(values: Mapping[str, Any], where: str, key: str, allowed: tuple[Any, ...], why: str) -> None:
    """Raises `UserError` if the key is there with a value that is not allowed."""
    if key in values and values[key] not in allowed:
        raise UserError(f"{where}: {key} = {values[key]!r} is not supported: {why}")


def read_config(values: Mapping[str, Any], fields: Mapping[str, tuple[str, Any, type]], where: str) -> dict[str, Any]:
    """Our fields from {their key: (our field, default, type)}; raises `UserError` for a value of another type."""
    read: dict[str, Any] = {}
    for theirs, (ours, default, kind) in fields.items():
        value = values.get(theirs)
        value = default if value is None else value
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if type(value) is not kind or (isinstance(value, float) and not math.isfinite(value)):
            raise UserError(f"{where}: {theirs} must be {_KINDS[kind]}, not {value!r}")
        read[ours] = value
    return read


_KINDS = {int: "a whole number", float: "a finite number", str: "a string"}
