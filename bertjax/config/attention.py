"""The settings of an attention class of another package, between a config and an `EncoderConfig`."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import types
from typing import Any

from ml_collections import ConfigDict

from bertjax.config.extensions import ATTENTION
from bertjax.config.fields import Settings, dotted, format_value, names_where, settings_of
from bertjax.errors import UserError


def make_settings(cls: type, base: type[Settings], group: str) -> type[Settings]:
    """Returns a dataclass of the fields that a class declares with `setting`, and takes them from the class."""
    fields = {name: value for name, value in vars(cls).items() if isinstance(value, dataclasses.Field)}
    types_of = inspect.get_annotations(cls)
    if untyped := [name for name in fields if name not in types_of]:
        raise UserError(f"{cls.__name__}.{untyped[0]} needs a type: {untyped[0]}: float = setting(...)")
    for name in fields:
        delattr(cls, name)
    names = {"__module__": cls.__module__, "__annotations__": {name: types_of[name] for name in fields}, **fields}
    made = types.new_class(f"{cls.__name__}Settings", (base,), {"group": group}, lambda space: space.update(names))
    return dataclasses.dataclass(frozen=True)(made)


def stored_settings(group: ConfigDict, name: str) -> tuple[str, ...]:
    """Returns the settings of an attention class in `model` or `generator`, as `EncoderConfig` holds them."""
    cls = ATTENTION.load(name).settings_class
    names = names_where(cls, lambda each: each.key)
    node = group[cls.group.rpartition(".")[2]] if names else {}
    return tuple(f"{name}={format_value(node[name])}" for name in names)


def attention_settings(config: Any) -> Settings | None:
    """Returns the settings of an `EncoderConfig`'s attention class of another package; None without one."""
    return _parsed(config.attention_class, config.attention_settings) if config.attention_class else None


@functools.lru_cache(maxsize=64)
def _parsed(name: str, settings: tuple[str, ...]) -> Settings:
    cls: type[Settings] = ATTENTION.load(name).settings_class
    declared, values = settings_of(cls), dict(text.split("=", 1) for text in settings if "=" in text)
    unknown = sorted({*values} - {*declared})
    if unknown or len(values) < len(settings):
        raise UserError(f"model.attention_class={name} has no setting {', '.join(unknown) or settings[0]}")
    return cls(**{each: declared[each].parse(dotted(cls.group, each), text) for each, text in values.items()})


def store_attention(group: ConfigDict, config: Any) -> None:
    """Writes the settings of the attention class of a model into `model` or `generator`, which names the class."""
    if (settings := attention_settings(config)) is not None:
        for name in names_where(type(settings), lambda each: each.key):
            group[settings.group.rpartition(".")[2]][name] = getattr(settings, name)
