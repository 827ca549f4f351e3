"""BERT under Hugging Face's names (transformers: models/bert/modeling_bert.py) and its config.json."""

from __future__ import annotations

from typing import Any

from bertjax.config.model import EncoderConfig
from bertjax.hf.keymap import Entry, KeyMap
from bertjax.hf.keymaps.bert_names import (
    BUFFERS,
    TENSORFLOW_NORMS,
    embedding_entries,
    layer_entries,
    token_head_entries,
)
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

# A file may hold more heads than its class (Google's BertForMaskedLM files carry the pooler and the pair head).
# BertModel may come without its pooler: `add_pooling_layer` is not in config.json.
ARCHITECTURES: dict[str, tuple[str, ...]] = {
    "BertForPreTraining": ("pooler", "mlm", "pair"),
    "BertForSequenceClassification": ("pooler", "sequence_classification"),
    "BertForTokenClassification": ("token_classification",),
    "BertForQuestionAnswering": ("question_answering",),
    "BertForMaskedLM": ("mlm",),
    "BertForNextSentencePrediction": ("pooler", "pair"),
    "BertModel": (),
}
FIELDS: Fields = {
    "vocab_size": ("vocab_size", 30522, int),
    "hidden_size": ("hidden_size", 768, int),
    "num_hidden_layers": ("num_layers", 12, int),
    "num_attention_heads": ("num_heads", 12, int),
    "intermediate_size": ("intermediate_size", 3072, int),
    "max_position_embeddings": ("max_position_embeddings", 512, int),
    "type_vocab_size": ("type_vocab_size", 2, int),
    "hidden_dropout_prob": ("hidden_dropout", 0.1, float),
    "attention_probs_dropout_prob": ("attention_dropout", 0.1, float),
    "classifier_dropout": ("classifier_dropout", None, float),
    "layer_norm_eps": ("layer_norm_eps", 1e-12, float),
    "initializer_range": ("initializer_range", 0.02, float),
    "pad_token_id": ("pad_token_id", 0, int),
}


def make_keymap(config: EncoderConfig) -> KeyMap:
    return KeyMap(
        entries=(
            *embedding_entries("bert", config),
            *layer_entries("bert", config),
            *linear("pooler/dense", "bert.pooler.dense", "D D", head="pooler"),
            *linear("mlm_head/dense", "cls.predictions.transform.dense", "D D", head="mlm"),
            *norm("mlm_head/norm", "cls.predictions.transform.LayerNorm", config, head="mlm"),
            Entry("mlm_head/bias", "cls.predictions.bias", "V", head="mlm"),
            *linear("pair_head", "cls.seq_relationship", "D 2", head="pair"),
            *linear("sequence_head/output", "classifier", "D C", head="sequence_classification"),
            *token_head_entries(),
        ),
        sizes=sizes(config),
        renames=((r"^(embeddings|encoder|pooler)\.", r"bert.\1."), *TENSORFLOW_NORMS),  # BertModel's have no prefix
        ignored=BUFFERS,
        ties={
            "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
            "cls.predictions.decoder.bias": "cls.predictions.bias",
        },
        backbone=r"^(bert|cls)\.",
    )


def from_hf_config(values: dict[str, Any], where: str = "config.json") -> EncoderConfig:
    """Our config from the known keys of a BERT config.json; others cannot change what is computed, or are refused.

    Raises `UserError` for a key that would change the maths in a way that is not supported.
    """
    refuse(values, where, "position_embedding_type", ("absolute", None), "only absolute positions are supported")
    refuse_decoders(values, where)
    act = parse_activation(values, where)
    return EncoderConfig(**parse_fields(values, FIELDS, where), hidden_act=act, initializer="normal")


def to_hf_config(config: EncoderConfig, architecture: str) -> dict[str, Any]:
    return {
        "hidden_act": config.hidden_act,
        "tie_word_embeddings": True,
        "is_decoder": False,
        "add_cross_attention": False,
        "use_cache": True,
        **render_fields(config, FIELDS),
    }


FAMILY = Family(
    name="bert",
    model_type="bert",
    make_keymap=make_keymap,
    architectures=ARCHITECTURES,
    from_hf_config=from_hf_config,
    to_hf_config=to_hf_config,
    prefix="bert.",
)
