"""ConvBERT (arXiv:2008.02496) under the names of transformers (models/convbert).

An ELECTRA in whose heads a convolution takes half of the width: `model.dynamic_conv_kernel_size`. There the number of
heads in config.json is divided by `head_ratio`, and the convolution reads padding: a text gets what it gets there
without padding. `transformers` has no class for the discriminator, whose head is stored in our file.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from bertjax.config.model import EncoderConfig
from bertjax.errors import UserError
from bertjax.hf.keymap import Entry, KeyMap
from bertjax.hf.keymaps import bert, electra
from bertjax.hf.keymaps.family import ENCODER_ONLY, Activation, Family, Fields, change_defaults, linear, parse_fields
from bertjax.hf.safe_files import refuse

_FIELDS: Fields = {
    **change_defaults(bert.BERT_FIELDS, pad_token_id=1),
    "embedding_size": ("embedding_size", 768, int),
    "conv_kernel_size": ("dynamic_conv_kernel_size", 9, int),
    "num_groups": ("feed_forward_groups", 1, int),
}
_CHOICE = "ConvBertForMultipleChoice"
_SUMMARY: Fields = {"summary_activation": ("classifier_act", "gelu", Activation)}
_FEED_FORWARD = {"feed_forward/intermediate": "Y F", "feed_forward/output": "Z D"}


def make_keymap(config: EncoderConfig) -> KeyMap:
    """Returns the names of the parameters; X: width of all heads together, W: neighbors, Y, Z: channels of a group."""
    keymap, groups = electra.make_keymap(config, "convbert"), config.feed_forward_groups
    param, tensor = "encoder/layers/{L}/attention/convolution", "convbert.encoder.layer.{L}.attention.self"
    convolution = (
        Entry(f"{param}/depthwise", f"{tensor}.key_conv_attn_layer.depthwise.weight", "W 1 D", "conv"),
        *linear(f"{param}/key", f"{tensor}.key_conv_attn_layer.pointwise", "D A", bias=False, transform="pointwise"),
        Entry(f"{param}/key/bias", f"{tensor}.key_conv_attn_layer.bias", "A", "column"),
        *linear(f"{param}/weights", f"{tensor}.conv_kernel_layer", "A X"),
        *linear(f"{param}/value", f"{tensor}.conv_out_layer", "D A"),
    )
    neighbors = config.dynamic_conv_kernel_size
    sizes = {"W": neighbors, "X": config.num_heads * neighbors, "groups": groups}
    sizes |= {"Y": config.hidden_size // groups, "Z": config.intermediate_size // groups}
    without = ("rtd_head", *["choice_head/dense"] * (config.classifier_dense == "none"))
    inherited = (entry for entry in keymap.entries if not entry.paths[0].startswith(without))
    entries = (*(_of_layer(entry, groups) for entry in inherited), *convolution)
    return dataclasses.replace(keymap, entries=entries, sizes={**keymap.sizes, **sizes})


def _of_layer(entry: Entry, groups: int) -> Entry:
    """Returns an entry of an ELECTRA with the shape that a layer has here."""
    path = entry.paths[0]
    if path.endswith(tuple(f"attention/{name}/kernel" for name in ("query", "key", "value"))):
        return dataclasses.replace(entry, axes="D A")
    if path.endswith(tuple(f"attention/{name}/bias" for name in ("query", "key", "value"))):
        return dataclasses.replace(entry, axes="A")
    if path.endswith("attention/output/kernel"):
        return dataclasses.replace(entry, transform="head_parts_output")
    axes = next((axes for name, axes in _FEED_FORWARD.items() if path.endswith(f"{name}/kernel")), None)
    return entry if axes is None or groups == 1 else dataclasses.replace(entry, axes=axes, transform="blocks")


def _parse(values: dict[str, Any], fields: dict[str, Any], where: str) -> dict[str, Any]:
    ratio = parse_fields(values, {"head_ratio": ("ratio", 2, int)}, where)["ratio"]
    if ratio < 1 or fields["dynamic_conv_kernel_size"] < 1:
        raise UserError(f"{where}: head_ratio and conv_kernel_size must be at least 1")
    projected = fields["embedding_size"] != fields["hidden_size"]
    parsed = {
        "num_heads": max(1, fields["num_heads"] // ratio),
        "embedding_size": fields["embedding_size"] if projected else None,
        "classifier_act": fields["hidden_act"],
    }
    if (values.get("architectures") or [""])[0] != _CHOICE:
        return parsed
    summary = {"summary_type": values.get("summary_type", "last")}
    refuse(summary, where, "summary_type", ("first", "mean"), "the last state of a row may be one of padding")
    refuse(values, where, "summary_proj_to_labels", (False, None), "the score of a choice is one number")
    parsed["pooling"] = summary["summary_type"]
    if values.get("summary_use_proj"):
        parsed |= parse_fields({"summary_activation": values.get("summary_activation")}, _SUMMARY, where)
    else:
        refuse(values, where, "summary_activation", (None, ""), "it needs summary_use_proj = true")
        parsed["classifier_dense"] = "none"
    rate = parse_fields(values, {"summary_last_dropout": ("rate", 0.0, float)}, where)["rate"]
    return parsed | {"classifier_dropout": rate}


def _render(config: EncoderConfig, architecture: str) -> dict[str, Any]:
    keys = {"num_attention_heads": 2 * config.num_heads, "head_ratio": 2, "embedding_size": config.embedding_dim}
    if architecture != _CHOICE:
        return keys
    layer = {"summary_use_proj": True, "summary_activation": config.classifier_act}
    summary = {"summary_type": config.pooling, "summary_last_dropout": config.rate("classifier_dropout")}
    return keys | summary | (layer if config.classifier_dense == "own" else {})


FAMILY = Family(
    name="convbert",
    model_type="convbert",
    make_keymap=make_keymap,
    architectures={
        "ConvBertForSequenceClassification": ("sequence_classification",),
        _CHOICE: ("multiple_choice",),
        "ConvBertForTokenClassification": ("token_classification",),
        "ConvBertForQuestionAnswering": ("question_answering",),
        "ConvBertForMaskedLM": ("mlm",),
        "ConvBertModel": (),
    },
    fields=_FIELDS,
    structure={"mlm_act": "gelu", "classifier_dense": "own", "initializer": "normal"},
    constants={"tie_word_embeddings": True},
    unsupported=ENCODER_ONLY,
    training_only=(("summary_first_dropout", (0, None), "dropout precedes the score alone"),),
    ignored_keys="summary_type summary_use_proj summary_activation summary_last_dropout summary_proj_to_labels",
    extra_fields=_parse,
    extra_keys=_render,
    prefix="convbert.",
)
