"""BERT and RoBERTa with rotary positions (transformers: models/nomic_bert, jina_embeddings_v3, gte).

Folders of the authors' code are read as well: of NomicBERT's (nomic-ai/contrastors) here, of the others after
`published.py` has translated their config.json.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

from bertjax.config.model import EncoderConfig
from bertjax.errors import UserError
from bertjax.hf.keymap import Entry, KeyMap
from bertjax.hf.keymaps import bert, roberta
from bertjax.hf.keymaps.family import (
    ENCODER_ONLY,
    Family,
    Fields,
    axis_sizes,
    change_defaults,
    linear,
    norm,
    parse_fields,
)
from bertjax.hf.keymaps.rope_parameters import parse_rope, render_length, render_rope

_ROTARY = {"position_embedding": "none", "attention_position": "rotary", "initializer": "normal"}
# In files of the authors' code, which transformers 5 writes as well.
_OLD_NAMES = (
    (r"\.encoder\.layers\.", ".layers."),
    (r"\.emb_ln\.", ".embeddings.LayerNorm."),
    (r"\.(attn|mixer)\.out_proj\.", ".self_attn.o_proj."),
    (r"\.fc11\.", ".up_proj."),
    (r"\.fc12\.", ".gate_proj."),
    (r"\.norm1\.", ".post_attention_layernorm."),
    (r"\.norm2\.", ".post_mlp_layernorm."),
)
_OLD_GTE_NAMES = (
    (r"\.encoder\.layer\.", ".layers."),
    (r"\.attention\.([qkvo])_proj\.", r".self_attn.\1_proj."),
    (r"\.attn_ln\.", ".post_attention_layernorm."),
    (r"\.mlp_ln\.", ".post_mlp_layernorm."),
    (r"^lm_head\.norm\.", "lm_head.layer_norm."),
)
# Matrices with adapters of tasks are stored next to them (torch.nn.utils.parametrize).
_OLD_JINA_NAMES = ((r"\.parametrizations\.weight\.original$", ".weight"),)
_ADAPTERS = r"\.parametrizations\.weight\.0\.lora_[AB]$"
_SPLITS = ((r"\.(attn|mixer)\.Wqkv\.", tuple(f".self_attn.{part}_proj." for part in "qkv")),)


def _renames(prefix: str) -> tuple[tuple[str, str], ...]:
    """Returns the renames of files; those of the bare model have no prefix."""
    return ((r"^(embeddings|emb_ln|layers|encoder|pooler)\.", rf"{prefix}.\1."), *_OLD_NAMES)


def _encoder_entries(prefix: str, config: EncoderConfig) -> tuple[Entry, ...]:
    param, tensor = "encoder/layers/{L}", f"{prefix}.layers.{{L}}"
    gated, bias = config.feed_forward == "glu", config.feed_forward_bias
    inner_bias = bias and config.feed_forward_inner_bias
    inner = {"gate": "gate_proj", "intermediate": "up_proj"} if gated else {"intermediate": "fc1"}
    return (
        *(
            each
            for each in bert.embedding_entries(prefix, config)
            if config.type_vocab_size or "_type" not in each.tensor
        ),
        *(
            entry
            for name in ("query", "key", "value")
            for entry in linear(
                f"{param}/attention/{name}", f"{tensor}.self_attn.{name[0]}_proj", "D A", config.attention_bias == "all"
            )
        ),
        *linear(f"{param}/attention/output", f"{tensor}.self_attn.o_proj", "A D", config.attention_bias == "all"),
        *norm(f"{param}/attention/norm", f"{tensor}.post_attention_layernorm", config),
        *(
            entry
            for ours, theirs in inner.items()
            for entry in linear(f"{param}/feed_forward/{ours}", f"{tensor}.mlp.{theirs}", "D F", inner_bias)
        ),
        *linear(f"{param}/feed_forward/output", f"{tensor}.mlp.{'down_proj' if gated else 'fc2'}", "F D", bias),
        *norm(f"{param}/feed_forward/norm", f"{tensor}.post_mlp_layernorm", config),
    )


def _nomic_keymap(config: EncoderConfig) -> KeyMap:
    predictions = bert.prediction_entries("cls.predictions", config, "D")
    return KeyMap(
        entries=(
            *_encoder_entries("nomic_bert", config),
            *linear("pooler/dense", "nomic_bert.pooler.dense", "D D", head="pooler"),
            *(dataclasses.replace(e, tensor=e.tensor.replace("LayerNorm", "layer_norm")) for e in predictions),
            *linear("sequence_head/output", "classifier", "D C", head="sequence_classification"),
            *linear("token_head/output", "classifier", "D C", head="token_classification"),
        ),
        sizes=axis_sizes(config),
        renames=((r"^bert\.", "nomic_bert."), (r"\.mlp\.fc2\.", ".mlp.down_proj."), *_renames("nomic_bert")),
        splits=_SPLITS,
        ties={
            "cls.predictions.decoder.weight": "nomic_bert.embeddings.word_embeddings.weight",
            "cls.predictions.decoder.bias": "cls.predictions.bias",
        },
        ignored=(r"rotary_emb\.inv_freq$",),
        backbone=r"^(nomic_bert|cls)\.",
    )


def _jina_keymap(config: EncoderConfig) -> KeyMap:
    return KeyMap(
        entries=(*_encoder_entries("roberta", config), *roberta.head_entries("roberta", config)),
        sizes=axis_sizes(config),
        renames=(*_OLD_JINA_NAMES, *_renames("roberta")),
        splits=_SPLITS,
        ignored=(_ADAPTERS,),
        ties=roberta.tied_names("roberta"),
        backbone=r"^(roberta|lm_head)\.",
    )


def _gte_keymap(config: EncoderConfig) -> KeyMap:
    return KeyMap(
        entries=(
            *_encoder_entries("gte", config),
            *linear("pooler/dense", "gte.pooler.dense", "D D", head="pooler"),
            *linear("mlm_head/dense", "lm_head.dense", "D D", head="mlm"),
            *norm("mlm_head/norm", "lm_head.layer_norm", config, head="mlm"),
            Entry("mlm_head/bias", "lm_head.decoder.bias", "V", head="mlm"),
            *linear("sequence_head/output", "classifier", "D C", head="sequence_classification"),
            *linear("token_head/output", "classifier", "D C", head="token_classification"),
        ),
        sizes=axis_sizes(config),
        renames=((r"^new\.", "gte."), (r"^(embeddings|encoder|layers|pooler)\.", r"gte.\1."), *_OLD_GTE_NAMES),
        splits=(
            (r"\.attention\.qkv_proj\.", tuple(f".self_attn.{part}_proj." for part in "qkv")),
            (r"\.up_gate_proj\.", (".up_proj.", ".gate_proj.")),
        ),
        ties={"lm_head.decoder.weight": "gte.embeddings.word_embeddings.weight"},
        backbone=r"^(gte|lm_head)\.",
    )


def _extra_fields(values: dict[str, Any], fields: dict[str, Any], where: str, theta: float) -> dict[str, Any]:
    """Returns rotation and head size, with `theta` as the base of the config class."""
    size = parse_fields(values, {"head_dim": ("size", None, int)}, where)["size"]
    shared = size is None or size * fields["num_heads"] == fields["hidden_size"]
    return {**parse_rope(values, fields, where, theta), "head_size": None if shared else size}


def _parse_with_types(values: dict[str, Any], fields: dict[str, Any], where: str, theta: float) -> dict[str, Any]:
    """Returns what `_extra_fields` does, for classes that always look up token types."""
    if fields["type_vocab_size"] == 0:
        raise UserError(f"{where}: type_vocab_size must be at least 1, for classes that look up token types")
    return _extra_fields(values, fields, where, theta)


def _parse_nomic(values: dict[str, Any], fields: dict[str, Any], where: str) -> dict[str, Any]:
    """The authors' dynamic rotation begins at a length of its own."""
    parsed = _parse_with_types(values, fields, where, 1_000.0)
    rescaling = parse_fields(values, _RESCALING, where)
    if rescaling["rope_factor"] is None:
        return parsed
    return {**parsed, "rope_type": "dynamic", **rescaling}


