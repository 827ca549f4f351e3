"""DeBERTa v2 and v3 under Hugging Face's names (transformers: models/deberta_v2/modeling_deberta_v2.py).

v3 is v2 trained with replaced token detection; the head of that objective has no class in `transformers`.
"""

from __future__ import annotations

from typing import Any

from bertjax.config.model import EncoderConfig
from bertjax.errors import UserError
from bertjax.hf.json_keys import refuse
from bertjax.hf.keymap import Entry, KeyMap
from bertjax.hf.keymaps import deberta
from bertjax.hf.keymaps.family import (
    ENCODER_ONLY,
    Activation,
    Family,
    Fields,
    change_defaults,
    linear,
    norm,
    parse_fields,
)

_DEFAULTS = {
    "vocab_size": 128_100,
    "hidden_size": 1536,
    "num_hidden_layers": 24,
    "num_attention_heads": 24,
    "intermediate_size": 6144,
}
_FIELDS: Fields = {
    **change_defaults(deberta.FIELDS, **_DEFAULTS),
    "share_att_key": ("share_att_key", False, bool),
}
_CONVOLUTION: Fields = {
    "conv_kernel_size": ("conv_kernel_size", 0, int),
    "conv_act": ("conv_act", "tanh", Activation),
}
_RELATIVE: Fields = {
    "position_buckets": ("buckets", -1, int),
    "norm_rel_ebd": ("norm", "none", str),
}


def make_keymap(config: EncoderConfig) -> KeyMap:
    """Returns the names of a DeBERTa v2's parameters."""
    param, tensor = "encoder/layers/{L}/attention", "deberta.encoder.layer.{L}.attention.self"
    separate = config.attention_position == "disentangled" and not config.share_att_key
    terms = config.pos_att_type if separate else ()
    return deberta.make_shared_keymap(
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


def _extra_fields(values: dict[str, Any], fields: dict[str, Any], where: str) -> dict[str, Any]:
    rest = deberta.parse_shared(values, fields, where) | parse_fields(values, _CONVOLUTION, where)
    head_size = fields["hidden_size"] // max(1, fields["num_heads"])
    refuse(values, where, "attention_head_size", (head_size,), "heads share the hidden size")
    table = parse_fields(values, _RELATIVE, where)
    relative, normed = rest["attention_position"] == "disentangled", "layer_norm" in table["norm"].lower()
    if normed and not relative:
        raise UserError(f"{where}: norm_rel_ebd needs relative_attention = true, which has the table to normalize")
    buckets = max(0, table["buckets"]) if relative else 0
    return {**rest, "position_buckets": buckets, "norm_relative_embeddings": normed}


def _extra_keys(config: EncoderConfig, architecture: str) -> dict[str, Any]:
    convolution = {"conv_kernel_size": config.conv_kernel_size, "conv_act": config.conv_act, "conv_groups": 1}
    return {
        **deberta.render_shared(config, architecture),
        "attention_head_size": config.head_dim,
        "position_buckets": config.position_buckets or -1,
        "norm_rel_ebd": "layer_norm" if config.norm_relative_embeddings else "none",
        "conv_kernel_size": config.conv_kernel_size,
        **(convolution if config.conv_kernel_size else {}),
    }


FAMILY = Family(
    name="deberta-v2",
    model_type="deberta-v2",
    make_keymap=make_keymap,
    architectures={"DebertaV2ForMultipleChoice": ("multiple_choice",), **deberta.name_architectures("DebertaV2")},
    fields=_FIELDS,
    structure=deberta.STRUCTURE,
    constants=deberta.CONSTANTS,
    unsupported=(*ENCODER_ONLY, ("conv_groups", (1, None), "the convolution has one group")),
    training_only=deberta.TRAINING_ONLY,
    ignored_keys=deberta.IGNORED_KEYS,
    extra_fields=_extra_fields,
    extra_keys=_extra_keys,
    prefix="deberta.",
    sidecar_paths=deberta.SIDECAR_PATHS,
)
