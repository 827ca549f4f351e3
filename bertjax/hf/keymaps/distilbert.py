"""DistilBERT under Hugging Face's names (transformers: models/distilbert/modeling_distilbert.py).

No token types, no pooler, no dropout behind the attention's output; the epsilon of its norms is not in its config.
"""

from __future__ import annotations

from typing import Any

from bertjax.config.model import EncoderConfig
from bertjax.hf.keymap import Entry, KeyMap
from bertjax.hf.keymaps.bert_names import BUFFERS, score_entries
from bertjax.hf.keymaps.family import (
    Family,
    Fields,
    linear,
    norm,
    read_activation,
    read_config,
    refuse_decoders,
    render_config,
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


def keymap(config: EncoderConfig) -> KeyMap:
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
            *score_entries(),
        ),
        sizes=sizes(config),
        renames=((r"^(embeddings|transformer)\.", r"distilbert.\1."),),  # DistilBertModel's files have no prefix
        ignored=BUFFERS,
        ties={"vocab_projector.weight": "distilbert.embeddings.word_embeddings.weight"},
        backbone=r"^(distilbert|vocab_transform|vocab_layer_norm|vocab_projector)\.",
    )


def _layer_entries(config: EncoderConfig) -> tuple[Entry, ...]:
    ours, theirs = "encoder/layers/{L}", "distilbert.transformer.layer.{L}"
    return (
        *linear(f"{ours}/attention/query", f"{theirs}.attention.q_lin", "D D"),
        *linear(f"{ours}/attention/key", f"{theirs}.attention.k_lin", "D D"),
        *linear(f"{ours}/attention/value", f"{theirs}.attention.v_lin", "D D"),
        *linear(f"{ours}/attention/output", f"{theirs}.attention.out_lin", "D D"),
        *norm(f"{ours}/attention/norm", f"{theirs}.sa_layer_norm", config),
        *linear(f"{ours}/feed_forward/intermediate", f"{theirs}.ffn.lin1", "D F"),
        *linear(f"{ours}/feed_forward/output", f"{theirs}.ffn.lin2", "F D"),
        *norm(f"{ours}/feed_forward/norm", f"{theirs}.output_layer_norm", config),
    )


def config_from_huggingface(values: dict[str, Any], where: str = "config.json") -> EncoderConfig:
    """Our config from a DistilBertConfig; raises `UserError` for a key that would change the maths otherwise.

    `sinusoidal_pos_embds` only says what the position table began as: the file holds it like any other.
    """
    refuse_decoders(values, where)
    values = {name: values[alias] for name, alias in _ALIASES.items() if alias in values} | values
    act = read_activation(values, where, key="activation")
    return EncoderConfig(
        **read_config(values, FIELDS, where),
        hidden_act=act,
        mlm_act=act,
        type_vocab_size=0,
        attention_output_dropout=0.0,
        classifier_dropout=_read_head_dropout(values, where),
        summary_dense="own",
        summary_act="relu",
        initializer="normal",
    )


def _read_head_dropout(values: dict[str, Any], where: str) -> float | None:
    key = _head_dropout_key((values.get("architectures") or [""])[0])
    if key is None:
        return None
    return read_config(values, {key: ("rate", _HEAD_DROPOUT[key], float)}, where)["rate"]


def _head_dropout_key(architecture: str) -> str | None:
    """Where the class that is written or read keeps the rate before its scores; None = in the encoder's rate."""
    if architecture == "DistilBertForTokenClassification":
        return None
    return "qa_dropout" if architecture == "DistilBertForQuestionAnswering" else "seq_classif_dropout"


def config_to_huggingface(config: EncoderConfig, architecture: str) -> dict[str, Any]:
    key = _head_dropout_key(architecture)
    return {
        "activation": config.hidden_act,
        "sinusoidal_pos_embds": False,
        "tie_word_embeddings": True,
        **_HEAD_DROPOUT,
        **({key: config.rate("classifier_dropout")} if key else {}),
        **render_config(config, FIELDS),
    }


FAMILY = Family(
    name="distilbert",
    model_type="distilbert",
    keymap=keymap,
    architectures=ARCHITECTURES,
    config_from_huggingface=config_from_huggingface,
    config_to_huggingface=config_to_huggingface,
    prefix="distilbert.",
)
