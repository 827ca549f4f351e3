"""UMT5 (arXiv:2304.09151) under the names of transformers: a T5 with a table of distances in every layer."""

from __future__ import annotations

import dataclasses

from bertjax.config.encoder_decoder import EncoderDecoderConfig
from bertjax.hf.encoder_decoder.t5 import T5
from bertjax.hf.safe_files import JsonKeys


def _parse(values: JsonKeys, where: str) -> EncoderDecoderConfig:
    config = T5.parse(values, where)
    encoder, decoder = (
        dataclasses.replace(each, relative_attention_shared=False) for each in (config.encoder, config.decoder)
    )
    return dataclasses.replace(config, encoder=encoder, decoder=decoder)


UMT5 = dataclasses.replace(T5, name="umt5", architecture="UMT5ForConditionalGeneration", parse=_parse)
