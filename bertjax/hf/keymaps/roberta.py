"""RoBERTa and DistilRoBERTa under Hugging Face's names (transformers: models/roberta/modeling_roberta.py).

The position table has `pad_token_id + 1` rows before the first position, and `max_position_embeddings` counts them.
"""

from __future__ import annotations

from typing import Any

from bertjax.config.model import EncoderConfig
from bertjax.errors import UserError
from bertjax.hf.keymap import Entry, KeyMap
from bertjax.hf.keymaps import bert
from bertjax.hf.keymaps.family import (
    ABSOLUTE_POSITIONS,
    ENCODER_ONLY,
    Family,
    axis_sizes,
    change_defaults,
    linear,
    norm,
)


def make_keymap(config: EncoderConfig, prefix: str = "roberta", norms: bert.NormNames = bert.AFTER) -> KeyMap:
    """Returns the names of the parameters of a RoBERTa, or of a family with its tensors.

    Args: as of `bert.make_keymap`.
    """
    return KeyMap(
        entries=(
            *bert.embedding_entries(prefix, config),
            *bert.layer_entries(prefix, config, norms),
            *head_entries(prefix, config),
        ),
        sizes=axis_sizes(config),
        renames=((r"^(embeddings|encoder|pooler|LayerNorm)\.", rf"{prefix}.\1."),),  # RobertaModel: no prefix
        ignored=bert.BUFFERS,
        ties=tied_names(prefix),
        backbone=rf"^({prefix}|lm_head)\.",
    )


def head_entries(prefix: str, config: EncoderConfig) -> tuple[Entry, ...]:
    """Returns the entries of all heads."""
    return (
        *linear("pooler/dense", f"{prefix}.pooler.dense", "D D", head="pooler"),
        *linear("mlm_head/dense", "lm_head.dense", "D D", head="mlm"),
        *norm("mlm_head/norm", "lm_head.layer_norm", config, head="mlm"),
        Entry("mlm_head/bias", "lm_head.bias", "V", head="mlm"),
        *bert.classifier_entries("classifier.dense", "classifier.out_proj"),
        *bert.choice_entries("classifier"),
        *bert.token_head_entries(),
    )


def tied_names(prefix: str) -> dict[str, str]:
    """Returns the tied copies in the masked-LM head."""
    return {
        "lm_head.decoder.weight": f"{prefix}.embeddings.word_embeddings.weight",
        "lm_head.decoder.bias": "lm_head.bias",
    }


def split_positions(values: dict[str, Any], fields: dict[str, Any], where: str) -> dict[str, Any]:
    """Separates the rows before the first position from the positions."""
    if values.get("pad_token_id", 1) is None:
        raise UserError(f"{where}: pad_token_id = null is not supported: positions begin after it")
    offset, rows = fields["pad_token_id"] + 1, fields["max_position_embeddings"]
    if not 1 <= offset < rows:
        raise UserError(
            f"{where}: positions begin after row pad_token_id = {offset - 1}, "
            f"but max_position_embeddings = {rows} rows leave none for text"
        )
    return {"max_position_embeddings": rows - offset, "position_offset": offset}


def _extra_keys(config: EncoderConfig, architecture: str) -> dict[str, Any]:
    return {"max_position_embeddings": config.position_offset + config.max_position_embeddings}


FAMILY = Family(
    name="roberta",
    model_type="roberta",
    make_keymap=make_keymap,
    architectures={
        "RobertaForSequenceClassification": ("sequence_classification",),
        "RobertaForMultipleChoice": ("pooler", "multiple_choice"),
        "RobertaForTokenClassification": ("token_classification",),
        "RobertaForQuestionAnswering": ("question_answering",),
        "RobertaForMaskedLM": ("mlm",),
        "RobertaModel": (),
    },
    # RobertaConfig's defaults are BERT's in part, and no published RoBERTa's: every published file has these keys.
    fields=change_defaults(bert.BERT_FIELDS, vocab_size=50265, pad_token_id=1),
    structure={
        "mlm_act": "gelu",  # whatever the other layers have (RobertaLMHead)
        "classifier_dense": "own",
        "choice_dense": "pooler",
        "initializer": "normal",
    },
    constants=bert.BERT_CONSTANTS,
    unsupported=(*ABSOLUTE_POSITIONS, *ENCODER_ONLY),
    extra_fields=split_positions,
    extra_keys=_extra_keys,
    prefix="roberta.",
)
