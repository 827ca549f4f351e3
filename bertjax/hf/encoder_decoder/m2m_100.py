"""M2M-100 and NLLB under Hugging Face's names (transformers: models/m2m_100; arXiv:2010.11125, 2207.04672).

mBART's layers without a norm of the embeddings and without a bias of the output. Positions are computed: they begin
after the id of padding, which is not counted. Files of old versions may hold their table.
"""

from __future__ import annotations

import dataclasses

from bertjax.config.encoder_decoder import EncoderDecoderConfig
from bertjax.errors import UserError
from bertjax.hf.encoder_decoder.bart import (
    BART,
    FIELDS,
    PRE_NORM,
    STRUCTURE,
    make_keymap,
    parse_encoder_decoder,
    render_encoder_decoder,
)
from bertjax.hf.encoder_decoder.family import Values
from bertjax.hf.keymap import KeyMap
from bertjax.hf.keymaps.family import Fields, change_defaults
from bertjax.hf.safe_files import JsonKeys

_FIELDS: Fields = change_defaults(
    FIELDS, vocab_size=128112, activation_function="relu", attention_dropout=0.1, scale_embedding=True
)
_STRUCTURE: Values = (
    STRUCTURE | PRE_NORM | {"position_embedding": "fairseq", "embedding_norm": "none", "mlm_head": "tied"}
)


def _parse(values: JsonKeys, where: str) -> EncoderDecoderConfig:
    pad_id = values.get("pad_token_id", 1)
    config = parse_encoder_decoder(values, _FIELDS, _STRUCTURE, where)
    if pad_id is None or not 0 <= pad_id < config.encoder.vocab_size:
        raise UserError(f"{where}: pad_token_id = {pad_id} is not supported: positions begin after it")
    encoder, decoder = (
        dataclasses.replace(each, position_offset=pad_id + 1) for each in (config.encoder, config.decoder)
    )
    return dataclasses.replace(config, encoder=encoder, decoder=decoder)


def _make_keymap(config: EncoderDecoderConfig) -> KeyMap:
    keymap = make_keymap(config)
    return dataclasses.replace(keymap, ignored=(*keymap.ignored, r"\.embed_positions\.weights$"))


M2M_100 = dataclasses.replace(
    BART,
    name="m2m_100",
    architecture="M2M100ForConditionalGeneration",
    headless="M2M100Model",
    parse=_parse,
    render=lambda config: render_encoder_decoder(config, _FIELDS),
    make_keymap=_make_keymap,
    counts_padding=False,
    objective="",
)
