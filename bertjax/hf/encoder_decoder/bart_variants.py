"""Blenderbot (arXiv:2004.13637), its small form, MVP (arXiv:2206.12131) and PLBART (arXiv:2103.06333): BART's tensors.

MVP and PLBART are BART with other defaults. Blenderbot is mBART without a norm of the embeddings. The decoder of its
small form norms the word embeddings, unscaled, before it adds positions. Neither Blenderbot has unused rows of them.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from bertjax.config.encoder_decoder import EncoderDecoderConfig
from bertjax.hf.encoder_decoder.bart import (
    BART,
    FIELDS,
    PRE_NORM,
    STRUCTURE,
    parse_encoder_decoder,
    render_encoder_decoder,
)
from bertjax.hf.encoder_decoder.family import EncoderDecoderFamily, Values
from bertjax.hf.keymaps.family import change_defaults
from bertjax.hf.safe_files import JsonKeys, refuse

_OFFSET: Values = {"position_offset": 2}
_BOTH = ("encoder", "decoder")


def _sizes(layers: tuple[int, int], heads: int, width: int) -> dict[str, int]:
    """Returns the defaults of the keys of the networks; `layers` are those of encoder and decoder."""
    sizes = {f"{network}_layers": count for network, count in zip(_BOTH, layers, strict=True)}
    for network in _BOTH:
        sizes |= {f"{network}_attention_heads": heads, f"{network}_ffn_dim": width}
    return sizes


def _variant(
    name: str, classes: str, structure: Values, sizes: dict[str, int], decoder: Values | None = None, **defaults: Any
) -> EncoderDecoderFamily:
    """Returns a family with BART's tensors.

    Args:
        name: value of `model_type`.
        classes: what the names of its classes begin with.
        structure: fields that its models have besides those of all.
        sizes: defaults of the keys of one network.
        decoder: fields of the decoder alone.
        **defaults: other defaults of the keys that both networks share.
    """
    fields = change_defaults(FIELDS, **defaults)

    def parse(values: JsonKeys, where: str) -> EncoderDecoderConfig:
        refuse(values, where, "use_prompt", (False, None), "prompts of every layer")
        config = parse_encoder_decoder(values, fields, STRUCTURE | structure, where, **sizes)
        return dataclasses.replace(config, decoder=dataclasses.replace(config.decoder, **decoder or {}))

    return dataclasses.replace(
        BART,
        name=name,
        architecture=f"{classes}ForConditionalGeneration",
        headless=f"{classes}Model",
        parse=parse,
        render=lambda config: render_encoder_decoder(config, fields),
        ignored_keys=f"{BART.ignored_keys} prompt_length prompt_mid_dim",
        objective="",
    )


FAMILIES: dict[str, EncoderDecoderFamily] = {
    family.name: family
    for family in (
        _variant("mvp", "Mvp", _OFFSET, _sizes((12, 12), 16, 4096), vocab_size=50267),
        _variant(
            "plbart",
            "PLBart",
            _OFFSET,
            _sizes((6, 6), 12, 3072),
            vocab_size=50005,
            d_model=768,
            attention_dropout=0.1,
            scale_embedding=True,
        ),
        _variant(
            "blenderbot",
            "Blenderbot",
            PRE_NORM | {"embedding_norm": "none"},
            _sizes((2, 24), 32, 10240),
            vocab_size=8008,
            d_model=2560,
            max_position_embeddings=128,
            pad_token_id=0,
        ),
        _variant(
            "blenderbot-small",
            "BlenderbotSmall",
            {},
            _sizes((8, 8), 16, 2048),
            decoder={"embedding_norm": "words", "embedding_scale": False},
            d_model=512,
            max_position_embeddings=512,
            pad_token_id=0,
        ),
    )
}
