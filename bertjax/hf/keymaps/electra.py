"""ELECTRA's two networks under Hugging Face's names (transformers: models/electra/modeling_electra.py).

The discriminator is `ElectraForPreTraining` (head `rtd`), the generator `ElectraForMaskedLM` (head `mlm`): two folders,
each with the embeddings that the two share in training.
"""

from __future__ import annotations

from typing import Any

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

_FIELDS: Fields = {
    **change_defaults(bert.BERT_FIELDS, hidden_size=256, num_attention_heads=4, intermediate_size=1024),
    "embedding_size": ("embedding_size", 128, int),
}
# Read by the multiple-choice class alone; the values are those of the released models.
_SUMMARY = {
    "summary_type": "first",
    "summary_use_proj": True,
    "summary_activation": "gelu",
    "summary_last_dropout": 0.1,
}


def make_keymap(config: EncoderConfig, prefix: str = "electra") -> KeyMap:
    """Returns the names of an ELECTRA's parameters, of either network; `prefix` is what those of the encoder have."""
    projection = linear("encoder/embeddings/projection", f"{prefix}.embeddings_project", "E D")
    return KeyMap(
        entries=(
            *bert.embedding_entries(prefix, config),
            *(projection if config.embedding_size is not None else ()),
            *bert.layer_entries(prefix, config),
            *linear("rtd_head/dense", "discriminator_predictions.dense", "D D", head="rtd"),
            *linear("rtd_head/output", "discriminator_predictions.dense_prediction", "D 1", head="rtd"),
            *linear("mlm_head/dense", "generator_predictions.dense", "D E", head="mlm"),
            *norm("mlm_head/norm", "generator_predictions.LayerNorm", config, "E", head="mlm"),
            Entry("mlm_head/bias", "generator_lm_head.bias", "V", head="mlm"),
            *bert.classifier_entries("classifier.dense", "classifier.out_proj"),
            *bert.choice_entries("classifier", "sequence_summary.summary"),
            *bert.token_head_entries(),
        ),
        sizes=axis_sizes(config),
        renames=(
            (r"^(embeddings|embeddings_project|encoder)\.", rf"{prefix}.\1."),  # ElectraModel: no prefix
        ),
        ignored=bert.BUFFERS,
        ties={"generator_lm_head.weight": f"{prefix}.embeddings.word_embeddings.weight"},
        backbone=rf"^({prefix}|discriminator_predictions|generator_predictions|generator_lm_head)\.",
    )


def _extra_fields(values: dict[str, Any], fields: dict[str, Any], where: str) -> dict[str, Any]:
    """Equal widths have no projection between them."""
    return {"embedding_size": None} if fields["embedding_size"] == fields["hidden_size"] else {}


FAMILY = Family(
    name="electra",
    model_type="electra",
    make_keymap=make_keymap,
    architectures={
        "ElectraForPreTraining": ("rtd",),
        "ElectraForSequenceClassification": ("sequence_classification",),
        "ElectraForMultipleChoice": ("multiple_choice",),
        "ElectraForTokenClassification": ("token_classification",),
        "ElectraForQuestionAnswering": ("question_answering",),
        "ElectraForMaskedLM": ("mlm",),
        "ElectraModel": (),
    },
    fields=_FIELDS,
    structure={
        "mlm_act": "gelu",  # whatever the other layers have (ElectraGeneratorPredictions)
        "classifier_dense": "own",
        "classifier_act": "gelu",  # ElectraClassificationHead
        "initializer": "normal",
    },
    constants={**bert.BERT_CONSTANTS, **_SUMMARY},
    unsupported=(*ABSOLUTE_POSITIONS, *ENCODER_ONLY),
    ignored_keys=f"summary_first_dropout summary_proj_to_labels {' '.join(_SUMMARY)}",
    extra_fields=_extra_fields,
    extra_keys=lambda config, architecture: {"embedding_size": config.embedding_dim},
    prefix="electra.",
)
