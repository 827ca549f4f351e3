"""BigBird (arXiv:2007.14062) under Hugging Face's names (transformers: models/big_bird/modeling_big_bird.py).

Attention is full. Where config.json says that it is sparse, `transformers` attends fully to texts of few blocks: these
are read, and exports say original_full. In training `transformers` drops embeddings before their norm, bertjax after.
"""

from __future__ import annotations

import logging
from typing import Any

from bertjax.config.model import EncoderConfig
from bertjax.hf.keymap import KeyMap, Tensors
from bertjax.hf.keymaps import bert
from bertjax.hf.keymaps.family import ENCODER_ONLY, Family, Fields, axis_sizes, change_defaults, linear, parse_fields

log = logging.getLogger(__name__)

_PREFIX, _POSITIONS = "bert", "embeddings.position_embeddings.weight"
_SIZES = {"vocab_size": 50358, "max_position_embeddings": 4096}
_FIELDS: Fields = {
    **change_defaults(bert.BERT_FIELDS, **_SIZES, hidden_act="gelu_new"),
    "rescale_embeddings": ("embedding_scale", False, bool),
}
_BLOCKS: Fields = {"block_size": ("size", 64, int), "num_random_blocks": ("random", 3, int)}


def make_keymap(config: EncoderConfig) -> KeyMap:
    """Returns the names of a BigBird's parameters."""
    return KeyMap(
        entries=(
            *bert.embedding_entries(_PREFIX, config),
            *bert.layer_entries(_PREFIX, config),
            *linear("pooler/dense", f"{_PREFIX}.pooler", "D D", head="pooler"),
            *bert.prediction_entries("cls.predictions", config, "D"),
            *linear("pair_head", "cls.seq_relationship", "D 2", head="pair"),
            *bert.classifier_entries("classifier.dense", "classifier.out_proj"),
            *bert.choice_entries("classifier"),
            *linear("token_head/output", "classifier", "D C", head="token_classification"),
        ),
        sizes=axis_sizes(config),
        renames=((r"^(embeddings|encoder|pooler)\.", rf"{_PREFIX}.\1."),),  # BigBirdModel: no prefix
        ignored=bert.BUFFERS,
        ties={
            "cls.predictions.decoder.weight": f"{_PREFIX}.embeddings.word_embeddings.weight",
            "cls.predictions.decoder.bias": "cls.predictions.bias",
        },
        backbone=rf"^({_PREFIX}|cls)\.",
    )


def _readable(values: dict[str, Any], where: str) -> int | None:
    """Returns the most tokens to which `transformers` attends fully; None if to any number."""
    if values.get("attention_type", "block_sparse") == "original_full":
        return None
    blocks = parse_fields(values, _BLOCKS, where)
    return (5 + 2 * blocks["random"]) * blocks["size"]


def _extra_fields(values: dict[str, Any], fields: dict[str, Any], where: str) -> dict[str, Any]:
    limit, positions = _readable(values, where), fields["max_position_embeddings"]
    if limit is None or limit >= positions:
        return {"classifier_act": fields["hidden_act"]}
    if values:  # and not the defaults alone
        log.warning(
            "%s: attention_type = block_sparse is not supported: of %d positions the first %d are read, "
            "up to which transformers attends fully as well",
            where,
            positions,
            limit,
        )
    return {"classifier_act": fields["hidden_act"], "max_position_embeddings": limit}


def _cut_positions(values: dict[str, Any], tensors: Tensors, where: str) -> Tensors:
    limit, rows = _readable(values, where), parse_fields(values, _FIELDS, where)["max_position_embeddings"]
    if limit is None:
        return tensors
    return {
        name: array[:limit] if name.endswith(_POSITIONS) and len(array) == rows else array
        for name, array in tensors.items()
    }


FAMILY = Family(
    name="big_bird",
    model_type="big_bird",
    make_keymap=make_keymap,
    # BigBirdForQuestionAnswering has a feed-forward block in its head and leaves the question out of the scores: a
    # folder of it is read without the head.
    architectures={
        "BigBirdForPreTraining": ("pooler", "mlm", "pair"),
        "BigBirdForSequenceClassification": ("sequence_classification",),
        "BigBirdForMultipleChoice": ("pooler", "multiple_choice"),
        "BigBirdForTokenClassification": ("token_classification",),
        "BigBirdForMaskedLM": ("mlm",),
        "BigBirdModel": (),
    },
    fields=_FIELDS,
    structure={"classifier_dense": "own", "choice_dense": "pooler", "initializer": "normal"},
    # The ids of special tokens are not known here, and the defaults of the config class would be wrong.
    constants={
        **bert.BERT_CONSTANTS,
        **dict.fromkeys(("bos_token_id", "eos_token_id", "sep_token_id")),
        "attention_type": "original_full",
        "use_bias": True,
    },
    unsupported=(
        *ENCODER_ONLY,
        ("attention_type", ("original_full", "block_sparse"), "attention is full or sparse"),
        ("use_bias", (True,), "queries, keys and values have biases"),
    ),
    ignored_keys="block_size num_random_blocks",
    extra_fields=_extra_fields,
    prefix=f"{_PREFIX}.",
    zero_heads=("pooler",),
    cut_tensors=_cut_positions,
)
