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
    SIDECAR,
    architectures,
    make_shared_keymap,
    parse_shared_fields,
    render_shared_config,
)
from bertjax.hf.keymaps.family import Family, Fields, linear, norm, parse_activation, parse_fields, refuse

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
    "share_att_key": ("share_att_key", False, bool),
    "position_buckets": ("position_buckets", -1, int),
    "norm_rel_ebd": ("norm_relative_embeddings", "none", str),
}


def make_keymap(config: EncoderConfig) -> KeyMap:
    param, tensor = "encoder/layers/{L}/attention", "deberta.encoder.layer.{L}.attention.self"
    own = config.attention_position == "disentangled" and not config.share_att_key
    terms = config.pos_att_type if own else ()
    return make_shared_keymap(
        config,
        (
            *linear(f"{param}/query", f"{tensor}.query_proj", "D A"),
            *linear(f"{param}/key", f"{tensor}.key_proj", "D A"),
            *linear(f"{param}/value", f"{tensor}.value_proj", "D A"),
            *(linear(f"{param}/position_key", f"{tensor}.pos_key_proj", "D A") if "c2p" in terms else ()),
            *(linear(f"{param}/position_query", f"{tensor}.pos_query_proj", "D A") if "p2c" in terms else ()),
            *_convolution_entries(config),
        ),
    )


def _convolution_entries(config: EncoderConfig) -> tuple[Entry, ...]:
    if not config.conv_kernel_size:
        return ()
    param, tensor = "encoder/convolution", "deberta.encoder.conv"
    return (
        Entry(f"{param}/kernel", f"{tensor}.conv.weight", "W D D", "conv"),
        Entry(f"{param}/bias", f"{tensor}.conv.bias", "D"),
        *norm(f"{param}/norm", f"{tensor}.LayerNorm", config),
    )


def from_hf_config(values: dict[str, Any], where: str = "config.json") -> EncoderConfig:
    """Our config from a DebertaV2Config; raises `UserError` for a key that would change the maths otherwise."""
    fields, more = parse_shared_fields(values, _FIELDS, where), parse_fields(values, _MORE, where)
    head_size = fields["hidden_size"] // max(1, fields["num_heads"])
    refuse(values, where, "attention_head_size", (head_size, None), "heads share the hidden size")
    refuse(values, where, "conv_groups", (1, None), "the convolution has one group")
    normed = "layer_norm" in more["norm_relative_embeddings"].lower()
    relative = fields["attention_position"] == "disentangled"
    if normed and not relative:
        raise UserError(f"{where}: norm_rel_ebd needs relative_attention = true: there is no table to norm")
    return EncoderConfig(
        **fields,
        share_att_key=more["share_att_key"],
        position_buckets=max(0, more["position_buckets"]) if relative else 0,
        norm_relative_embeddings=normed,
        conv_act=parse_activation(values, where, "conv_act", "tanh"),
    )


def to_hf_config(config: EncoderConfig, architecture: str) -> dict[str, Any]:
    convolution = {"conv_kernel_size": config.conv_kernel_size, "conv_act": config.conv_act, "conv_groups": 1}
    return {
        **render_shared_config(config, _FIELDS),
        "attention_head_size": config.head_dim,
        "share_att_key": config.share_att_key,
        "position_buckets": config.position_buckets or -1,
        "norm_rel_ebd": "layer_norm" if config.norm_relative_embeddings else "none",
        **(convolution if config.conv_kernel_size else {}),
    }


FAMILY = Family(
    name="deberta-v2",
    model_type="deberta-v2",
    make_keymap=make_keymap,
    architectures=architectures("DebertaV2"),
    from_hf_config=from_hf_config,
    to_hf_config=to_hf_config,
    prefix="deberta.",
    sidecar_paths=SIDECAR,
)
