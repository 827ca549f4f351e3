"""Classifiers of BART, mBART, MVP and PLBART under Hugging Face's names (transformers: models/bart, models/mbart, ...).

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
from bertjax.hf.keymaps.family import Family, Fields, change_defaults
from bertjax.hf.safe_files import refuse

FIELDS: Fields = {
    **bart.FIELDS,
    **bart.network_fields("encoder"),
    "decoder_layers": ("decoder_layers", 12, int),
    "classifier_dropout": ("classifier_dropout", 0.0, float),
    "eos_token_id": ("eos_token_id", 2, int),
}
_PLBART: dict[str, Any] = {"vocab_size": 50005, "d_model": 768, "attention_dropout": 0.1, "scale_embedding": True}
for _network in ("encoder", "decoder"):
    _PLBART |= {f"{_network}_layers": 6, f"{_network}_attention_heads": 12, f"{_network}_ffn_dim": 3072}
_EQUAL = {"decoder_attention_heads": "num_heads", "decoder_ffn_dim": "intermediate_size"}


def make_keymap(config: EncoderConfig) -> KeyMap:
    """Returns the names of the parameters."""
    answers = (entry for entry in token_head_entries() if entry.head == "question_answering")
    heads = (*classifier_entries("classification_head.dense", "classification_head.out_proj"), *answers)
    return single_keymap(bart.make_keymap, config, heads, r"^model\.")


def _extra_fields(
    values: dict[str, Any],
    fields: dict[str, Any],
    where: str,
    start: str,
    structure: dict[str, Any],
    defaults: dict[str, Any],
) -> dict[str, Any]:
    usual, order = change_defaults(bart.network_fields("decoder"), **defaults), bart.NETWORK | structure
    for key, name in _EQUAL.items():
        refuse({key: values.get(key, usual[key][1])}, where, key, (fields[name],), f"the encoder has {fields[name]}")
    bart.require_norms(values, order, where)
    require_decoder(values, fields, where)
    return {"decoder_start": start or parse_start({"decoder_start_token_id": 2, **values}, fields, where)}


def _extra_keys(config: EncoderConfig, architecture: str) -> dict[str, Any]:
    return {**{key: getattr(config, name) for key, name in _EQUAL.items()}, **render_start(config)}


def _family(
    name: str,
    classes: str,
    start: str,
    num_labels: int,
    structure: dict[str, Any],
    heads: tuple[str, ...] = ("sequence_classification", "question_answering"),
    **defaults: Any,
) -> Family:
    """Returns a family with BART's tensors.

    Args:
        name: value of `model_type`.
        classes: what the names of its classes begin with.
        start: `decoder_start` of all of its models; empty: config.json says it.
        num_labels: labels of a config.json that names none.
        structure: fields that its models have besides those of all.
        heads: those that it has a class for.
        **defaults: other defaults of keys.
    """
    architectures = {f"{classes}For{head.title().replace('_', '')}": (head,) for head in heads}
    return Family(
        name=name,
        model_type=name,
        make_keymap=make_keymap,
        architectures=architectures,
        decoder_classes=tuple(architectures),
        fields=change_defaults(FIELDS, **defaults),
        structure={
            **bart.NETWORK,
            "position_offset": 2,
            "pooling": "eos",
            "decoder_start": start or "eos",
            **structure,
        },
        unsupported=(("use_prompt", (False, None), "prompts of every layer"),),
        training_only=tuple((f"{each}_layerdrop", (0.0, None), "all layers run") for each in ("encoder", "decoder")),
        aliases={
            "hidden_size": "d_model",
            "num_attention_heads": "encoder_attention_heads",
            "num_hidden_layers": "encoder_layers",
        },
        ignored_keys=bart.INERT
        + " decoder_start_token_id forced_eos_token_id forced_bos_token_id prompt_length prompt_mid_dim",
        extra_fields=lambda values, fields, where: _extra_fields(values, fields, where, start, structure, defaults),
        extra_keys=_extra_keys,
        prefix="model.",
        num_labels=num_labels,
    )


FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        _family("bart", "Bart", "", 3, {}),
        _family("mbart", "MBart", "last", 2, bart.PRE_NORM),
        _family("mvp", "Mvp", "", 2, {}, vocab_size=50267),
        _family("plbart", "PLBart", "last", 2, {}, ("sequence_classification",), **_PLBART),
    )
}
