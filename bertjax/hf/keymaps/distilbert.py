"""DistilBERT under Hugging Face's names (transformers: models/distilbert/modeling_distilbert.py).

No token types, no pooler, no dropout behind the attention's output; the epsilon of its norms is not in its config.
"""

from __future__ import annotations

from typing import Any

from bertjax.config.model import EncoderConfig
from bertjax.hf.keymap import Entry, KeyMap
from bertjax.hf.keymaps.bert_names import BUFFERS, token_head_entries
from bertjax.hf.keymaps.family import (
    Family,
    Fields,
    linear,
    norm,
    parse_activation,
    parse_fields,
    refuse_decoders,
    render_fields,
    sizes,
    table,
)

ARCHITECTURES: dict[str, tuple[str, ...]] = {
    "DistilBertForSequenceClassification": ("sequence_classification",),
    "DistilBertForTokenClassification": ("token_classification",),
    "DistilBertForQuestionAnswering": ("question_answering",),
    "DistilBertForMaskedLM": ("mlm",),
    "DistilBertModel": (),
}
FIELDS: Fields = {
    "vocab_size": ("vocab_size", 30522, int),
    "dim": ("hidden_size", 768, int),
    "n_layers": ("num_layers", 6, int),
    "n_heads": ("num_heads", 12, int),
    "hidden_dim": ("intermediate_size", 3072, int),
    "max_position_embeddings": ("max_position_embeddings", 512, int),
    "dropout": ("hidden_dropout", 0.1, float),
    "attention_dropout": ("attention_dropout", 0.1, float),
    "initializer_range": ("initializer_range", 0.02, float),
    "pad_token_id": ("pad_token_id", 0, int),
}
# Names that transformers reads as the ones in front.
_ALIASES = {"dim": "hidden_size", "n_layers": "num_hidden_layers", "n_heads": "num_attention_heads"}
# Every class has a rate of its own before its scores; the classifier of tokens has the encoder's.
_HEAD_DROPOUT = {"qa_dropout": 0.1, "seq_classif_dropout": 0.2}


def make_keymap(config: EncoderConfig) -> KeyMap:
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
            *linear("sequence_head/dense", "pre_classifier", "D D", head="sequence_classification"),
            *linear("sequence_head/output", "classifier", "D C", head="sequence_classification"),
            *token_head_entries(),
        ),
        sizes=sizes(config),
        renames=((r"^(embeddings|transformer)\.", r"distilbert.\1."),),  # DistilBertModel's files have no prefix
        ignored=BUFFERS,
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


def from_hf_config(values: dict[str, Any], where: str = "config.json") -> EncoderConfig:
    """Our config from a DistilBertConfig; raises `UserError` for a key that would change the maths otherwise.

    `sinusoidal_pos_embds` only says what the position table began as: the file holds it like any other.
    """
    refuse_decoders(values, where)
    values = {name: values[alias] for name, alias in _ALIASES.items() if alias in values} | values
    act = parse_activation(values, where, key="activation")
    return EncoderConfig(
        **parse_fields(values, FIELDS, where),
        hidden_act=act,
        mlm_act=act,
        type_vocab_size=0,
        attention_output_dropout=0.0,
        classifier_dropout=_read_head_dropout(values, where),
        classifier_dense="own",
        classifier_act="relu",
        initializer="normal",
    )


def _read_head_dropout(values: dict[str, Any], where: str) -> float | None:
    key = _head_dropout_key((values.get("architectures") or [""])[0])
    if key is None:
        return None
    return parse_fields(values, {key: ("rate", _HEAD_DROPOUT[key], float)}, where)["rate"]


def _head_dropout_key(architecture: str) -> str | None:
    """Where the class that is written or read keeps the rate before its scores; None = in the encoder's rate."""
    if architecture == "DistilBertForTokenClassification":
        return None
    return "qa_dropout" if architecture == "DistilBertForQuestionAnswering" else "seq_classif_dropout"


def to_hf_config(config: EncoderConfig, architecture: str) -> dict[str, Any]:
    key = _head_dropout_key(architecture)
    return {
        "activation": config.hidden_act,
        "sinusoidal_pos_embds": False,
        "tie_word_embeddings": True,
        **_HEAD_DROPOUT,
        **({key: config.rate("classifier_dropout")} if key else {}),
        **render_fields(config, FIELDS),
    }


FAMILY = Family(
    name="distilbert",
    model_type="distilbert",
    make_keymap=make_keymap,
    architectures=ARCHITECTURES,
    from_hf_config=from_hf_config,
    to_hf_config=to_hf_config,
    prefix="distilbert.",
)
