"""Classifiers of BART and mBART under Hugging Face's names (transformers: models/bart, models/mbart).

Encoder and decoder have the tensors of the class that generates (`hf/encoder_decoder/bart.py`). The decoder reads the
text itself, one token late; the head reads its state at the last end token, or all states to find an answer.
"""

from __future__ import annotations

from typing import Any

from bertjax.config.model import EncoderConfig
from bertjax.hf.encoder_decoder import bart
from bertjax.hf.encoder_decoder.family import parse_start, render_start, require_decoder, single_keymap
from bertjax.hf.keymap import KeyMap
from bertjax.hf.keymaps.bert import classifier_entries, token_head_entries
from bertjax.hf.keymaps.family import Family, Fields
from bertjax.hf.safe_files import refuse

FIELDS: Fields = {
    **bart.FIELDS,
    **bart.network_fields("encoder"),
    "decoder_layers": ("decoder_layers", 12, int),
    "classifier_dropout": ("classifier_dropout", 0.0, float),
    "eos_token_id": ("eos_token_id", 2, int),
}
_EQUAL = {"decoder_attention_heads": "num_heads", "decoder_ffn_dim": "intermediate_size"}


def make_keymap(config: EncoderConfig) -> KeyMap:
    """Returns the names of the parameters."""
    answers = (entry for entry in token_head_entries() if entry.head == "question_answering")
    heads = (*classifier_entries("classification_head.dense", "classification_head.out_proj"), *answers)
    return single_keymap(bart.make_keymap, config, heads, r"^model\.")


def _extra_fields(
    values: dict[str, Any], fields: dict[str, Any], where: str, start: str, structure: dict[str, Any]
) -> dict[str, Any]:
    defaults, order = bart.network_fields("decoder"), bart.NETWORK | structure
    for key, name in _EQUAL.items():
        refuse({key: values.get(key, defaults[key][1])}, where, key, (fields[name],), f"the encoder has {fields[name]}")
    bart.require_norms(values, order, where)
    require_decoder(values, fields, where)
    return {"decoder_start": start or parse_start({"decoder_start_token_id": 2, **values}, fields, where)}


def _extra_keys(config: EncoderConfig, architecture: str) -> dict[str, Any]:
    return {**{key: getattr(config, name) for key, name in _EQUAL.items()}, **render_start(config)}


def _family(name: str, classes: str, start: str, num_labels: int, **structure: Any) -> Family:
    architectures = {
        f"{classes}ForSequenceClassification": ("sequence_classification",),
        f"{classes}ForQuestionAnswering": ("question_answering",),
    }
    return Family(
        name=name,
        model_type=name,
        make_keymap=make_keymap,
        architectures=architectures,
        decoder_classes=tuple(architectures),
        fields=FIELDS,
        structure={
            **bart.NETWORK,
            "position_offset": 2,
            "pooling": "eos",
            "decoder_start": start or "eos",
            **structure,
        },
        training_only=tuple((f"{each}_layerdrop", (0.0, None), "all layers run") for each in ("encoder", "decoder")),
        aliases={
            "hidden_size": "d_model",
            "num_attention_heads": "encoder_attention_heads",
            "num_hidden_layers": "encoder_layers",
        },
        ignored_keys=bart.INERT + " decoder_start_token_id forced_eos_token_id forced_bos_token_id",
        extra_fields=lambda values, fields, where: _extra_fields(values, fields, where, start, structure),
        extra_keys=_extra_keys,
        prefix="model.",
        num_labels=num_labels,
    )


FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        _family("bart", "Bart", "", 3),
        _family("mbart", "MBart", "last", 2, **bart.PRE_NORM),
    )
}
