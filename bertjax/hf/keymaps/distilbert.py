"""DistilBERT under Hugging Face's names (transformers: models/distilbert/modeling_distilbert.py).

It has no token types, no pooler and no dropout after the attention's output; the epsilon of its norms is not in its
config.json. `sinusoidal_pos_embds` only says how the position table was initialized: the file holds it as any other.
"""

from __future__ import annotations

from typing import Any

from bertjax.config.model import EncoderConfig
from bertjax.hf.keymap import Entry, KeyMap
from bertjax.hf.keymaps import bert
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
)

_FIELDS: Fields = {
    "vocab_size": ("vocab_size", 30522, int),
    "dim": ("hidden_size", 768, int),
    "n_layers": ("num_layers", 6, int),
    "n_heads": ("num_heads", 12, int),
    "hidden_dim": ("intermediate_size", 3072, int),
    "activation": ("hidden_act", "gelu", Activation),
    "max_position_embeddings": ("max_position_embeddings", 512, int),
    "dropout": ("hidden_dropout", 0.1, float),
    "attention_dropout": ("attention_dropout", 0.1, float),
    "initializer_range": ("initializer_range", 0.02, float),
    "pad_token_id": ("pad_token_id", 0, int),
}
# Every class has a rate of its own before its output layer; the token classifier uses the encoder's.
_HEAD_DROPOUT = {"qa_dropout": 0.1, "seq_classif_dropout": 0.2}


def make_keymap(config: EncoderConfig) -> KeyMap:
    """Returns the names of a DistilBERT's parameters."""
    embeddings = "encoder/embeddings"
    return KeyMap(
        entries=(
            *table(f"{embeddings}/word_embeddings", "distilbert.embeddings.word_embeddings", "V D"),
            *table(f"{embeddings}/position_embeddings", "distilbert.embeddings.position_embeddings", "P D"),
            *norm(f"{embeddings}/norm", "distilbert.embeddings.LayerNorm", config),
            *_layer_entries(config),
            *linear("mlm_head/dense", "vocab_transform", "D D", head="mlm"),
            *norm("mlm_head/norm", "vocab_layer_norm", config, head="mlm"),
            Entry("mlm_head/bias", "vocab_projector.bias", "V", head="mlm"),
            *bert.classifier_entries("pre_classifier", "classifier"),
            *bert.choice_entries("classifier", "pre_classifier"),
            *bert.token_head_entries(),
        ),
        sizes=axis_sizes(config),
        renames=((r"^(embeddings|transformer)\.", r"distilbert.\1."),),  # DistilBertModel: no prefix
        ignored=bert.BUFFERS,
        ties={"vocab_projector.weight": "distilbert.embeddings.word_embeddings.weight"},
        backbone=r"^(distilbert|vocab_transform|vocab_layer_norm|vocab_projector)\.",
    )


def _layer_entries(config: EncoderConfig) -> tuple[Entry, ...]:
    param, tensor = "encoder/layers/{L}", "distilbert.transformer.layer.{L}"
    return (
        *linear(f"{param}/attention/query", f"{tensor}.attention.q_lin", "D D"),
        *linear(f"{param}/attention/key", f"{tensor}.attention.k_lin", "D D"),
        *linear(f"{param}/attention/value", f"{tensor}.attention.v_lin", "D D"),
        *linear(f"{param}/attention/output", f"{tensor}.attention.out_lin", "D D"),
        *norm(f"{param}/attention/norm", f"{tensor}.sa_layer_norm", config),
        *linear(f"{param}/feed_forward/intermediate", f"{tensor}.ffn.lin1", "D F"),
        *linear(f"{param}/feed_forward/output", f"{tensor}.ffn.lin2", "F D"),
        *norm(f"{param}/feed_forward/norm", f"{tensor}.output_layer_norm", config),
    )


def _extra_fields(values: dict[str, Any], fields: dict[str, Any], where: str) -> dict[str, Any]:
    key = _head_dropout_key((values.get("architectures") or [""])[0])
    rate = None if key is None else parse_fields(values, {key: ("rate", _HEAD_DROPOUT[key], float)}, where)["rate"]
    return {"mlm_act": fields["hidden_act"], "classifier_dropout": rate}


def _head_dropout_key(architecture: str) -> str | None:
    """Returns the key of a class for the rate before its output layer; None = the encoder's rate."""
    if architecture == "DistilBertForTokenClassification":
        return None
    return "qa_dropout" if architecture == "DistilBertForQuestionAnswering" else "seq_classif_dropout"


def _extra_keys(config: EncoderConfig, architecture: str) -> dict[str, Any]:
    key = _head_dropout_key(architecture)
    return {**_HEAD_DROPOUT, **({key: config.rate("classifier_dropout")} if key else {})}


FAMILY = Family(
    name="distilbert",
    model_type="distilbert",
    make_keymap=make_keymap,
    architectures={
        "DistilBertForSequenceClassification": ("sequence_classification",),
        "DistilBertForMultipleChoice": ("multiple_choice",),
        "DistilBertForTokenClassification": ("token_classification",),
        "DistilBertForQuestionAnswering": ("question_answering",),
        "DistilBertForMaskedLM": ("mlm",),
        "DistilBertModel": (),
    },
    fields=_FIELDS,
    structure={
        "type_vocab_size": 0,
        "attention_output_dropout": 0.0,
        "classifier_dense": "own",
        "classifier_act": "relu",
        "initializer": "normal",
    },
    constants={"sinusoidal_pos_embds": False, "tie_word_embeddings": True},
    unsupported=ENCODER_ONLY,
    aliases={"hidden_size": "dim", "num_hidden_layers": "n_layers", "num_attention_heads": "n_heads"},
    ignored_keys="sinusoidal_pos_embds tie_weights_ qa_dropout seq_classif_dropout",
    extra_fields=_extra_fields,
    extra_keys=_extra_keys,
    prefix="distilbert.",
)
