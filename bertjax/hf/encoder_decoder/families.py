"""The families of encoder-decoders; `bertjax.config.extensions.ENCODER_DECODERS` names them."""

from __future__ import annotations

import dataclasses
import re

from bertjax.config.encoder_decoder import EncoderDecoderConfig
from bertjax.config.extensions import ENCODER_DECODERS as FAMILIES
from bertjax.hf.encoder_decoder.family import EncoderDecoderFamily

_NONE = ("auto", "bertjax")


def find_family(model_type: str) -> EncoderDecoderFamily | None:
    """Returns the family with this `model_type` in its config.json, if there is one."""
    return next((family for family in FAMILIES.usable() if family.name == model_type), None)


def family_of(config: EncoderDecoderConfig) -> EncoderDecoderFamily | None:
    """Returns the family that a model names, None for the native format."""
    return None if config.family in _NONE else FAMILIES[config.family]


def with_family(config: EncoderDecoderConfig) -> EncoderDecoderConfig:
    """Returns the model with the family of its export: of `auto` the first that holds it, else one that nearly does."""
    if config.family != "auto":
        return config
    limits = {family.name: family.limitation(config) for family in FAMILIES.usable()}
    near = [name for name, limit in limits.items() if _DIFFERING.fullmatch(limit)]
    return dataclasses.replace(config, family=min(near, key=lambda name: len(limits[name]), default="bertjax"))


_DIFFERING = re.compile(r"((encoder: |decoder: )?\w+(, )?){0,4}")  # the reason is a few fields
