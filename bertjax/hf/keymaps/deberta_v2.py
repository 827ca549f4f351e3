"""DeBERTa v2 and v3 under Hugging Face's names (transformers: models/deberta_v2/modeling_deberta_v2.py).

v3 is v2 trained on replaced tokens; its head for them has no class there.
"""

from __future__ import annotations

from typing import Any

from bertjax.config.model import EncoderConfig
from bertjax.errors import UserError
from bertjax.hf.keymap import Entry, KeyMap
from bertjax.hf.keymaps.deberta import (
    FIELDS,
    SIDE,
    architectures,
    versioned_config,
    versioned_fields,
    versioned_keymap,
)
from bertjax.hf.keymaps.family import Family, Fields, linear, norm, read_activation, read_config, refuse

_FIELDS: Fields = {
    **FIELDS,
    "vocab_size": ("vocab_size", 128_100, int),
    "hidden_size": ("hidden_size", 1536, int),
    "num_hidden_layers": ("num_layers", 24, int),
    "num_attention_heads": ("num_heads", 24, int),
    "intermediate_size": ("intermediate_size", 6144, int),
    "conv_kernel_size": ("conv_kernel_size", 0, int),
}
_MORE: Fields = {
    "share_att_key": ("relative_share_key", False, bool),
    "position_buckets": ("relative_buckets", -1, int),
    "norm_rel_ebd": ("relative_norm", "none", str),
}


def keymap(config: EncoderConfig) -> KeyMap:
    ours, theirs = "encoder/layers/{L}/attention", "deberta.encoder.layer.{L}.attention.self"
    own = config.attention_position == "disentangled" and not config.relative_share_key
    terms = config.relative_terms if own else ()
    return versioned_keymap(
        config,
        (
            *linear(f"{ours}/query", f"{theirs}.query_proj", "D A"),
            *linear(f"{ours}/key", f"{theirs}.key_proj", "D A"),
            *linear(f"{ours}/value", f"{theirs}.value_proj", "D A"),
            *(linear(f"{ours}/position_key", f"{theirs}.pos_key_proj", "D A") if "c2p" in terms else ()),
            *(linear(f"{ours}/position_query", f"{theirs}.pos_query_proj", "D A") if "p2c" in terms else ()),
            *_convolution_entries(config),
        ),
    )


def _convolution_entries(config: EncoderConfig) -> tuple[Entry, ...]:
    if not config.conv_kernel_size:
        return ()
    ours, theirs = "encoder/convolution", "deberta.encoder.conv"
    return (
        Entry(f"{ours}/kernel", f"{theirs}.conv.weight", "W D D", "conv"),
        Entry(f"{ours}/bias", f"{theirs}.conv.bias", "D"),
        *norm(f"{ours}/norm", f"{theirs}.LayerNorm", config),
    )


def config_from_huggingface(values: dict[str, Any], where: str = "config.json") -> EncoderConfig:
    """Our config from a DebertaV2Config; raises `UserError` for a key that would change the maths otherwise."""
    fields, more = versioned_fields(values, _FIELDS, where), read_config(values, _MORE, where)
    head_size = fields["hidden_size"] // max(1, fields["num_heads"])
    refuse(values, where, "attention_head_size", (head_size, None), "heads share the hidden size")
    refuse(values, where, "conv_groups", (1, None), "the convolution has one group")
    normed = "layer_norm" in more["relative_norm"].lower()
    relative = fields["attention_position"] == "disentangled"
    if normed and not relative:
        raise UserError(f"{where}: norm_rel_ebd needs relative_attention = true: there is no table to norm")
    return EncoderConfig(
        **fields,
        relative_share_key=more["relative_share_key"],
        relative_buckets=max(0, more["relative_buckets"]) if relative else 0,
        relative_norm=normed,
        conv_act=read_activation(values, where, "conv_act", "tanh"),
    )


def config_to_huggingface(config: EncoderConfig, architecture: str) -> dict[str, Any]:
    convolution = {"conv_kernel_size": config.conv_kernel_size, "conv_act": config.conv_act, "conv_groups": 1}
    return {
        **versioned_config(config, _FIELDS),
        "attention_head_size": config.head_dim,
        "share_att_key": config.relative_share_key,
        "position_buckets": config.relative_buckets or -1,
        "norm_rel_ebd": "layer_norm" if config.relative_norm else "none",
        **(convolution if config.conv_kernel_size else {}),
    }


FAMILY = Family(
    name="deberta-v2",
    model_type="deberta-v2",
    keymap=keymap,
    architectures=architectures("DebertaV2"),
    config_from_huggingface=config_from_huggingface,
    config_to_huggingface=config_to_huggingface,
    prefix="deberta.",
    side=SIDE,
)
