"""NeoBERT under the names of its authors (huggingface.co/chandar-lab/NeoBERT: model.py; arXiv:2502.19587).

`transformers` has no class for it: their code is read from the hub with `trust_remote_code=True`, and exports name it.
`qkv` holds query, key and value head by head; rotations turn neighbors (2i, 2i + 1), ours i and i + half of a head.
Two thirds of `intermediate_size`, rounded up to a multiple of 8, is the width inside the feed-forward block.
"""

from __future__ import annotations

from typing import Any

from bertjax.config.model import EncoderConfig
from bertjax.hf.keymap import Entry, KeyMap
from bertjax.hf.keymaps.bert import classifier_entries
from bertjax.hf.keymaps.family import (
    ENCODER_ONLY,
    Family,
    Fields,
    axis_sizes,
    linear,
    norm,
    parse_fields,
    table,
)
from bertjax.hf.safe_files import refuse

_FIELDS: Fields = {
    "vocab_size": ("vocab_size", 30522, int),
    "hidden_size": ("hidden_size", 768, int),
    "num_hidden_layers": ("num_layers", 28, int),
    "num_attention_heads": ("num_heads", 12, int),
    "max_length": ("max_position_embeddings", 1024, int),
    "norm_eps": ("layer_norm_eps", 1e-6, float),
    "pad_token_id": ("pad_token_id", 0, int),
    "classifier_dropout": ("classifier_dropout", 0.1, float),
}
_WIDTH: Fields = {"intermediate_size": ("intermediate_size", 3072, int)}
_CLASSES = {
    "AutoConfig": "NeoBERTConfig",
    "AutoModel": "NeoBERT",
    "AutoModelForMaskedLM": "NeoBERTLMHead",
    "AutoModelForSequenceClassification": "NeoBERTForSequenceClassification",
}


def make_keymap(config: EncoderConfig) -> KeyMap:
    """Returns the names of a NeoBERT's parameters."""
    param, tensor = "encoder/layers/{L}", "model.transformer_encoder.{L}"
    qkv = tuple(f"{param}/attention/{part}" for part in ("query", "key", "value"))
    gated = tuple(f"{param}/feed_forward/{part}" for part in ("gate", "intermediate"))
    return KeyMap(
        entries=(
            *table("encoder/embeddings/word_embeddings", "model.encoder", "V D"),
            *linear(qkv, f"{tensor}.qkv", "D D", False, transform="interleave_rotary_heads"),
            *linear(f"{param}/attention/output", f"{tensor}.wo", "D D", False),
            *linear(gated, f"{tensor}.ffn.w12", "D F", False, transform="concat_transpose"),
            *linear(f"{param}/feed_forward/output", f"{tensor}.ffn.w3", "F D", False),
            *norm(f"{param}/attention/norm", f"{tensor}.attention_norm", config),
            *norm(f"{param}/feed_forward/norm", f"{tensor}.ffn_norm", config),
            *norm("encoder/norm", "model.layer_norm", config),
            Entry("mlm_head/table", "decoder.weight", "V D", head="mlm"),
            Entry("mlm_head/bias", "decoder.bias", "V", head="mlm"),
            *classifier_entries("dense", "classifier"),
        ),
        sizes=axis_sizes(config),
        renames=((r"^(encoder|transformer_encoder|layer_norm)\.", r"model.\1."),),  # files of the bare model
        ignored=(r"freqs_(cis|cos|sin)$",),
        backbone=r"^(model|decoder)\.",
    )


def _extra_fields(values: dict[str, Any], fields: dict[str, Any], where: str) -> dict[str, Any]:
    width = parse_fields(values, _WIDTH, where)["intermediate_size"]
    head_size = fields["hidden_size"] // max(1, fields["num_heads"])
    refuse(values, where, "dim_head", (head_size,), "heads share the hidden size")
    return {"intermediate_size": (2 * width // 3 + 7) // 8 * 8}


def _extra_keys(config: EncoderConfig, architecture: str) -> dict[str, Any]:
    return {"intermediate_size": config.intermediate_size * 3 // 2, "dim_head": config.head_dim}


FAMILY = Family(
    name="neobert",
    model_type="neobert",
    make_keymap=make_keymap,
    architectures={
        "NeoBERTLMHead": ("mlm",),
        "NeoBERTForSequenceClassification": ("sequence_classification",),
        "NeoBERT": (),
    },
    fields=_FIELDS,
    structure={
        "position_embedding": "none",
        "type_vocab_size": 0,
        "embedding_norm": "none",
        "attention_position": "rotary",
        "attention_bias": "none",
        "feed_forward": "glu",
        "feed_forward_bias": False,
        "hidden_act": "silu",
        "norm_placement": "pre",
        "norm_type": "rms_norm",
        "norm_bias": False,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
        "initializer": "normal",
        "mlm_head": "bias",
        "tie_word_embeddings": False,
        "classifier_dense": "own",
        "classifier_act": "tanh",
    },
    constants={
        "tie_word_embeddings": False,
        "auto_map": {auto: f"chandar-lab/NeoBERT--model.{name}" for auto, name in _CLASSES.items()},
    },
    unsupported=ENCODER_ONLY,
    # Ranges of uniform initial weights, and arguments of the authors' training script.
    ignored_keys="auto_map classifier_init_range decoder_init_range embedding_init_range encoder_init_range kwargs "
    "pretrained_model_name_or_path trust_remote_code",
    extra_fields=_extra_fields,
    extra_keys=_extra_keys,
    prefix="model.",
)
