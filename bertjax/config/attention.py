"""The declaration of an attention class of another package. Imports no jax."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, ClassVar

from ml_collections import ConfigDict

from bertjax.config.extensions import ATTENTION
from bertjax.config.fields import Settings, dotted, format_value, names_where, settings_of
from bertjax.errors import UserError


@dataclasses.dataclass(frozen=True)
class AttentionConfig(Settings):
    """Settings of an attention class, declared with `setting` in a group `model.NAME`.

    Attributes:
        attention_class: `"package.module:Class"` of the `Attention`, imported only when a model is built.
        attention_positions: Values of `model.attention_position` that the class can compute.
    """

    attention_class: ClassVar[str] = ""
    attention_positions: ClassVar[tuple[str, ...]] = ("none", "rotary")

    def check_model(self, model: Any) -> None:
        """Raises `UserError` for an `EncoderConfig` that cannot have this attention."""


def stored_settings(group: ConfigDict, name: str) -> tuple[str, ...]:
    """Returns the settings of an attention class in `model` or `generator`, as `EncoderConfig` holds them."""
    cls = ATTENTION.load(name)
    names = names_where(cls, lambda each: each.key)
    node = group[cls.group.rpartition(".")[2]] if names else {}
    return tuple(f"{name}={format_value(node[name])}" for name in names)


def attention_config(config: Any) -> AttentionConfig | None:
    """Returns the settings of an `EncoderConfig`'s attention class of another package; None without one."""
    return _attention_config(config.attention_class, config.attention_settings) if config.attention_class else None


@functools.lru_cache(maxsize=64)
def _attention_config(name: str, settings: tuple[str, ...]) -> AttentionConfig:
    cls = ATTENTION.load(name)
    declared, values = settings_of(cls), dict(text.split("=", 1) for text in settings if "=" in text)
    unknown = sorted({*values} - {*declared})
    if unknown or len(values) < len(settings):
        raise UserError(f"model.attention_class={name} has no setting {', '.join(unknown) or settings[0]}")
    return cls(**{each: declared[each].parse(dotted(cls.group, each), text) for each, text in values.items()})


def store_attention(group: ConfigDict, config: Any) -> None:
    """Writes the settings of the attention class of a model into `model` or `generator`, which names the class."""
    if (attention := attention_config(config)) is not None:
        for name in names_where(type(attention), lambda each: each.key):
            group[attention.group.rpartition(".")[2]][name] = getattr(attention, name)
