"""Families with BART's tensors: Blenderbot (arXiv:2004.13637), MVP (2206.12131), PLBART (2103.06333), M2M-100 and NLLB.

MVP and PLBART are BART with other defaults. Blenderbot is mBART without a norm of the embeddings. The decoder of its
small form norms the word embeddings, unscaled, before it adds positions. Neither Blenderbot has unused rows of them.
M2M-100 (transformers: models/m2m_100; arXiv:2010.11125) and NLLB (2207.04672) have mBART's layers without a norm of the
embeddings and without a bias of the output. Their positions are computed: they begin after the id of padding, which is
not counted. Files of old versions may hold their table.
"""

from __future__ import annotations

import dataclasses
from typing import Any

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
from bertjax.hf.encoder_decoder.family import EncoderDecoderFamily, Values
from bertjax.hf.keymap import KeyMap
from bertjax.hf.keymaps.family import Fields, change_defaults
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

_M2M_FIELDS: Fields = change_defaults(
    FIELDS, vocab_size=128112, activation_function="relu", attention_dropout=0.1, scale_embedding=True
)
_M2M_STRUCTURE: Values = (
    STRUCTURE | PRE_NORM | {"position_embedding": "fairseq", "embedding_norm": "none", "mlm_head": "tied"}
)


def _parse_m2m(values: JsonKeys, where: str) -> EncoderDecoderConfig:
    pad_id = values.get("pad_token_id", 1)
    config = parse_encoder_decoder(values, _M2M_FIELDS, _M2M_STRUCTURE, where)
    if pad_id is None or not 0 <= pad_id < config.encoder.vocab_size:
        raise UserError(f"{where}: pad_token_id = {pad_id} is not supported: positions begin after it")
    encoder, decoder = (
        dataclasses.replace(each, position_offset=pad_id + 1) for each in (config.encoder, config.decoder)
    )
    return dataclasses.replace(config, encoder=encoder, decoder=decoder)


def _make_m2m_keymap(config: EncoderDecoderConfig) -> KeyMap:
    keymap = make_keymap(config)
    return dataclasses.replace(keymap, ignored=(*keymap.ignored, r"\.embed_positions\.weights$"))


M2M_100 = dataclasses.replace(
    BART,
    name="m2m_100",
    architecture="M2M100ForConditionalGeneration",
    headless="M2M100Model",
    parse=_parse_m2m,
    render=lambda config: render_encoder_decoder(config, _M2M_FIELDS),
    make_keymap=_make_m2m_keymap,
    counts_padding=False,
    objective="",
)
