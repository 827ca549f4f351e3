"""RemBERT (arXiv:2010.12821) under Hugging Face's names (transformers: models/rembert/modeling_rembert.py).

The word table is narrower than the layers, and the masked-token head has a table of its own, which is wider.
"""

from __future__ import annotations

from bertjax.config.model import EncoderConfig
from bertjax.hf.keymap import Entry, KeyMap
from bertjax.hf.keymaps import bert
from bertjax.hf.keymaps.family import ENCODER_ONLY, Family, Fields, axis_sizes, change_defaults, linear, norm

_FIELDS: Fields = {
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
    "output_embedding_size": ("output_embedding_size", 1664, int),
    "classifier_dropout_prob": ("classifier_dropout", 0.1, float),
}


def make_keymap(config: EncoderConfig) -> KeyMap:
    """Returns the names of a RemBERT's parameters."""
    prefix, predictions = "rembert", "cls.predictions"
    return KeyMap(
        entries=(
            *bert.embedding_entries(prefix, config),
            *linear("encoder/embeddings/projection", f"{prefix}.encoder.embedding_hidden_mapping_in", "E D"),
            *bert.layer_entries(prefix, config),
            *linear("pooler/dense", f"{prefix}.pooler.dense", "D D", head="pooler"),
            *linear("mlm_head/dense", f"{predictions}.dense", "D O", head="mlm"),
            *norm("mlm_head/norm", f"{predictions}.LayerNorm", config, "O", head="mlm"),
            Entry("mlm_head/table", f"{predictions}.decoder.weight", "V O", head="mlm"),
            Entry("mlm_head/bias", f"{predictions}.decoder.bias", "V", head="mlm"),
            *linear("sequence_head/output", "classifier", "D C", head="sequence_classification"),
            *bert.choice_entries("classifier"),
            *bert.token_head_entries(),
        ),
        sizes=axis_sizes(config) | {"O": config.output_embedding_dim},
        renames=((r"^(embeddings|encoder|pooler)\.", rf"{prefix}.\1."),),  # RemBertModel: no prefix
        ignored=bert.BUFFERS,
        backbone=rf"^({prefix}|cls)\.",
    )


FAMILY = Family(
    name="rembert",
    model_type="rembert",
    make_keymap=make_keymap,
    architectures={
        "RemBertForSequenceClassification": ("pooler", "sequence_classification"),
        "RemBertForMultipleChoice": ("pooler", "multiple_choice"),
        "RemBertForTokenClassification": ("token_classification",),
        "RemBertForQuestionAnswering": ("question_answering",),
        "RemBertForMaskedLM": ("mlm",),
        "RemBertModel": (),
    },
    fields=_FIELDS,
    structure={"tie_word_embeddings": False, "initializer": "normal"},
    # The ids of special tokens are not known here, and the defaults of the config class would be wrong.
    constants={**bert.BERT_CONSTANTS, "tie_word_embeddings": False, "bos_token_id": None, "eos_token_id": None},
    unsupported=ENCODER_ONLY,
    prefix="rembert.",
)
