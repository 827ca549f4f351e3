"""`EncoderDecoderModel` of BERTs or RoBERTas (transformers: models/encoder_decoder; arXiv:1907.12461).

Each network is a folder's model of its family under a prefix; cross-attention has the names of self-attention. Versions
before 5 could share all of both (`tie_encoder_decoder`): files then hold one of them, or both with equal numbers.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from bertjax.config.encoder_decoder import EncoderDecoderConfig
from bertjax.config.model import EncoderConfig
from bertjax.errors import UserError
from bertjax.hf.encoder_decoder.family import EncoderDecoderFamily, Values, joint_axis_sizes, network_entries
from bertjax.hf.keymap import Entry, KeyMap
from bertjax.hf.keymaps import FAMILIES, find_family
from bertjax.hf.keymaps.family import Family
from bertjax.hf.safe_files import JsonKeys
from bertjax.models.encoder_decoder import shared_paths

DECODER_CLASSES = {"bert": "BertLMHeadModel", "roberta": "RobertaForCausalLM"}
"""Family of the decoder -> class of the decoder."""
_DECODER: Values = {"is_decoder": True, "add_cross_attention": True}


def _parse(values: JsonKeys, where: str) -> EncoderDecoderConfig:
    encoder = _parse_network(values.get("encoder"), f"{where}: encoder")
    values_of_decoder = dict(values.get("decoder") or {})
    for key, needed in _DECODER.items():
        if values_of_decoder.pop(key, False) is not needed:
            raise UserError(f"{where}: decoder: {key} must be true")
    decoder = _parse_network(values_of_decoder, f"{where}: decoder").as_decoder(encoder)
    if encoder.hidden_size != decoder.hidden_size:
        raise UserError(
            f"{where}: widths of {encoder.hidden_size} and {decoder.hidden_size}, with a projection between them, are "
            "not supported"
        )
    return EncoderDecoderConfig(encoder, decoder, "all" if values.get("tie_encoder_decoder") else "none")


def _parse_network(values: Any, where: str) -> EncoderConfig:
    kind = values.get("model_type") if isinstance(values, dict) else None
    family = find_family(kind) if kind in DECODER_CLASSES else None
    if family is None:
        raise UserError(f"{where}: model_type {kind!r} is not supported; supported: {', '.join(DECODER_CLASSES)}")
    values = {key: value for key, value in values.items() if key not in ("id2label", "label2id", "num_labels")}
    return family.parse_config(values | {"architectures": None}, where)


def _family(config: EncoderConfig) -> Family:
    if config.family not in DECODER_CLASSES:
        raise UserError(f"model.family={config.family} has no decoder; {', '.join(DECODER_CLASSES)} have")
    return FAMILIES[config.family]


def _render(config: EncoderDecoderConfig) -> Values:
    encoder, decoder = _family(config.encoder), _family(config.decoder)
    single = dataclasses.replace(config.decoder, causal=False, cross_attention_hidden_size=None)
    name = next(name for name in decoder.architectures if name.endswith("ForMaskedLM"))
    return {
        "encoder": encoder.render_config(config.encoder, list(encoder.architectures)[-1]),
        "decoder": decoder.render_config(single, name)
        | _DECODER
        | {"architectures": [DECODER_CLASSES[config.decoder.family]]},
        **({"tie_encoder_decoder": True} if config.sharing == "all" else {}),
    }


def make_keymap(config: EncoderDecoderConfig) -> KeyMap:
    """Returns the names of the parameters: those of both families, under the prefix of the network."""
    encoder, decoder = _family(config.encoder), _family(config.decoder)
    bare = list(encoder.architectures)[-1]
    first, second = encoder.make_keymap(config.encoder), decoder.make_keymap(config.decoder)
    of_encoder = [
        dataclasses.replace(entry, tensor=f"encoder.{encoder.rename_for(bare, entry.tensor)}")
        for entry in first.select(config.encoder_heads)
    ]
    of_decoder = [
        dataclasses.replace(entry, tensor=f"decoder.{entry.tensor}")
        for each in second.select(("mlm",))
        for entry in (each, *_crossed(each))
    ]
    entries = (*network_entries(tuple(of_encoder), "encoder"), *network_entries(tuple(of_decoder), "decoder"))
    shared = {f"decoder/{path}" for path in shared_paths(config)}
    copies = {f"decoder.{copy}": f"decoder.{original}" for copy, original in second.ties.items()}
    sizes, owned = joint_axis_sizes(config), {path: entry for entry in entries for path in entry.paths}
    for path in shared:
        names = (
            (name for _, name in owned[each].tensor_names(sizes))
            for each in (path, path.replace("decoder/", "encoder/", 1))
        )
        copies |= dict(zip(*names, strict=True))
    copies = {copy: copies.get(original, original) for copy, original in copies.items()}  # no copies of copies
    return KeyMap(
        entries=tuple(entry for entry in entries if not set(entry.paths) & shared),
        sizes=sizes,
        ignored=first.ignored,
        ties=copies,
    )


def _crossed(entry: Entry) -> list[Entry]:
    """Returns the entry of cross-attention that is named like one of self-attention."""
    if "/attention/" not in entry.paths[0]:
        return []
    param = entry.param_templates[0].replace("/attention/", "/cross_attention/")
    return [dataclasses.replace(entry, param=param, tensor=entry.tensor.replace(".attention.", ".crossattention."))]


ENCODER_DECODER_MODEL = EncoderDecoderFamily(
    name="encoder-decoder",
    architecture="EncoderDecoderModel",
    parse=_parse,
    render=_render,
    make_keymap=make_keymap,
    ignored_keys="decoder encoder label2id tie_encoder_decoder vocab_size",
    counts_padding=False,
)
