"""Families of `transformers` that hold the tensors of BERT or RoBERTa.

They differ in the prefix of the names, the names of their classes, and the placement and names of their norms.
"""

from __future__ import annotations

import dataclasses
import functools
from types import ModuleType
from typing import Any

from bertjax.config.model import EncoderConfig
from bertjax.hf.keymap import KeyMap
from bertjax.hf.keymaps import bert, roberta
from bertjax.hf.keymaps.bert import AFTER, NormNames
from bertjax.hf.keymaps.family import Family, Fields, change_defaults


def _like(
    base: ModuleType,
    name: str,
    classes: str,
    prefix: str,
    norms: NormNames = AFTER,
    fields: Fields | None = None,
    **changes: Any,
) -> Family:
    """Returns a family with the tensors of another.

    Args:
        base: module of the other.
        name: family and `model_type`.
        classes: what the names of its classes begin with.
        prefix: what the names of its tensors begin with.
        norms: names of its norms.
        fields: keys of its config.json.
        **changes: other attributes of the family; `structure` is added to that of the other.
    """
    family: Family = base.FAMILY
    stem = list(family.architectures)[-1].removesuffix("Model")
    attributes: dict[str, Any] = {
        "name": name,
        "model_type": name,
        "make_keymap": functools.partial(base.make_keymap, prefix=prefix, norms=norms),
        "architectures": {each.replace(stem, classes): heads for each, heads in family.architectures.items()},
        "fields": fields or family.fields,
        "prefix": f"{prefix}.",
        **changes,
    }
    return dataclasses.replace(
        family, **attributes | {"structure": {**family.structure, **changes.get("structure", {})}}
    )


def _ernie_keymap(config: EncoderConfig) -> KeyMap:
    """Returns the names of an ERNIE's parameters; its table of tasks becomes part of the table of types."""
    keymap, table = bert.make_keymap(config, "ernie"), "ernie.embeddings.{}_type_embeddings.weight"
    return dataclasses.replace(keymap, folded={table.format("task"): table.format("token")})


_PRE = {"norm_placement": "pre"}
_PRE_WITHOUT_FIRST = {"norm_placement": "pre", "embedding_norm": "none"}
_ROBERTA = change_defaults(bert.BERT_FIELDS, pad_token_id=1)
_XL = {"num_hidden_layers": 36, "hidden_size": 2560, "num_attention_heads": 32, "intermediate_size": 10240}
_345M = {"num_hidden_layers": 24, "hidden_size": 1024, "num_attention_heads": 16, "intermediate_size": 4096}

_FAMILIES = (
    _like(roberta, "xlm-roberta", "XLMRoberta", "roberta", fields=_ROBERTA),
    _like(roberta, "camembert", "Camembert", "roberta", fields=_ROBERTA),
    _like(roberta, "data2vec-text", "Data2VecText", "data2vec_text", fields=_ROBERTA),
    # arXiv:2202.08005
    _like(
        roberta,
        "roberta-prelayernorm",
        "RobertaPreLayerNorm",
        "roberta_prelayernorm",
        NormNames("attention.LayerNorm", "intermediate.LayerNorm", "LayerNorm"),
        structure=_PRE,
    ),
    # `transformers` has no dropout after the feed-forward block; the authors have it (fairseq), and so does bertjax.
    _like(
        roberta,
        "xlm-roberta-xl",
        "XLMRobertaXL",
        "roberta",
        NormNames("attention.self_attn_layer_norm", "LayerNorm", "encoder.LayerNorm"),
        change_defaults(
            _ROBERTA, vocab_size=250880, max_position_embeddings=514, type_vocab_size=1, layer_norm_eps=1e-5, **_XL
        ),
        structure=_PRE_WITHOUT_FIRST,
    ),
    _like(
        bert,
        "ernie",
        "Ernie",
        "ernie",
        make_keymap=_ernie_keymap,
        constants=bert.BERT_CONSTANTS | {"use_task_id": False},
        ignored_keys="task_type_vocab_size use_task_id",
    ),
    _like(
        bert,
        "megatron-bert",
        "MegatronBert",
        "bert",
        NormNames("attention.ln", "ln", "encoder.ln"),
        change_defaults(bert.ENCODER_FIELDS, vocab_size=29056, **_345M),
        structure=_PRE_WITHOUT_FIRST | {"scale_residual_init": True},
    ),
)
FAMILIES = {family.name: family for family in _FAMILIES}
