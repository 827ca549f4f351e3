"""XLNet under Hugging Face's names (transformers: models/xlnet/modeling_xlnet.py) and its config.json.

The attention's projections are [D, N, H] there, without `.weight`. The learned vector of the second stream is in every
file, whatever the class, and so it is in every export.
"""

from __future__ import annotations

from typing import Any

from bertjax.config.model import ACTIVATIONS, EncoderConfig
from bertjax.errors import UserError
from bertjax.hf.keymap import Entry, KeyMap
from bertjax.hf.keymaps.family import (
    Family,
    Fields,
    linear,
    norm,
    parse_activation,
    parse_fields,
    refuse,
    render_fields,
    sizes,
    table,
)

ARCHITECTURES: dict[str, tuple[str, ...]] = {
    "XLNetLMHeadModel": ("mlm",),
    "XLNetForSequenceClassification": ("sequence_classification",),
    "XLNetForTokenClassification": ("token_classification",),
    "XLNetForQuestionAnsweringSimple": ("question_answering",),
    "XLNetModel": (),
}
FIELDS: Fields = {
    "vocab_size": ("vocab_size", 32000, int),
    "d_model": ("hidden_size", 1024, int),
    "n_layer": ("num_layers", 24, int),
    "n_head": ("num_heads", 16, int),
    "d_inner": ("intermediate_size", 4096, int),
    "dropout": ("hidden_dropout", 0.1, float),
    "summary_last_dropout": ("classifier_dropout", 0.1, float),
    "summary_activation": ("classifier_act", "tanh", str),
    "layer_norm_eps": ("layer_norm_eps", 1e-12, float),
    "initializer_range": ("initializer_range", 0.02, float),
    "pad_token_id": ("pad_token_id", 5, int),
    "clamp_len": ("clamp_len", -1, int),
    "bi_data": ("bi_data", False, bool),
}
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
            *linear("sequence_head/dense", "sequence_summary.summary", "D D", head="sequence_classification"),
            *linear("sequence_head/output", "logits_proj", "D C", head="sequence_classification"),
            *linear("token_head/output", "classifier", "D C", head="token_classification"),
            *linear("answer_head/output", "qa_outputs", "D 2", head="question_answering"),
        ),
        sizes=sizes(config),
        renames=((r"^(mask_emb|word_embedding|layer)(\.|$)", r"transformer.\1\2"),),  # XLNetModel's have no prefix
        ties={"lm_loss.weight": "transformer.word_embedding.weight"},
        backbone=r"^(transformer|lm_loss)\.",
    )


def from_hf_config(values: dict[str, Any], where: str = "config.json") -> EncoderConfig:
    """Our config from an XLNet config.json; raises `UserError` for a key that would change the maths.

    `untie_r` is no such key: the biases of the scores are each layer's own in every file. The one rate of dropout is
    that of all places.
    """
    refuse(values, where, "same_length", (False, None), "every token sees as far back as there is text")
    refuse(values, where, "attn_type", ("bi", "uni", None), "known are bi and uni")
    refuse(values, where, "summary_type", ("last", None), "the last token stands for a text")
    refuse(values, where, "summary_use_proj", (True, None), "the summary has a dense layer")
    known = ("tanh", *ACTIVATIONS)
    refuse(values, where, "summary_activation", known, f"known are {', '.join(known)}")
    fields = parse_fields(values, FIELDS, where)
    head_size = values.get("d_head")
    if head_size is not None and head_size * fields["num_heads"] != fields["hidden_size"]:
        raise UserError(f"{where}: d_head = {head_size!r} is not supported: it must be d_model / n_head")
    return EncoderConfig(
        **fields,
        mem_len=_length(values, where, "mem_len", 512),
        reuse_len=_length(values, where, "reuse_len", None),
        embedding_dropout=fields["hidden_dropout"],
        attention_dropout=fields["hidden_dropout"],
        activation_dropout=fields["hidden_dropout"],
        output_dropout=fields["hidden_dropout"],
        hidden_act=parse_activation(values, where, "ff_activation"),
        causal=values.get("attn_type") == "uni",
        position_embedding="none",
        type_vocab_size=0,
        attention_position="relative",
        relative_segments=True,
        attention_bias="none",
        embedding_norm="none",
        initializer="normal",
        mlm_head="bias",
        pooling="last",
        classifier_dense="own",
    )


def _length(values: dict[str, Any], where: str, key: str, default: int | None) -> int | None:
    """None where there is no limit: null or 0; the default is that of XLNetConfig for an absent key."""
    value = values.get(key, default)
    if value is not None and (type(value) is not int or value < 0):
        raise UserError(f"{where}: {key} must be a whole number or null, not {value!r}")
    return value or None


def to_hf_config(config: EncoderConfig, architecture: str) -> dict[str, Any]:
    return {
        "attn_type": "uni" if config.causal else "bi",
        "same_length": False,
        "summary_type": "last",
        "summary_use_proj": True,
        "tie_word_embeddings": True,
        "mem_len": config.mem_len,
        "reuse_len": config.reuse_len,
        "ff_activation": config.hidden_act,
        **render_fields(config, FIELDS),
        "summary_last_dropout": config.rate("classifier_dropout"),
    }


FAMILY = Family(
    name="xlnet",
    model_type="xlnet",
    make_keymap=make_keymap,
    architectures=ARCHITECTURES,
    from_hf_config=from_hf_config,
    to_hf_config=to_hf_config,
    prefix="transformer.",
)