def _parse_gte(values: dict[str, Any], fields: dict[str, Any], where: str) -> dict[str, Any]:
    """The one dropout rate applies inside the feed-forward block as well."""
    return {**_extra_fields(values, fields, where, 160_000.0), "activation_dropout": fields["hidden_dropout"]}


def _extra_keys(config: EncoderConfig, architecture: str) -> dict[str, Any]:
    rope = {"rope_parameters": render_rope(config), **render_length(config)}
    return rope if config.head_size is None else {**rope, "head_dim": config.head_size}


_ABSENT = (False, None)
_RESCALING: Fields = {
    "rotary_scaling_factor": ("rope_factor", None, float),
    "max_trained_positions": ("rope_original_length", 2048, int),
}
_OF_THE_AUTHORS = (
    *(("prenorm", _ABSENT, "norms follow the blocks"), ("parallel_block", _ABSENT, "blocks follow one another")),
    *(("use_rms_norm", _ABSENT, "norms are centered"), ("causal", _ABSENT, "only encoders are supported")),
    *((key, _ABSENT, "these layers have no biases") for key in ("qkv_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias")),
    ("activation_function", ("swiglu",), "the blocks are gated by SiLU"),
    *((key, (0, None), "layers have no experts") for key in ("num_experts", "moe_every_n_layers")),
    ("rotary_emb_fraction", (1.0, None), "heads are rotated as a whole"),
    ("rotary_emb_interleaved", _ABSENT, "heads are rotated in halves"),
    ("rotary_emb_scale_base", (None,), "rotations do not decay"),
)

