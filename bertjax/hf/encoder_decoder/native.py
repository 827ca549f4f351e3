"""The native format of encoder-decoders, for pairs that no class of `transformers` can hold.

As that of single networks (`hf/native_format.py`): a folder brings its PyTorch classes along, config.json holds the
fields of both networks. Tensors of the encoder are named as in a folder of its own, those of the decoder begin with
`decoder.`.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from bertjax.config.encoder_decoder import EncoderDecoderConfig
from bertjax.errors import UserError
from bertjax.hf import native_format
from bertjax.hf.encoder_decoder.family import network_entries
from bertjax.hf.keymap import Entry, KeyMap
from bertjax.models.encoder_decoder import DECODER_HEADS, shared_paths

MODEL_TYPE = "bertjax-encoder-decoder"
ARCHITECTURE = "BertjaxForConditionalGeneration"
_OF_THE_FOLDER = ("architectures", "auto_map", "dtype")


def is_private(config: EncoderDecoderConfig) -> bool:
    """Returns whether only bertjax can run a model: its attention is of another package, without torch code."""
    return any(network.attention_class is not None for network in (config.encoder, config.decoder))


def render_config(config: EncoderDecoderConfig) -> dict[str, Any]:
    """Returns the config.json of a model, without ids of tokens."""
    heads = {"encoder": config.encoder_heads, "decoder": DECODER_HEADS}
    networks = {name: native_format.render_config(getattr(config, name), each) for name, each in heads.items()}
    code = {
        "AutoConfig": "configuration_bertjax.BertjaxEncoderDecoderConfig",
        "AutoModelForSeq2SeqLM": f"encoder_decoder_bertjax.{ARCHITECTURE}",
    }
    return {
        "architectures": [ARCHITECTURE],
        **({} if is_private(config) else {"auto_map": code}),
        "model_type": MODEL_TYPE,
        "is_encoder_decoder": True,
        "sharing": config.sharing,
        **{
            name: {key: value for key, value in network.items() if key not in _OF_THE_FOLDER}
            for name, network in networks.items()
        },
    }


def parse_config(values: dict[str, Any], where: str) -> EncoderDecoderConfig:
    """Returns the model of a config.json in this format.

    Raises:
        UserError: encoder or decoder is missing, or has an unknown key or a value of another type.
    """
    if not all(isinstance(values.get(network), dict) for network in ("encoder", "decoder")):
        raise UserError(f"{where}: encoder and decoder must be objects")
    (encoder, heads), (decoder, _) = (
        native_format.parse_config(_without_inert(values[network]), f"{where}: {network}")
        for network in ("encoder", "decoder")
    )
    start = values.get("decoder_start_token_id")
    return EncoderDecoderConfig(encoder, decoder, values.get("sharing", "none"), heads, "bertjax", start)


def _without_inert(network: dict[str, Any]) -> dict[str, Any]:
    """Returns the config of a network without keys that `transformers` adds to configs within others."""
    return {key: value for key, value in network.items() if key not in ("is_encoder_decoder", "problem_type")}


def make_keymap(config: EncoderDecoderConfig) -> KeyMap:
    """Returns the names of the parameters."""
    encoder = native_format.make_keymap(native_format.param_shapes(config.encoder, config.encoder_heads))
    decoder = native_format.make_keymap(native_format.param_shapes(config.decoder, DECODER_HEADS))
    complete = [*network_entries(encoder.entries, "encoder"), *network_entries(decoder.entries, "decoder")]
    sizes = {**encoder.sizes} | {letter.lower(): size for letter, size in decoder.sizes.items()}
    named = {entry.paths[0]: _name_tensor(entry) for entry in complete}
    shared = {f"decoder/{path}": f"encoder/{path}" for path in shared_paths(config)}
    ties = {
        copy: original
        for pair in shared.items()
        for (_, copy), (_, original) in zip(*(named[path].tensor_names(sizes) for path in pair), strict=True)
    }
    for copy, original in decoder.ties.items():
        table = original.replace("encoder.", "decoder.", 1)
        ties[copy] = ties.get(table, table)
    return KeyMap(tuple(entry for path, entry in named.items() if path not in shared), sizes, ties=ties)


def _name_tensor(entry: Entry) -> Entry:
    """Returns an entry with its tensor's name: `encoder.` or `decoder.` begins it, also of heads of the encoder."""
    if entry.paths[0].startswith("decoder/"):
        return dataclasses.replace(entry, tensor=entry.tensor.replace("encoder.", "decoder.", 1))
    prefix = "" if entry.tensor.startswith("encoder.") else "encoder."
    return dataclasses.replace(entry, tensor=prefix + entry.tensor)
