"""The encoder of T5Gemma (transformers: models/t5gemma; arXiv:2504.06225): Gemma 2 whose tokens see both sides.

Its settings are a table in config.json, next to that of the decoder. Of a model with a decoder the encoder
alone is read.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from bertjax.config.model import EncoderConfig
from bertjax.errors import UserError
from bertjax.hf.keymap import KeyMap
from bertjax.hf.keymaps import gemma
from bertjax.hf.keymaps.family import ENCODER_ONLY, IGNORED_KEYS, Family, Fields, linear, parse_fields

_GEMMA2 = gemma.FAMILIES["gemma2"]
_CLASSES = {"T5GemmaForTokenClassification": ("token_classification",), "T5GemmaEncoderModel": ()}
_LAYER = {"input_layernorm": "pre_self_attn_layernorm", "post_attention_layernorm": "post_self_attn_layernorm"}
_DROPPED = ("tie_word_embeddings", "final_logit_softcapping", "attention_dropout", "initializer_range")
_INNER: Fields = {key: field for key, field in _GEMMA2.fields.items() if key not in _DROPPED}
# Keys outside of the encoder's table, which hold for both networks.
_OUTER: Fields = {
    "dropout_rate": ("hidden_dropout", 0.0, float),
    "attention_dropout": ("attention_dropout", 0.0, float),
    "classifier_dropout_rate": ("classifier_dropout", 0.0, float),
    "initializer_range": ("initializer_range", 0.02, float),
}
_COPIES = ("vocab_size", "pad_token_id")
_LABELS = ("id2label", "num_labels")
# Further keys of the encoder's table, which mean nothing outside of it.
_TABLE = {*_INNER, "attention_bias", "layer_types", "rope_parameters", "rope_scaling", "rope_theta", "sliding_window"}


def make_keymap(config: EncoderConfig) -> KeyMap:
    """Returns the names of the parameters."""
    keymap = gemma.make_keymap(config)
    entries = [dataclasses.replace(each, tensor=_rename(each.tensor)) for each in keymap.entries if not each.head]
    return dataclasses.replace(
        keymap,
        entries=(*entries, *linear("token_head/output", "score.out_proj", "D C", head="token_classification")),
        renames=((r"^encoder\.", "model.encoder."),),  # files of the bare model
        ties={},
        backbone=r"^model\.encoder\.",
    )


def _rename(tensor: str) -> str:
    *stem, layer_part, leaf = tensor.replace("model.", "model.encoder.", 1).split(".")
    return ".".join((*stem, _LAYER.get(layer_part, layer_part), leaf))


def _flatten(values: dict[str, Any], where: str) -> dict[str, Any]:
    """Returns the keys of the encoder, with those outside of its table that count."""
    table = values.get("encoder") or {}
    if not isinstance(table, dict):
        raise UserError(f"{where}: encoder must be a table, not {table!r}")
    is_alone = values.get("is_encoder_decoder", True) is False
    if not is_alone and str((values.get("architectures") or [""])[0]) in _CLASSES:
        raise UserError(f"{where}: is_encoder_decoder must be false: with a decoder the class is another model")
    parse_fields(values, {key: _INNER[key] for key in _COPIES if key in values}, where)  # of the right kind, if unread
    outside = {f"{key} (outside of encoder)" if key in _TABLE else key: value for key, value in values.items()}
    for key in ("encoder", "decoder", "is_encoder_decoder", *(f"{copy} (outside of encoder)" for copy in _COPIES)):
        outside.pop(key, None)
    ignored = {*IGNORED_KEYS, *_OUTER, *_LABELS}
    inside = {key: value for key, value in table.items() if key not in ignored}
    return {**outside, **inside, "is_causal": False}


def _nest(values: dict[str, Any]) -> dict[str, Any]:
    encoder = {key: value for key, value in values.items() if key in _TABLE}
    outside = {key: value for key, value in values.items() if key not in _TABLE or key in _COPIES}
    return {**outside, "encoder": {"model_type": "t5_gemma_module", **encoder}}


def _parse(values: dict[str, Any], fields: dict[str, Any], where: str) -> dict[str, Any]:
    return {
        **_GEMMA2.extra_fields(values, fields, where),
        **dict.fromkeys(("activation_dropout", "output_dropout"), fields["hidden_dropout"]),
        "classifier_dropout": fields["classifier_dropout"],
        "logit_soft_cap": None,
    }


def _render(config: EncoderConfig, architecture: str) -> dict[str, Any]:
    rendered = _GEMMA2.extra_keys(config, architecture)
    return {key: value for key, value in rendered.items() if key in _TABLE}


FAMILY = Family(
    name="t5gemma",
    model_type="t5gemma",
    make_keymap=make_keymap,
    architectures=_CLASSES,
    fields={**_INNER, **_OUTER},
    structure={**_GEMMA2.structure, "mlm_bias": True},
    constants={"is_encoder_decoder": False, "bos_token_id": None, "eos_token_id": None},
    unsupported=ENCODER_ONLY,
    ignored_keys="cache_implementation cross_attention_hidden_size final_logit_softcapping rope_theta",
    extra_fields=_parse,
    extra_keys=_render,
    prefix="model.",
    flatten=_flatten,
    nest=_nest,
)