_FAMILIES = (
    Family(
        name="nomic_bert",
        model_type="nomic_bert",
        make_keymap=_nomic_keymap,
        architectures={
            "NomicBertForSequenceClassification": ("pooler", "sequence_classification"),
            "NomicBertForTokenClassification": ("token_classification",),
            "NomicBertForMaskedLM": ("mlm",),
            "NomicBertModel": (),
        },
        fields=change_defaults(
            bert.BERT_FIELDS,
            vocab_size=30528,
            hidden_act="silu",
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            max_position_embeddings=2048,
        ),
        structure={**_ROTARY, "attention_bias": "none", "feed_forward": "glu", "feed_forward_bias": False},
        constants={"tie_word_embeddings": True},
        unsupported=(*ENCODER_ONLY, *_OF_THE_AUTHORS),
        aliases={
            "n_embd": "hidden_size",
            "n_layer": "num_hidden_layers",
            "n_head": "num_attention_heads",
            "n_inner": "intermediate_size",
            "n_positions": "max_position_embeddings",
            "layer_norm_epsilon": "layer_norm_eps",
            "resid_pdrop": "hidden_dropout_prob",
            "attn_pdrop": "attention_probs_dropout_prob",
            "rotary_emb_base": "rope_theta",
        },
        ignored_keys="auto_map embd_pdrop dense_seq_output fused_bias_fc fused_dropout_add_ln "
        "pad_vocab_size_multiple parallel_block_tied_norm reorder_and_upcast_attn scale_attn_by_inverse_layer_idx "
        "scale_attn_weights summary_activation summary_first_dropout summary_proj_to_labels summary_type "
        "summary_use_proj use_flash_attn use_xentropy",
        extra_fields=_parse_nomic,
        extra_keys=_extra_keys,
        old_classes={"NomicBertForPreTraining": "NomicBertForMaskedLM"},
        prefix="nomic_bert.",
    ),
    Family(
        name="jina_embeddings_v3",
        model_type="jina_embeddings_v3",
        make_keymap=_jina_keymap,
        architectures={
            name.replace("Roberta", "JinaEmbeddingsV3"): heads
            for name, heads in roberta.FAMILY.architectures.items()
            if "multiple_choice" not in heads
        },
        fields=change_defaults(
            bert.BERT_FIELDS,
            vocab_size=250002,
            hidden_size=1024,
            num_hidden_layers=24,
            num_attention_heads=16,
            intermediate_size=4096,
            max_position_embeddings=8194,
            type_vocab_size=1,
            layer_norm_eps=1e-5,
            pad_token_id=1,
        ),
        structure={**_ROTARY, **roberta.FAMILY.structure},
        constants={"tie_word_embeddings": True, "use_cache": True},
        unsupported=ENCODER_ONLY,
        extra_fields=functools.partial(_parse_with_types, theta=20_000.0),
        extra_keys=_extra_keys,
        prefix="roberta.",
    ),
    Family(
        name="gte",
        model_type="gte",
        make_keymap=_gte_keymap,
        architectures={
            "GteForSequenceClassification": ("pooler", "sequence_classification"),
            "GteForTokenClassification": ("token_classification",),
            "GteForMaskedLM": ("mlm",),
            "GteModel": (),
        },
        fields=change_defaults(
            bert.BERT_FIELDS,
            vocab_size=250048,
            attention_probs_dropout_prob=0.0,
            max_position_embeddings=8192,
            type_vocab_size=1,
            pad_token_id=1,
        ),
        structure={**_ROTARY, "feed_forward": "glu", "feed_forward_inner_bias": False, "mlm_act": "gelu"},
        constants={"tie_word_embeddings": True},
        unsupported=ENCODER_ONLY,
        extra_fields=_parse_gte,
        extra_keys=_extra_keys,
        prefix="gte.",
    ),
)
FAMILIES = {family.name: family for family in _FAMILIES}
