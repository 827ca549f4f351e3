"""XLNet under Hugging Face's names (transformers: models/xlnet/modeling_xlnet.py) and its config.json.

The attention's projections are [D, N, H] there, without `.weight`. The learned vector of the second stream is in every
file, whatever the class, and so it is in every export. `untie_r` changes nothing: every layer of every file has biases
of its own. The one dropout rate applies everywhere.
"""

from __future__ import annotations

from typing import Any

from bertjax.config.architecture import ACTIVATIONS
from bertjax.config.model import EncoderConfig
from bertjax.errors import UserError
from bertjax.hf.keymap import Entry, KeyMap
from bertjax.hf.keymaps.bert import choice_entries, classifier_entries, token_head_entries
from bertjax.hf.keymaps.family import Activation, Family, Fields, axis_sizes, linear, norm, table

_FIELDS: Fields = {
    "vocab_size": ("vocab_size", 32000, int),
    "d_model": ("hidden_size", 1024, int),
    "n_layer": ("num_layers", 24, int),
    "n_head": ("num_heads", 16, int),
    "d_inner": ("intermediate_size", 4096, int),
    "ff_activation": ("hidden_act", "gelu", Activation),
    "dropout": ("hidden_dropout", 0.1, float),
    "summary_last_dropout": ("classifier_dropout", 0.1, float),
    "summary_activation": ("classifier_act", "tanh", str),
    "layer_norm_eps": ("layer_norm_eps", 1e-12, float),
    "initializer_range": ("initializer_range", 0.02, float),
    "pad_token_id": ("pad_token_id", 5, int),
    "clamp_len": ("clamp_len", -1, int),
    "bi_data": ("bi_data", False, bool),
}
_SUMMARY_ACTIVATIONS = ("tanh", *ACTIVATIONS)
_ATTENTION = {
    "query/kernel": ("q", "D A", "split_heads"),
    "key/kernel": ("k", "D A", "split_heads"),
    "value/kernel": ("v", "D A", "split_heads"),
    "position/kernel": ("r", "D A", "split_heads"),
    "output/kernel": ("o", "A D", "split_heads_output"),
    "content_bias": ("r_w_bias", "N H", "same"),
    "position_bias": ("r_r_bias", "N H", "same"),
    "segment_bias": ("r_s_bias", "N H", "same"),
    "segment_embeddings": ("seg_embed", "2 N H", "same"),
}


def make_keymap(config: EncoderConfig) -> KeyMap:
    """Returns the names of an XLNet's parameters."""
    param, tensor = "encoder/layers/{L}", "transformer.layer.{L}"
    attention = tuple(
        Entry(f"{param}/attention/{path}", f"{tensor}.rel_attn.{name}", axes, transform)
        for path, (name, axes, transform) in _ATTENTION.items()
    )
    return KeyMap(
        entries=(
            *table("encoder/embeddings/word_embeddings", "transformer.word_embedding", "V D"),
            Entry("encoder/mask_embedding", "transformer.mask_emb", "D", "lone_vector"),
            *attention,
            *norm(f"{param}/attention/norm", f"{tensor}.rel_attn.layer_norm", config),
            *linear(f"{param}/feed_forward/intermediate", f"{tensor}.ff.layer_1", "D F"),
            *linear(f"{param}/feed_forward/output", f"{tensor}.ff.layer_2", "F D"),
            *norm(f"{param}/feed_forward/norm", f"{tensor}.ff.layer_norm", config),
            Entry("mlm_head/bias", "lm_loss.bias", "V", head="mlm"),
            *classifier_entries("sequence_summary.summary", "logits_proj"),
            *choice_entries("logits_proj", "sequence_summary.summary"),
            *token_head_entries(),
        ),
        sizes=axis_sizes(config),
        renames=((r"^(mask_emb|word_embedding|layer)(\.|$)", r"transformer.\1\2"),),  # XLNetModel: no prefix
        ties={"lm_loss.weight": "transformer.word_embedding.weight"},
        backbone=r"^(transformer|lm_loss)\.",
    )


def _extra_fields(values: dict[str, Any], fields: dict[str, Any], where: str) -> dict[str, Any]:
    head_size, rate = values.get("d_head"), fields["hidden_dropout"]
    if head_size is not None and head_size * fields["num_heads"] != fields["hidden_size"]:
        raise UserError(f"{where}: d_head = {head_size!r} is not supported: it must be d_model / n_head")
    return {
        "mem_len": _parse_length(values, where, "mem_len", 512),
        "reuse_len": _parse_length(values, where, "reuse_len", None),
        "embedding_dropout": rate,
        "attention_dropout": rate,
        "activation_dropout": rate,
        "output_dropout": rate,
        "causal": values.get("attn_type") == "uni",
    }


def _parse_length(values: dict[str, Any], where: str, key: str, default: int | None) -> int | None:
    """Returns a length, None for no limit (null or 0); `default` is XLNetConfig's for an absent key."""
    value = values.get(key, default)
    if value is not None and (type(value) is not int or value < 0):
        raise UserError(f"{where}: {key} must be a whole number or null, not {value!r}")
    return value or None


def _extra_keys(config: EncoderConfig, architecture: str) -> dict[str, Any]:
    return {
        "attn_type": "uni" if config.causal else "bi",
        "mem_len": config.mem_len,
        "reuse_len": config.reuse_len,
    }


FAMILY = Family(
    name="xlnet",
    model_type="xlnet",
    make_keymap=make_keymap,
    architectures={
        "XLNetLMHeadModel": ("mlm",),
        "XLNetForSequenceClassification": ("sequence_classification",),
        "XLNetForMultipleChoice": ("multiple_choice",),
        "XLNetForTokenClassification": ("token_classification",),
        "XLNetForQuestionAnsweringSimple": ("question_answering",),
        "XLNetModel": (),
    },
    fields=_FIELDS,
    structure={
        "position_embedding": "none",
        "type_vocab_size": 0,
        "attention_position": "relative",
        "relative_segments": True,
        "attention_bias": "none",
        "embedding_norm": "none",
        "initializer": "normal",
        "mlm_head": "bias",
        "pooling": "last",
        "classifier_dense": "own",
    },
    constants={
        "same_length": False,
        "summary_type": "last",
        "summary_use_proj": True,
        "tie_word_embeddings": True,
    },
    unsupported=(
        ("same_length", (False, None), "every token attends as far back as there is text"),
        ("attn_type", ("bi", "uni"), "known are bi and uni"),
        ("summary_type", ("last",), "the last token represents a text"),
        ("summary_use_proj", (True,), "the summary has a dense layer"),
        ("summary_proj_to_labels", (False, None), "the dense layer is as wide as the model"),
        ("max_position_embeddings", (), "positions are relative and have no limit"),
        ("summary_activation", _SUMMARY_ACTIVATIONS, f"known are {', '.join(_SUMMARY_ACTIVATIONS)}"),
    ),
    training_only=(("summary_first_dropout", (0, None), "the summary has dropout after its activation only"),),
    aliases={
        "n_token": "vocab_size",
        "hidden_size": "d_model",
        "num_attention_heads": "n_head",
        "num_hidden_layers": "n_layer",
    },
    # The memory is an argument here; the sizes of the beam belong to XLNetForQuestionAnswering.
    ignored_keys="end_n_top start_n_top untie_r use_mems_eval use_mems_train",
    extra_fields=_extra_fields,
    extra_keys=_extra_keys,
    prefix="transformer.",
)
