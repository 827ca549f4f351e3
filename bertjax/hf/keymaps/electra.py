"""ELECTRA's two networks under Hugging Face's names (transformers: models/electra/modeling_electra.py).

The discriminator is `ElectraForPreTraining` (head `rtd`), the generator `ElectraForMaskedLM` (head `mlm`): two folders,
each with the embeddings that the two share in training.
"""

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

ARCHITECTURES: dict[str, tuple[str, ...]] = {
    "ElectraForPreTraining": ("rtd",),
    "ElectraForSequenceClassification": ("sequence_classification",),
    "ElectraForTokenClassification": ("token_classification",),
    "ElectraForQuestionAnswering": ("question_answering",),
    "ElectraForMaskedLM": ("mlm",),
    "ElectraModel": (),
}
FIELDS: Fields = {
    "vocab_size": ("vocab_size", 30522, int),
    "embedding_size": ("embedding_size", 128, int),
    "hidden_size": ("hidden_size", 256, int),
    "num_hidden_layers": ("num_layers", 12, int),
    "num_attention_heads": ("num_heads", 4, int),
    "intermediate_size": ("intermediate_size", 1024, int),
    "max_position_embeddings": ("max_position_embeddings", 512, int),
    "type_vocab_size": ("type_vocab_size", 2, int),
    "hidden_dropout_prob": ("hidden_dropout", 0.1, float),
    "attention_probs_dropout_prob": ("attention_dropout", 0.1, float),
    "classifier_dropout": ("classifier_dropout", None, float),
    "layer_norm_eps": ("layer_norm_eps", 1e-12, float),
    "initializer_range": ("initializer_range", 0.02, float),
    "pad_token_id": ("pad_token_id", 0, int),
}
# Read by the multiple-choice class alone, which is not ours; written as the released models have them.
_SUMMARY = {
    "summary_type": "first",
    "summary_use_proj": True,
    "summary_activation": "gelu",
    "summary_last_dropout": 0.1,
}


def make_keymap(config: EncoderConfig) -> KeyMap:
    projection = "encoder/embeddings/projection", "electra.embeddings_project"
    return KeyMap(
        entries=(
            *embedding_entries("electra", config),
            *(linear(*projection, "E D") if config.embedding_size is not None else ()),
            *layer_entries("electra", config),
            *linear("rtd_head/dense", "discriminator_predictions.dense", "D D", head="rtd"),
            *linear("rtd_head/output", "discriminator_predictions.dense_prediction", "D 1", head="rtd"),
            *linear("mlm_head/dense", "generator_predictions.dense", "D E", head="mlm"),
            *norm("mlm_head/norm", "generator_predictions.LayerNorm", config, "E", head="mlm"),
            Entry("mlm_head/bias", "generator_lm_head.bias", "V", head="mlm"),
            *linear("sequence_head/dense", "classifier.dense", "D D", head="sequence_classification"),
            *linear("sequence_head/output", "classifier.out_proj", "D C", head="sequence_classification"),
            *token_head_entries(),
        ),
        sizes=sizes(config),
        renames=(
            (r"^(embeddings|embeddings_project|encoder)\.", r"electra.\1."),
            *TENSORFLOW_NORMS,
        ),  # ElectraModel's have no prefix
        ignored=BUFFERS,
        ties={"generator_lm_head.weight": "electra.embeddings.word_embeddings.weight"},
        backbone=r"^(electra|discriminator_predictions|generator_predictions|generator_lm_head)\.",
    )


def from_hf_config(values: dict[str, Any], where: str = "config.json") -> EncoderConfig:
    """Our config from an ElectraConfig; raises `UserError` for a key that would change the maths otherwise."""
    refuse(values, where, "position_embedding_type", ("absolute", None), "only absolute positions are supported")
    refuse_decoders(values, where)
    fields = parse_fields(values, FIELDS, where)
    if fields["embedding_size"] == fields["hidden_size"]:
        fields["embedding_size"] = None  # equal widths have no projection between them
    return EncoderConfig(
        **fields,
        hidden_act=parse_activation(values, where),
        mlm_act="gelu",  # whatever the other layers have (ElectraGeneratorPredictions)
        classifier_dense="own",
        classifier_act="gelu",  # ElectraClassificationHead
        initializer="normal",
    )


def to_hf_config(config: EncoderConfig, architecture: str) -> dict[str, Any]:
    return {
        "hidden_act": config.hidden_act,
        "tie_word_embeddings": True,
        "is_decoder": False,
        "add_cross_attention": False,
        "use_cache": True,
        **_SUMMARY,
        **render_fields(config, FIELDS),
        "embedding_size": config.embedding_dim,
    }


FAMILY = Family(
    name="electra",
    model_type="electra",
    make_keymap=make_keymap,
    architectures=ARCHITECTURES,
    from_hf_config=from_hf_config,
    to_hf_config=to_hf_config,
    prefix="electra.",
)
