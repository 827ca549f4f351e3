"""ModernBERT as a decoder (transformers: models/modernbert_decoder/modeling_modernbert_decoder.py): Ettin's.

It differs from the encoder in separate projections of query, key and value, the name of its head, and the window: a
token sees itself and the `local_attention // 2 - 1` before it, in the encoder `local_attention // 2` on either side.
With `is_causal` false transformers 5 runs it as an encoder, with that window.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from bertjax.config.model import EncoderConfig
from bertjax.errors import UserError
from bertjax.hf.json_keys import refuse
from bertjax.hf.keymap import Entry, KeyMap
from bertjax.hf.keymaps import modernbert
from bertjax.hf.keymaps.family import SEQUENCE, linear, parse_fields


def make_keymap(config: EncoderConfig) -> KeyMap:
    """Returns the names of the parameters."""
    keymap = modernbert.make_keymap(config)
    attention, bias = "encoder/layers/{L}/attention", config.attention_bias == "all"
    projections = [
        entry
        for name in ("query", "key", "value")
        for entry in linear(f"{attention}/{name}", f"model.layers.{{L}}.attn.{name[0]}_proj", "D A", bias)
    ]
    others = [
        dataclasses.replace(entry, tensor=entry.tensor.replace("head.", "lm_head.", 1))
        for entry in keymap.entries
        if "Wqkv" not in entry.tensor and entry.head in ("", "mlm")
    ]
    return dataclasses.replace(keymap, entries=(*projections, *others), backbone=r"^(model|lm_head|decoder)\.")


def _classifier_entries(config: EncoderConfig) -> tuple[Entry, ...]:
    """Returns the entries of the classifier; one setting gives both of its layers a bias or none."""
    entries = (entry for entry in modernbert.make_keymap(config).entries if entry.head == SEQUENCE)
    return tuple(entry for entry in entries if config.head_dense_bias or entry.tensor != "classifier.bias")


def _extra_fields(values: dict[str, Any], fields: dict[str, Any], where: str) -> dict[str, Any]:
    parsed = modernbert.FAMILY.extra_fields(values, fields, where)
    refuse(values if values.get("pad_token_id", 0) is None else {}, where, "pad_token_id", (), "a number is needed")
    parsed |= parse_fields(values, {"is_causal": ("causal", True, bool)}, where)
    if parsed["causal"] and parsed["local_attention"]:
        parsed["local_attention"] = parsed["local_attention"] // 2 * 2 - 2
        if parsed["local_attention"] < 2:
            raise UserError(f"{where}: local_attention must be at least 4: local layers would see their token alone")
    return parsed | {
        "pooling": "last" if parsed["causal"] else "mean",
        "classifier_bias": fields["head_dense_bias"],
    }


def _extra_keys(config: EncoderConfig, architecture: str) -> dict[str, Any]:
    rendered = modernbert.FAMILY.extra_keys(dataclasses.replace(config, pooling="first"), architecture)
    if config.causal and config.local_attention:
        rendered["local_attention"] = config.local_attention // 2 * 2 + 2
    del rendered["classifier_pooling"]
    return rendered | ({} if config.causal else {"is_causal": False})


FAMILY = dataclasses.replace(
    modernbert.FAMILY,
    name="modernbert-decoder",
    model_type="modernbert-decoder",
    make_keymap=make_keymap,
    architectures={"ModernBertDecoderForCausalLM": ("mlm",), "ModernBertDecoderModel": ()},
    constants={"tie_word_embeddings": True, "eos_token_id": None},  # its other ids cannot be null
    last_token_classes={"ModernBertDecoderForSequenceClassification": _classifier_entries},
    extra_fields=_extra_fields,
    extra_keys=_extra_keys,
)
