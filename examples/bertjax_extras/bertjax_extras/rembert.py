"""RemBERT (arXiv:2010.12821) under the names of transformers (models/rembert/modeling_rembert.py).

A BERT whose word table is narrower than its layers. The masked-token head of RemBERT has a table of its own, of another
width, which bertjax does not have: such a head goes into the sidecar files.
"""

from __future__ import annotations

from typing import Any

from bertjax.extensions import EncoderConfig, Family, KeyMap
from bertjax.hf.keymaps import bert
from bertjax.hf.keymaps.family import ENCODER_ONLY, axis_sizes, change_defaults, linear


def make_keymap(config: EncoderConfig) -> KeyMap:
    """Returns the names of the parameters of a RemBERT."""
    projection = linear("encoder/embeddings/projection", "rembert.encoder.embedding_hidden_mapping_in", "E D")
    return KeyMap(
        entries=(
            *bert.embedding_entries("rembert", config),
            *projection,
            *bert.layer_entries("rembert", config),
            *linear("pooler/dense", "rembert.pooler.dense", "D D", head="pooler"),
            *linear("sequence_head/output", "classifier", "D C", head="sequence_classification"),
            *bert.token_head_entries(),
        ),
        sizes=axis_sizes(config),
        renames=((r"^(embeddings|encoder|pooler)\.", r"rembert.\1."),),  # RemBertModel: no prefix
        ignored=(*bert.BUFFERS, r"cls\.predictions\..*"),
        backbone=r"^(rembert|cls)\.",
    )


def _extra_keys(config: EncoderConfig, architecture: str) -> dict[str, Any]:
    return {"input_embedding_size": config.embedding_dim, "output_embedding_size": config.embedding_dim}


FAMILY = Family(
    name="rembert",
    model_type="rembert",
    make_keymap=make_keymap,
    architectures={
        "RemBertForSequenceClassification": ("pooler", "sequence_classification"),
        "RemBertForTokenClassification": ("token_classification",),
        "RemBertForQuestionAnswering": ("question_answering",),
        "RemBertModel": (),
    },
    fields={
        **change_defaults(
            bert.ENCODER_FIELDS,
            vocab_size=250300,
            hidden_size=1152,
            num_hidden_layers=32,
            num_attention_heads=18,
            intermediate_size=4608,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        ),
        "input_embedding_size": ("embedding_size", 256, int),
        "classifier_dropout_prob": ("classifier_dropout", 0.1, float),
    },
    structure={"initializer": "normal"},
    constants={"tie_word_embeddings": False, "is_decoder": False, "add_cross_attention": False, "use_cache": True},
    unsupported=ENCODER_ONLY,
    ignored_keys="output_embedding_size",
    old_classes={"RemBertForMaskedLM": "RemBertModel"},  # without its head
    extra_keys=_extra_keys,
    prefix="rembert.",
)
