"""ALBERT under Hugging Face's names (transformers: models/albert/modeling_albert.py) and its config.json.

The projection after the embeddings always exists, even where their width is the hidden size. `transformers` applies no
dropout to the output of the feed-forward block; the authors do (google-research/albert: modeling.py), and so does
bertjax, at the rate of the other hidden layers.
"""

from __future__ import annotations

from bertjax.config.model import EncoderConfig
from bertjax.hf.keymap import Entry, KeyMap
from bertjax.hf.keymaps import bert
from bertjax.hf.keymaps.family import (
    ABSOLUTE_POSITIONS,
    ENCODER_ONLY,
    Family,
    Fields,
    axis_sizes,
    change_defaults,
    linear,
    norm,
)

# The defaults of AlbertConfig are those of xxlarge v2.
_DEFAULTS = {
    "vocab_size": 30000,
    "hidden_size": 4096,
    "num_attention_heads": 64,
    "intermediate_size": 16384,
    "hidden_act": "gelu_new",
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
_FIELDS: Fields = {
    **change_defaults(bert.ENCODER_FIELDS, **_DEFAULTS),
    "embedding_size": ("embedding_size", 128, int),
    "num_hidden_groups": ("num_groups", 1, int),
    "inner_group_num": ("inner_layers", 1, int),
    "classifier_dropout_prob": ("classifier_dropout", 0.1, float),
}


def make_keymap(config: EncoderConfig) -> KeyMap:
    """Returns the names of an ALBERT's parameters."""
    return KeyMap(
        entries=(
            *bert.embedding_entries("albert", config),
            *linear("encoder/embeddings/projection", "albert.encoder.embedding_hidden_mapping_in", "E D"),
            *_layer_entries(config),
            *linear("pooler/dense", "albert.pooler", "D D", head="pooler"),
            *linear("mlm_head/dense", "predictions.dense", "D E", head="mlm"),
            *norm("mlm_head/norm", "predictions.LayerNorm", config, "E", head="mlm"),
            Entry("mlm_head/bias", "predictions.bias", "V", head="mlm"),
            *linear("pair_head", "sop_classifier.classifier", "D 2", head="pair"),
            *linear("sequence_head/output", "classifier", "D C", head="sequence_classification"),
            *bert.choice_entries("classifier"),
            *bert.token_head_entries(),
        ),
        sizes=axis_sizes(config),
        renames=((r"^(embeddings|encoder|pooler)\.", r"albert.\1."),),  # AlbertModel: no prefix
        ignored=bert.BUFFERS,
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


FAMILY = Family(
    name="albert",
    model_type="albert",
    make_keymap=make_keymap,
    architectures={
        "AlbertForPreTraining": ("pooler", "mlm", "pair"),
        "AlbertForSequenceClassification": ("pooler", "sequence_classification"),
        "AlbertForMultipleChoice": ("pooler", "multiple_choice"),
        "AlbertForTokenClassification": ("token_classification",),
        "AlbertForQuestionAnswering": ("question_answering",),
        "AlbertForMaskedLM": ("mlm",),
        "AlbertModel": (),
    },
    fields=_FIELDS,
    structure={"initializer": "normal"},
    constants={"tie_word_embeddings": True},
    unsupported=(*ABSOLUTE_POSITIONS, *ENCODER_ONLY),
    # Of Google's files; nothing reads them.
    ignored_keys="down_scale_factor gap_size net_structure_type num_memory_blocks",
    prefix="albert.",
)
