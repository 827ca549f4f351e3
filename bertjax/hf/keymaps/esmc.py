"""ESM C (ESM Cambrian, EvolutionaryScale 2024) under Hugging Face's names (transformers: models/esmc/modeling_esmc.py).

Llama's names with layer norms: of all heads' queries and keys together, and after the last layer, without a bias. What
blocks add is divided by the root of the number of layers / 36.
"""

from __future__ import annotations

from typing import Any

from bertjax.config.model import EncoderConfig
from bertjax.hf.keymap import Entry, KeyMap
from bertjax.hf.keymaps.bert import classifier_entries
from bertjax.hf.keymaps.family import ENCODER_ONLY, Activation, Family, Fields, axis_sizes, linear, norm, parse_fields
from bertjax.hf.keymaps.rope_parameters import parse_rope, render_length, render_rope
from bertjax.hf.safe_files import refuse

_FIELDS: Fields = {
    "vocab_size": ("vocab_size", 64, int),
    "hidden_size": ("hidden_size", 2560, int),
    "intermediate_size": ("intermediate_size", 6912, int),
    "num_hidden_layers": ("num_layers", 80, int),
    "num_attention_heads": ("num_heads", 40, int),
    "hidden_act": ("hidden_act", "silu", Activation),
    "max_position_embeddings": ("max_position_embeddings", 2048, int),
    "mlp_bias": ("feed_forward_bias", False, bool),
    "attention_dropout": ("attention_dropout", 0.0, float),
    "classifier_dropout": ("classifier_dropout", 0.1, float),
    "initializer_range": ("initializer_range", 0.02, float),
    "pad_token_id": ("pad_token_id", 1, int),
}
_FEED_FORWARD = {"gate": ("gate_proj", "D F"), "intermediate": ("up_proj", "D F"), "output": ("down_proj", "F D")}


def make_keymap(config: EncoderConfig) -> KeyMap:
    """Returns the names of an ESM C's parameters."""
    param, tensor, biased = "encoder/layers/{L}", "esmc.layers.{L}", config.attention_bias == "all"
    attention, feed_forward = f"{param}/attention", f"{param}/feed_forward"
    entries = [Entry("encoder/embeddings/word_embeddings/embedding", "esmc.embed_tokens.weight", "V D")]
    for name in ("query", "key", "value", "output"):
        entries += linear(f"{attention}/{name}", f"{tensor}.self_attn.{name[0]}_proj", "D D", biased)
    for name in ("query", "key"):
        entries.append(Entry(f"{attention}/{name}_norm/scale", f"{tensor}.self_attn.{name[0]}_norm.weight", "D"))
    for name, (theirs, axes) in _FEED_FORWARD.items():
        entries += linear(f"{feed_forward}/{name}", f"{tensor}.mlp.{theirs}", axes, config.feed_forward_bias)
    entries += norm(f"{attention}/norm", f"{tensor}.input_layernorm", config)
    entries += norm(f"{feed_forward}/norm", f"{tensor}.post_attention_layernorm", config)
    return KeyMap(
        entries=(
            *entries,
            Entry("encoder/norm/scale", "esmc.norm.weight", "D"),
            *linear("mlm_head/dense", "lm_head.dense", "D D", head="mlm"),
            *norm("mlm_head/norm", "lm_head.layer_norm", config, head="mlm"),
            Entry("mlm_head/table", "lm_head.decoder.weight", "V D", head="mlm"),
            Entry("mlm_head/bias", "lm_head.decoder.bias", "V", head="mlm"),
            *classifier_entries("classifier.dense", "classifier.out_proj"),
            *linear("token_head/output", "score", "D C", head="token_classification"),
        ),
        sizes=axis_sizes(config),
        renames=((r"^(embed_tokens|layers|norm)\.", r"esmc.\1."),),  # EsmcModel: no prefix
        ignored=(r"inv_freq$",),
        backbone=r"^(esmc|lm_head)\.",
    )


def _extra_fields(values: dict[str, Any], fields: dict[str, Any], where: str) -> dict[str, Any]:
    width, heads = fields["hidden_size"], fields["num_heads"]
    for key, value in {"num_key_value_heads": heads, "head_dim": width // max(1, heads)}.items():
        refuse(values, where, key, (None, value), f"null and {value} are: heads share the width, and none is shared")
    bias = "all" if parse_fields(values, {"attention_bias": ("bias", False, bool)}, where)["bias"] else "none"
    return {"attention_bias": bias, **parse_rope(values, fields, where, 10_000.0)}


def _extra_keys(config: EncoderConfig, architecture: str) -> dict[str, Any]:
    return {
        "attention_bias": config.attention_bias == "all",
        "num_key_value_heads": config.num_heads,
        "head_dim": config.head_dim,
        "rope_parameters": render_rope(config),
        **render_length(config),
    }


FAMILY = Family(
    name="esmc",
    model_type="esmc",
    make_keymap=make_keymap,
    architectures={
        "EsmcForSequenceClassification": ("sequence_classification",),
        "EsmcForTokenClassification": ("token_classification",),
        "EsmcForMaskedLM": ("mlm",),
        "EsmcModel": (),
    },
    fields=_FIELDS,
    structure={
        "position_embedding": "none",
        "type_vocab_size": 0,
        "embedding_norm": "none",
        "attention_position": "rotary",
        "qk_norm": True,
        "qk_norm_over": "all",
        "feed_forward": "glu",
        "norm_placement": "pre",
        "last_norm_bias": False,
        "residual_depth": 36,
        "layer_norm_eps": 1e-5,
        "hidden_dropout": 0.0,
        "initializer": "normal",
        "mlm_act": "gelu",
        "tie_word_embeddings": False,
        "classifier_dense": "own",
    },
    # `transformers` reads null as these ids, which every published vocabulary has.
    constants={"bos_token_id": 0, "eos_token_id": 2, "tie_word_embeddings": False},
    unsupported=ENCODER_ONLY,
    ignored_keys="rope_theta",
    extra_fields=_extra_fields,
    extra_keys=_extra_keys,
    prefix="esmc.",
)
