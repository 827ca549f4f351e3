"""RoFormer (arXiv:2104.09864) under Hugging Face's names (transformers: models/roformer/modeling_roformer.py).

Rotations turn neighbors (2i, 2i + 1), ours i and i + half of a head. Files hold the table of their sines and cosines.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import numpy as np

from bertjax.config.model import EncoderConfig
from bertjax.errors import UserError
from bertjax.hf.keymap import Entry, KeyMap
from bertjax.hf.keymaps import bert
from bertjax.hf.keymaps.family import (
    ENCODER_ONLY,
    Activation,
    Family,
    Fields,
    axis_sizes,
    change_defaults,
    linear,
    parse_fields,
)
from bertjax.hf.safe_files import refuse

_MAX_ROWS, _CHOICE = 65_536, "RoFormerForMultipleChoice"
_FIELDS: Fields = {
    **change_defaults(bert.ENCODER_FIELDS, vocab_size=50000, max_position_embeddings=1536),
    "embedding_size": ("embedding_size", None, int),
    "rotary_value": ("rotary_value", False, bool),
}


def make_keymap(config: EncoderConfig) -> KeyMap:
    """Returns the names of a RoFormer's parameters."""
    prefix, summary = "roformer", "sequence_summary.summary" if config.classifier_dense == "own" else None
    projection = linear("encoder/embeddings/projection", f"{prefix}.embeddings_project", "E D")
    return KeyMap(
        entries=(
            *bert.embedding_entries(prefix, config),
            *(projection if config.embedding_size is not None else ()),
            *(_pair_up(entry, config.rotary_value) for entry in bert.layer_entries(prefix, config)),
            *bert.prediction_entries("cls.predictions", config, "E"),
            *bert.classifier_entries("classifier.dense", "classifier.out_proj"),
            *bert.choice_entries("classifier", summary),
            *bert.token_head_entries(),
        ),
        sizes=axis_sizes(config),
        renames=((r"^(embeddings|embeddings_project|encoder)\.", rf"{prefix}.\1."),),  # RoFormerModel: no prefix
        computed={f"{prefix}.encoder.embed_positions.weight": _table(config.max_position_embeddings, config.head_dim)},
        ties={
            "cls.predictions.decoder.weight": f"{prefix}.embeddings.word_embeddings.weight",
            "cls.predictions.decoder.bias": "cls.predictions.bias",
        },
        backbone=rf"^({prefix}|cls)\.",
    )


def _pair_up(entry: Entry, values: bool) -> Entry:
    """Returns the entry with the transform that makes neighbors of rotated pairs, if it is of what is rotated."""
    layer, transform = str(entry.param).removeprefix("encoder/layers/{L}/attention/"), entry.transform
    if layer.startswith(("query/", "key/", "value/")[: 2 + values]):
        transform = "rotary_pairs"
    elif values and layer == "output/kernel":
        transform = "rotary_pairs_output"
    return dataclasses.replace(entry, transform=transform)


@functools.lru_cache(maxsize=8)
def _table(rows: int, size: int) -> np.ndarray:
    """Returns all sines, then all cosines, of every position; float32 of numbers in double precision."""
    angles = np.arange(rows)[:, None] / np.power(10_000, np.arange(0, size, 2) / size)
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype(np.float32)


def _extra_fields(values: dict[str, Any], fields: dict[str, Any], where: str) -> dict[str, Any]:
    if (rows := fields["max_position_embeddings"]) > _MAX_ROWS:
        raise UserError(f"{where}: max_position_embeddings = {rows}: a table of more than {_MAX_ROWS} rows is not read")
    factorized = fields["embedding_size"] != fields["hidden_size"]
    result = {"classifier_act": fields["hidden_act"]} | ({} if factorized else {"embedding_size": None})
    chooses = (values.get("architectures") or [""])[0] == _CHOICE
    return result | (_summary_fields(values, where) if chooses else {})


def _summary_fields(values: dict[str, Any], where: str) -> dict[str, Any]:
    """Returns what only the class of multiple choice reads."""
    summary = {"summary_type": values.get("summary_type", "last")}
    refuse(summary, where, "summary_type", ("first",), "the last column of a batch may be padding")
    refuse(values, where, "summary_proj_to_labels", (False, None), "the summary has the hidden size")
    if bool(values.get("summary_use_proj")) != bool(values.get("summary_activation")):
        raise UserError(f"{where}: summary_use_proj and summary_activation belong together: a layer and its activation")
    if not values.get("summary_use_proj"):
        return {"classifier_dense": "none"}
    return parse_fields(values, {"summary_activation": ("classifier_act", None, Activation)}, where)


def _extra_keys(config: EncoderConfig, architecture: str) -> dict[str, Any]:
    has_layer = config.classifier_dense == "own"
    summary = {"summary_type": "first", "summary_use_proj": has_layer}
    summary |= {"summary_activation": config.classifier_act} if has_layer else {}
    return {"embedding_size": config.embedding_dim} | (summary if architecture == _CHOICE else {})


FAMILY = Family(
    name="roformer",
    model_type="roformer",
    make_keymap=make_keymap,
    architectures={
        "RoFormerForSequenceClassification": ("sequence_classification",),
        _CHOICE: ("multiple_choice",),
        "RoFormerForTokenClassification": ("token_classification",),
        "RoFormerForQuestionAnswering": ("question_answering",),
        "RoFormerForMaskedLM": ("mlm",),
        "RoFormerModel": (),
    },
    fields=_FIELDS,
    structure={
        "position_embedding": "none",
        "attention_position": "rotary",
        "classifier_dense": "own",
        "initializer": "normal",
    },
    constants=bert.BERT_CONSTANTS,
    unsupported=ENCODER_ONLY,
    training_only=(
        ("summary_first_dropout", (0, None), "the summary of a choice has no dropout"),
        ("summary_last_dropout", (0, None), "the summary of a choice has no dropout"),
    ),
    ignored_keys="summary_activation summary_proj_to_labels summary_type summary_use_proj",
    extra_fields=_extra_fields,
    extra_keys=_extra_keys,
    prefix="roformer.",
    stores_computed=True,
)
