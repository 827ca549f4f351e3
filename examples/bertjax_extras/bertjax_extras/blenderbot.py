"""Blenderbot (arXiv:2004.13637) under the names of transformers: a pre-norm BART without a norm of the embeddings."""

from __future__ import annotations

import dataclasses

from bertjax.hf.encoder_decoder.bart import BART, FIELDS, PRE_NORM, STRUCTURE, parse_encoder_decoder
from bertjax.hf.keymaps.family import change_defaults

_FIELDS = change_defaults(FIELDS, vocab_size=8008, d_model=2560, max_position_embeddings=128, pad_token_id=0)
_STRUCTURE = STRUCTURE | PRE_NORM | {"embedding_norm": "none"}

BLENDERBOT = dataclasses.replace(
    BART,
    name="blenderbot",
    architecture="BlenderbotForConditionalGeneration",
    parse=lambda values, where: parse_encoder_decoder(values, _FIELDS, _STRUCTURE, where),
)
