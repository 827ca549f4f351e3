"""GPT-2 under Hugging Face's names (transformers: models/gpt2/modeling_gpt2.py) and its config.json."""

from __future__ import annotations

from typing import Any

from bertjax.config.model import EncoderConfig
from bertjax.errors import UserError
from bertjax.hf.keymap import KeyMap
from bertjax.hf.keymaps.bert import token_head_entries
from bertjax.hf.keymaps.family import (
    ENCODER_ONLY,
    Activation,
    Family,
    Fields,
    axis_sizes,
    linear,
    norm,
    parse_fields,
    table,
    unbiased_scores,
)

_FIELDS: Fields = {
    "vocab_size": ("vocab_size", 50257, int),
    "n_positions": ("max_position_embeddings", 1024, int),
    "n_embd": ("hidden_size", 768, int),
    "n_layer": ("num_layers", 12, int),
    "n_head": ("num_heads", 12, int),
    "activation_function": ("hidden_act", "gelu_new", Activation),
    "resid_pdrop": ("hidden_dropout", 0.1, float),
    "embd_pdrop": ("embedding_dropout", 0.1, float),
    "attn_pdrop": ("attention_dropout", 0.1, float),
    "layer_norm_epsilon": ("layer_norm_eps", 1e-5, float),
    "initializer_range": ("initializer_range", 0.02, float),
}

# Keys that the token classifier alone reads; the first that is set counts.
_HEAD_DROPOUT: Fields = {key: (key, None, float) for key in ("classifier_dropout", "hidden_dropout")}


def make_keymap(config: EncoderConfig) -> KeyMap:
    """Returns the names of a GPT-2's parameters.

    Conv1D holds [in, out], as bertjax does; query, key and value are concatenated along its output axis.
    """
    param, tensor = "encoder/layers/{L}", "transformer.h.{L}"
    qkv = tuple(f"{param}/attention/{part}" for part in ("query", "key", "value"))
    return KeyMap(
        entries=(
            *table("encoder/embeddings/word_embeddings", "transformer.wte", "V D"),
            *table("encoder/embeddings/position_embeddings", "transformer.wpe", "P D"),
            *linear(qkv, f"{tensor}.attn.c_attn", "D D", transform="concat"),
            *linear(f"{param}/attention/output", f"{tensor}.attn.c_proj", "D D", transform="same"),
            *norm(f"{param}/attention/norm", f"{tensor}.ln_1", config),
            *linear(f"{param}/feed_forward/intermediate", f"{tensor}.mlp.c_fc", "D F", transform="same"),
            *linear(f"{param}/feed_forward/output", f"{tensor}.mlp.c_proj", "F D", transform="same"),
            *norm(f"{param}/feed_forward/norm", f"{tensor}.ln_2", config),
            *norm("encoder/norm", "transformer.ln_f", config),
            *token_head_entries(),
        ),
        sizes=axis_sizes(config),
        renames=((r"^(wte|wpe|h|ln_f)\.", r"transformer.\1."),),  # GPT2Model's files, and OpenAI's own
        ignored=(r"\.attn\.(masked_)?bias$",),  # the causal mask as a buffer
        ties={"lm_head.weight": "transformer.wte.weight"},
        backbone=r"^(transformer|lm_head)\.",
    )


def _extra_fields(values: dict[str, Any], fields: dict[str, Any], where: str) -> dict[str, Any]:
    inner = values.get("n_inner")
    if inner is not None and type(inner) is not int:
        raise UserError(f"{where}: n_inner must be a whole number or null, not {inner!r}")
    # GPT-2 has no pad token; the end of text is used for it where the file names it
    ids = (values.get("pad_token_id"), values.get("eos_token_id", 50256))
    rates = parse_fields(values, _HEAD_DROPOUT, where)
    pad_ids = (each for each in ids if type(each) is int and 0 <= each < fields["vocab_size"])
    return {
        "intermediate_size": 4 * fields["hidden_size"] if inner is None else inner,
        "pad_token_id": next(pad_ids, 0),
        "classifier_dropout": next((rate for rate in rates.values() if rate is not None), 0.1),
    }


def _extra_keys(config: EncoderConfig, architecture: str) -> dict[str, Any]:
    """`n_inner` is null where it is four times the width, as published."""
    inner = None if config.intermediate_size == 4 * config.hidden_size else config.intermediate_size
    classifies = architecture == "GPT2ForTokenClassification"
    dropout = {"classifier_dropout": config.rate("classifier_dropout")} if classifies else {}
    return {"n_inner": inner, "pad_token_id": config.pad_token_id, **dropout}


FAMILY = Family(
    name="gpt2",
    model_type="gpt2",
    make_keymap=make_keymap,
    architectures={
        "GPT2LMHeadModel": ("mlm",),
        "GPT2ForTokenClassification": ("token_classification",),
        "GPT2ForQuestionAnswering": ("question_answering",),
        "GPT2Model": (),
    },
    fields=_FIELDS,
    structure={
        "embedding_norm": "none",
        "type_vocab_size": 0,
        "causal": True,
        "norm_placement": "pre",
        "initializer": "normal",
        "mlm_head": "tied",
        "pooling": "last",
        "classifier_dense": "none",
        "classifier_bias": False,
    },
    constants={
        "bos_token_id": None,  # not known here
        "eos_token_id": None,
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "reorder_and_upcast_attn": False,
        "add_cross_attention": False,
        "tie_word_embeddings": True,
        "use_cache": True,
    },
    unsupported=(
        ("scale_attn_weights", (True, None), "scores are always divided by the square root of the head size"),
        ("scale_attn_by_inverse_layer_idx", (False, None), "every layer scales its scores alike"),
        ("is_causal", (True,), "every token sees the tokens before it and no others"),
        *ENCODER_ONLY,
    ),
    aliases={
        "hidden_size": "n_embd",
        "max_position_embeddings": "n_positions",
        "num_attention_heads": "n_head",
        "num_hidden_layers": "n_layer",
    },
    # Scores in float32 differ in no digit; `n_ctx` repeats `n_positions`; summaries belong to GPT2DoubleHeadsModel.
    ignored_keys="n_ctx predict_special_tokens reorder_and_upcast_attn summary_activation summary_first_dropout "
    "summary_proj_to_labels summary_type summary_use_proj",
    extra_fields=_extra_fields,
    extra_keys=_extra_keys,
    prefix="transformer.",
    last_token_classes={"GPT2ForSequenceClassification": unbiased_scores},
)
