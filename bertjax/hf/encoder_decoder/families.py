"""The families of encoder-decoders that can be loaded and saved."""

from __future__ import annotations

import dataclasses
import re

from bertjax.config.encoder_decoder import EncoderDecoderConfig
from bertjax.hf.encoder_decoder import native
from bertjax.hf.encoder_decoder.bart import BART, MARIAN
from bertjax.hf.encoder_decoder.family import EncoderDecoderFamily
from bertjax.hf.encoder_decoder.t5 import T5
from bertjax.hf.encoder_decoder.two_towers import TWO_TOWERS

FAMILIES: dict[str, EncoderDecoderFamily] = {family.name: family for family in (BART, MARIAN, T5, TWO_TOWERS)}
"""By `EncoderDecoderConfig.family`, which is also the `model_type` of config.json."""
MODEL_TYPES = (*FAMILIES, native.MODEL_TYPE)


def with_family(config: EncoderDecoderConfig) -> EncoderDecoderConfig:
    """Returns the model with the family of its export: of `auto` the first that holds it, else one that nearly does."""
    if config.family != "auto":
        return config
    limits = {name: family.limitation(config) for name, family in FAMILIES.items()}
    near = [name for name, limit in limits.items() if _DIFFERING.fullmatch(limit)]
    return dataclasses.replace(config, family=min(near, key=lambda name: len(limits[name]), default="bertjax"))


_DIFFERING = re.compile(r"((encoder: |decoder: )?\w+(, )?){0,4}")  # the reason is a few fields
