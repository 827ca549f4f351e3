"""BERT under Hugging Face's names (transformers: models/bert/modeling_bert.py) and its config.json.

Other families use the same names and keys with other prefixes and defaults.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from bertjax.config.model import EncoderConfig
from bertjax.hf.keymap import Entry, KeyMap
from bertjax.hf.keymaps.family import (
    ABSOLUTE_POSITIONS,
    ENCODER_ONLY,
    Activation,
    Family,
    Fields,
    axis_sizes,
    linear,
    norm,
    table,
)


class NormNames(NamedTuple):
    """Names of the norms of a layer, and of the norm after the last layer; empty if there is none."""

    attention: str = "attention.output.LayerNorm"
    feed_forward: str = "output.LayerNorm"
    last: str = ""


AFTER = NormNames()
BUFFERS = (r"embeddings\.position_ids$", r"embeddings\.token_type_ids$")
ENCODER_FIELDS: Fields = {
    "vocab_size": ("vocab_size", 30522, int),
    "hidden_size": ("hidden_size", 768, int),
    "num_hidden_layers": ("num_layers", 12, int),
    "num_attention_heads": ("num_heads", 12, int),
    "intermediate_size": ("intermediate_size", 3072, int),
    "hidden_act": ("hidden_act", "gelu", Activation),
    "max_position_embeddings": ("max_position_embeddings", 512, int),
    "type_vocab_size": ("type_vocab_size", 2, int),
    "hidden_dropout_prob": ("hidden_dropout", 0.1, float),
    "attention_probs_dropout_prob": ("attention_dropout", 0.1, float),
    "layer_norm_eps": ("layer_norm_eps", 1e-12, float),
    "initializer_range": ("initializer_range", 0.02, float),
    "pad_token_id": ("pad_token_id", 0, int),
}
BERT_FIELDS: Fields = {**ENCODER_FIELDS, "classifier_dropout": ("classifier_dropout", None, float)}
BERT_CONSTANTS: dict[str, Any] = {
    "tie_word_embeddings": True,
    "is_decoder": False,
    "add_cross_attention": False,
    "use_cache": True,
}


def embedding_entries(prefix: str, config: EncoderConfig) -> tuple[Entry, ...]:
    """Returns the tables that the config has and their norm, at the width of the word table."""
    param, tensor, positions = "encoder/embeddings", f"{prefix}.embeddings", config.position_embedding == "learned"
    return (
        *table(f"{param}/word_embeddings", f"{tensor}.word_embeddings", "V E"),
        *(table(f"{param}/position_embeddings", f"{tensor}.position_embeddings", "P E") if positions else ()),
        *table(f"{param}/token_type_embeddings", f"{tensor}.token_type_embeddings", "T E"),
        *(norm(f"{param}/norm", f"{tensor}.LayerNorm", config, "E") if config.embedding_norm != "none" else ()),
    )


def layer_entries(prefix: str, config: EncoderConfig, norms: NormNames = AFTER) -> tuple[Entry, ...]:
    """Returns the attention and feed-forward blocks of the stacked layers, and the norm after them.

    Args:
        prefix: what the names begin with.
        config: the model.
        norms: names of the norms.
    """
    param, tensor = "encoder/layers/{L}", f"{prefix}.encoder.layer.{{L}}"
    return (
        *(
            entry
            for name in ("query", "key", "value")
            for entry in linear(f"{param}/attention/{name}", f"{tensor}.attention.self.{name}", "D D")
        ),
        *output_entries(prefix, config, "D", norms),
        *(norm("encoder/norm", f"{prefix}.{norms.last}", config) if norms.last else ()),
    )


def output_entries(prefix: str, config: EncoderConfig, width: str, norms: NormNames = AFTER) -> tuple[Entry, ...]:
    """Returns what follows the attention scores in every layer.

    Args:
        prefix, config, norms: as of `layer_entries`.
        width: letter of the axis of all heads together.
    """
    param, tensor = "encoder/layers/{L}", f"{prefix}.encoder.layer.{{L}}"
    return (
        *linear(f"{param}/attention/output", f"{tensor}.attention.output.dense", f"{width} D"),
        *norm(f"{param}/attention/norm", f"{tensor}.{norms.attention}", config),
        *linear(f"{param}/feed_forward/intermediate", f"{tensor}.intermediate.dense", "D F"),
        *linear(f"{param}/feed_forward/output", f"{tensor}.output.dense", "F D"),
        *norm(f"{param}/feed_forward/norm", f"{tensor}.{norms.feed_forward}", config),
    )


def prediction_entries(prefix: str, config: EncoderConfig, width: str) -> tuple[Entry, ...]:
    """Returns BERT's masked-LM head.

    Args:
        prefix: what the names begin with.
        config: the model.
        width: letter of the axis that the word table has.
    """
    return (
        *linear("mlm_head/dense", f"{prefix}.transform.dense", f"D {width}", head="mlm"),
        *norm("mlm_head/norm", f"{prefix}.transform.LayerNorm", config, width, head="mlm"),
        Entry("mlm_head/bias", f"{prefix}.bias", "V", head="mlm"),
    )


def classifier_entries(dense: str, output: str) -> tuple[Entry, ...]:
    """Returns a sequence classifier with a dense layer of its own, from the names of its two layers."""
    return (
        *linear("sequence_head/dense", dense, "D D", head="sequence_classification"),
        *linear("sequence_head/output", output, "D C", head="sequence_classification"),
    )


def choice_entries(output: str, dense: str | None = None) -> tuple[Entry, ...]:
    """Returns the head of multiple choice, from the names of its output and of a dense layer of its own."""
    of_dense = () if dense is None else linear("choice_head/dense", dense, "D D", head="multiple_choice")
    return (*of_dense, *linear("choice_head/output", output, "D 1", head="multiple_choice"))


def token_head_entries() -> tuple[Entry, ...]:
    """Returns the token classifier and the answer head, one linear layer each in most families."""
    return (
        *linear("token_head/output", "classifier", "D C", head="token_classification"),
        *linear("answer_head/output", "qa_outputs", "D 2", head="question_answering"),
    )


def make_keymap(config: EncoderConfig, prefix: str = "bert", norms: NormNames = AFTER) -> KeyMap:
    """Returns the names of the parameters of a BERT, or of a family with its tensors.

    Args:
        config: the model.
        prefix: what the names begin with.
        norms: names of the norms.
    """
    return KeyMap(
        entries=(
            *embedding_entries(prefix, config),
            *layer_entries(prefix, config, norms),
            *linear("pooler/dense", f"{prefix}.pooler.dense", "D D", head="pooler"),
            *prediction_entries("cls.predictions", config, "D"),
            *linear("pair_head", "cls.seq_relationship", "D 2", head="pair"),
            *linear("sequence_head/output", "classifier", "D C", head="sequence_classification"),
            *choice_entries("classifier"),
            *token_head_entries(),
        ),
        sizes=axis_sizes(config),
        renames=((r"^(embeddings|encoder|pooler)\.", rf"{prefix}.\1."),),  # BertModel: no prefix
        ignored=BUFFERS,
        ties={
            "cls.predictions.decoder.weight": f"{prefix}.embeddings.word_embeddings.weight",
            "cls.predictions.decoder.bias": "cls.predictions.bias",
        },
        backbone=rf"^({prefix}|cls)\.",
    )


FAMILY = Family(
    name="bert",
    model_type="bert",
    make_keymap=make_keymap,
    # A file may hold more heads than its class (Google's BertForMaskedLM files have the pooler and the pair head).
    # BertModel may come without its pooler: `add_pooling_layer` is not in config.json.
    architectures={
        "BertForPreTraining": ("pooler", "mlm", "pair"),
        "BertForSequenceClassification": ("pooler", "sequence_classification"),
        "BertForMultipleChoice": ("pooler", "multiple_choice"),
        "BertForTokenClassification": ("token_classification",),
        "BertForQuestionAnswering": ("question_answering",),
        "BertForMaskedLM": ("mlm",),
        "BertForNextSentencePrediction": ("pooler", "pair"),
        "BertModel": (),
    },
    fields=BERT_FIELDS,
    structure={"initializer": "normal"},
    constants=BERT_CONSTANTS,
    unsupported=(*ABSOLUTE_POSITIONS, *ENCODER_ONLY),
    # Of the multilingual files; nothing reads them.
    ignored_keys="directionality pooler_fc_size pooler_num_attention_heads pooler_num_fc_layers pooler_size_per_head "
    "pooler_type",
    prefix="bert.",
)
