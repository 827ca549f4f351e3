"""T5 and mT5 under Hugging Face's names (transformers: models/t5/modeling_t5.py, models/mt5), v1.0 and v1.1.

In v1.1 hidden states are scored as they are, and against a table of their own. `transformers` 5 writes
`tie_word_embeddings` = true for both versions, and tells them apart by `scale_decoder_outputs`.
mT5 (arXiv:2010.11934) is v1.1.
"""

from __future__ import annotations

import dataclasses

from bertjax.config.encoder_decoder import EncoderDecoderConfig
from bertjax.config.model import EncoderConfig
from bertjax.hf.encoder_decoder.family import EncoderDecoderFamily, Values
from bertjax.hf.keymaps.family import Fields, parse_fields, render_fields
from bertjax.hf.keymaps.t5 import (
    FIELDS,
    INERT,
    MT5_FIELDS,
    STRUCTURE,
    joint_keymap,
    parse_stack,
    render_projection,
)
from bertjax.hf.safe_files import JsonKeys

_STRUCTURE = STRUCTURE | {"family": "bertjax", "mlm_head": "tied"}


def _parse(values: JsonKeys, where: str, shared: Fields = FIELDS) -> EncoderDecoderConfig:
    fields = parse_fields(values, shared, where)
    scaled = values.get("scale_decoder_outputs", values.get("tie_word_embeddings", True) is not False) is True
    scaled = scaled and shared is FIELDS
    common = _STRUCTURE | fields | {"scale_logits": scaled, "tie_word_embeddings": scaled}
    common |= parse_stack(values, fields, where, "relu" if shared is FIELDS else "gated-gelu")
    encoder, depth = EncoderConfig(**common), values.get("num_decoder_layers")
    depth = fields["num_layers"] if depth is None else depth
    return EncoderDecoderConfig(encoder, encoder.as_decoder(encoder, num_layers=depth))


def _render(config: EncoderDecoderConfig) -> Values:
    return {
        **render_fields(config.encoder, FIELDS),
        "num_decoder_layers": config.decoder.num_layers,
        "feed_forward_proj": render_projection(config.encoder),
        "tie_word_embeddings": config.decoder.scale_logits,
    }


T5 = EncoderDecoderFamily(
    name="t5",
    architecture="T5ForConditionalGeneration",
    parse=_parse,
    render=_render,
    make_keymap=joint_keymap,
    ignored_keys=INERT,
    objective="span_corruption",
)
MT5 = dataclasses.replace(
    T5,
    name="mt5",
    architecture="MT5ForConditionalGeneration",
    parse=lambda values, where: _parse(values, where, MT5_FIELDS),
)
