"""GPT-2 under Hugging Face's names (transformers: models/gpt2/modeling_gpt2.py) and its config.json.

GPT2ForSequenceClassification is left out: it reads the last token that is not the pad id, wherever padding was meant.
"""

from __future__ import annotations

from typing import Any

from bertjax.config.model import EncoderConfig
from bertjax.errors import UserError
from bertjax.hf.keymap import KeyMap
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
    "GPT2LMHeadModel": ("mlm",),
    "GPT2ForTokenClassification": ("token_classification",),
    "GPT2ForQuestionAnswering": ("question_answering",),
    "GPT2Model": (),
}
FIELDS: Fields = {
    "vocab_size": ("vocab_size", 50257, int),
    "n_positions": ("max_position_embeddings", 1024, int),
    "n_embd": ("hidden_size", 768, int),
    "n_layer": ("num_layers", 12, int),
    "n_head": ("num_heads", 12, int),
    "resid_pdrop": ("hidden_dropout", 0.1, float),
    "embd_pdrop": ("embedding_dropout", 0.1, float),
    "attn_pdrop": ("attention_dropout", 0.1, float),
    "layer_norm_epsilon": ("layer_norm_eps", 1e-5, float),
    "initializer_range": ("initializer_range", 0.02, float),
}


def make_keymap(config: EncoderConfig) -> KeyMap:
    """Conv1D holds [in, out], as we do; query, key and value lie side by side on its output axis."""
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
            *linear("token_head/output", "classifier", "D C", head="token_classification"),
            *linear("answer_head/output", "qa_outputs", "D 2", head="question_answering"),
        ),
        sizes=sizes(config),
        renames=((r"^(wte|wpe|h|ln_f)\.", r"transformer.\1."),),  # GPT2Model's files, and OpenAI's own
        ignored=(r"\.attn\.(masked_)?bias$",),  # the causal mask as a buffer
        ties={"lm_head.weight": "transformer.wte.weight"},
        backbone=r"^(transformer|lm_head)\.",
    )


def from_hf_config(values: dict[str, Any], where: str = "config.json") -> EncoderConfig:
    """Our config from a GPT-2 config.json; raises `UserError` for a key that would change the maths."""
    refuse(values, where, "scale_attn_weights", (True, None), "scores are always divided by the root of the head size")
    refuse(values, where, "scale_attn_by_inverse_layer_idx", (False, None), "every layer scales its scores alike")
    refuse(values, where, "add_cross_attention", (False, None), "there is no second model to look at")
    refuse(values, where, "pruned_heads", ({}, None), "pruned models are not supported")
    fields = parse_fields(values, FIELDS, where)
    inner = values.get("n_inner")
    if inner is not None and type(inner) is not int:
        raise UserError(f"{where}: n_inner must be a whole number or null, not {inner!r}")
    return EncoderConfig(
        **fields,
        intermediate_size=4 * fields["hidden_size"] if inner is None else inner,
        hidden_act=parse_activation(values, where, "activation_function", "gelu_new"),
        pad_token_id=_pad_id(values, fields["vocab_size"]),
        embedding_norm="none",
        type_vocab_size=0,
        causal=True,
        norm_placement="pre",
        initializer="normal",
        mlm_head="tied",
        pooling="last",
        classifier_dense="none",
    )


def _pad_id(values: dict[str, Any], vocab_size: int) -> int:
    """GPT-2 has none; the end of text stands in where the file knows it."""
    known = (values.get("pad_token_id"), values.get("eos_token_id", 50256))
    return next((each for each in known if type(each) is int and 0 <= each < vocab_size), 0)


def to_hf_config(config: EncoderConfig, architecture: str) -> dict[str, Any]:
    """`n_inner` null where it is four times the width, as published; the ids of specials that we do not know, null."""
    return {
        "n_inner": None if config.intermediate_size == 4 * config.hidden_size else config.intermediate_size,
        "activation_function": config.hidden_act,
        "pad_token_id": config.pad_token_id,
        "bos_token_id": None,
        "eos_token_id": None,
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "reorder_and_upcast_attn": False,
        "add_cross_attention": False,
        "tie_word_embeddings": True,
        "use_cache": True,
        **render_fields(config, FIELDS),
        "embd_pdrop": config.rate("embedding_dropout"),
    }


FAMILY = Family(
    name="gpt2",
    model_type="gpt2",
    make_keymap=make_keymap,
    architectures=ARCHITECTURES,
    from_hf_config=from_hf_config,
    to_hf_config=to_hf_config,
    prefix="transformer.",
)
