"""The families of encoder-decoders that can be loaded and saved."""

from __future__ import annotations

from bertjax.hf.encoder_decoder.bart import BART, MARIAN
from bertjax.hf.encoder_decoder.family import EncoderDecoderFamily
from bertjax.hf.encoder_decoder.t5 import T5
from bertjax.hf.encoder_decoder.two_towers import TWO_TOWERS

FAMILIES: dict[str, EncoderDecoderFamily] = {family.name: family for family in (BART, MARIAN, T5, TWO_TOWERS)}
"""By `EncoderDecoderConfig.family`, which is also the `model_type` of config.json."""
NATIVE = "bertjax-encoder-decoder"
"""The `model_type` of our own format, which holds any two towers and which bertjax alone reads."""
MODEL_TYPES = (*FAMILIES, NATIVE)
