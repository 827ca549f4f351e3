"""ALBERT under Hugging Face's names (transformers: models/albert/modeling_albert.py) and its config.json.

The projection behind the embeddings is always there, be their width the hidden size or not.
"""

from __future__ import annotations

from typing import Any

from bertjax.config.model import EncoderConfig
from bertjax.hf.keymap import Entry, KeyMap
from bertjax.hf.keymaps.bert_names import BUFFERS, TENSORFLOW_NORMS, embedding_entries, token_head_entries
from bertjax.hf.keymaps.family import (
    Family,
    Fields,
    linear,
    norm,
    parse_activation,
    parse_fields,
    refuse,
    refuse_decoders,
    render_fields,
    sizes,
)

ARCHITECTURES: dict[str, tuple[str, ...]] = {
    "AlbertForPreTraining": ("pooler", "mlm", "pair"),
    "AlbertForSequenceClassification": ("pooler", "sequence_classification"),
    "AlbertForTokenClassification": ("token_classification",),
    "AlbertForQuestionAnswering": ("question_answering",),
    "AlbertForMaskedLM": ("mlm",),
    "AlbertModel": (),
}
# AlbertConfig's defaults are those of the second xxlarge.
FIELDS: Fields = {
    "vocab_size": ("vocab_size", 30000, int),
    "embedding_size": ("embedding_size", 128, int),
    "hidden_size": ("hidden_size", 4096, int),
    "num_hidden_layers": ("num_layers", 12, int),
    "num_hidden_groups": ("num_groups", 1, int),
    "inner_group_num": ("inner_layers", 1, int),
    "num_attention_heads": ("num_heads", 64, int),
    "intermediate_size": ("intermediate_size", 16384, int),
    "max_position_embeddings": ("max_position_embeddings", 512, int),
    "type_vocab_size": ("type_vocab_size", 2, int),
    "hidden_dropout_prob": ("hidden_dropout", 0.0, float),
    "attention_probs_dropout_prob": ("attention_dropout", 0.0, float),
    "classifier_dropout_prob": ("classifier_dropout", 0.1, float),
    "layer_norm_eps": ("layer_norm_eps", 1e-12, float),
    "initializer_range": ("initializer_range", 0.02, float),
    "pad_token_id": ("pad_token_id", 0, int),
}


def make_keymap(config: EncoderConfig) -> KeyMap:
    return KeyMap(
        entries=(
            *embedding_entries("albert", config),
            *linear("encoder/embeddings/projection", "albert.encoder.embedding_hidden_mapping_in", "E D"),
            *_layer_entries(config),
            *linear("pooler/dense", "albert.pooler", "D D", head="pooler"),
            *linear("mlm_head/dense", "predictions.dense", "D E", head="mlm"),
            *norm("mlm_head/norm", "predictions.LayerNorm", config, "E", head="mlm"),
            Entry("mlm_head/bias", "predictions.bias", "V", head="mlm"),
            *linear("pair_head", "sop_classifier.classifier", "D 2", head="pair"),
            *linear("sequence_head/output", "classifier", "D C", head="sequence_classification"),
            *token_head_entries(),
        ),
        sizes=sizes(config),
        renames=(
            (r"^(embeddings|encoder|pooler)\.", r"albert.\1."),
            *TENSORFLOW_NORMS,
        ),  # AlbertModel's files have no prefix
        ignored=BUFFERS,
        ties={
            "predictions.decoder.weight": "albert.embeddings.word_embeddings.weight",
            "predictions.decoder.bias": "predictions.bias",
        },
        backbone=r"^(albert|predictions|sop_classifier)\.",
    )


def _layer_entries(config: EncoderConfig) -> tuple[Entry, ...]:
    param, tensor = "encoder/groups/{G}/layers/{I}", "albert.encoder.albert_layer_groups.{G}.albert_layers.{I}"
    return (
        *linear(f"{param}/attention/query", f"{tensor}.attention.query", "D D"),
        *linear(f"{param}/attention/key", f"{tensor}.attention.key", "D D"),
        *linear(f"{param}/attention/value", f"{tensor}.attention.value", "D D"),
        *linear(f"{param}/attention/output", f"{tensor}.attention.dense", "D D"),
        *norm(f"{param}/attention/norm", f"{tensor}.attention.LayerNorm", config),
        *linear(f"{param}/feed_forward/intermediate", f"{tensor}.ffn", "D F"),
        *linear(f"{param}/feed_forward/output", f"{tensor}.ffn_output", "F D"),
        *norm(f"{param}/feed_forward/norm", f"{tensor}.full_layer_layer_norm", config),
    )


def from_hf_config(values: dict[str, Any], where: str = "config.json") -> EncoderConfig:
    """Our config from an AlbertConfig; raises `UserError` for a key that would change the maths otherwise.

    transformers never drops the feed-forward block's output; the authors do (google-research/albert:modeling.py), and
    so do we, at the rate of the other hidden layers.
    """
    refuse(values, where, "position_embedding_type", ("absolute", None), "only absolute positions are supported")
    refuse_decoders(values, where)
    act = parse_activation(values, where, default="gelu_new")
    return EncoderConfig(**parse_fields(values, FIELDS, where), hidden_act=act, initializer="normal")


def to_hf_config(config: EncoderConfig, architecture: str) -> dict[str, Any]:
    return {
        "hidden_act": config.hidden_act,
        "tie_word_embeddings": True,
        **render_fields(config, FIELDS),
        "classifier_dropout_prob": config.rate("classifier_dropout"),
    }


FAMILY = Family(
    name="albert",
    model_type="albert",
    make_keymap=make_keymap,
    architectures=ARCHITECTURES,
    from_hf_config=from_hf_config,
    to_hf_config=to_hf_config,
    prefix="albert.",
)
