"""RoBERTa with norms before the blocks (transformers: models/roberta_prelayernorm/modeling_roberta_prelayernorm.py).

Everything is RoBERTa's but three names: a norm stands where its block begins, and one more behind the last layer.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from bertjax.config.model import EncoderConfig
from bertjax.hf.keymap import KeyMap
from bertjax.hf.keymaps import roberta
from bertjax.hf.keymaps.bert_names import BUFFERS, embedding_entries, layer_entries, token_head_entries
from bertjax.hf.keymaps.family import Family, norm, sizes

_PREFIX = "roberta_prelayernorm"
_MOVED = {
    "attention.output.LayerNorm": "attention.LayerNorm",
    "output.LayerNorm": "intermediate.LayerNorm",
}


def make_keymap(config: EncoderConfig) -> KeyMap:
    layers = tuple(dataclasses.replace(entry, tensor=_moved(entry.tensor)) for entry in layer_entries(_PREFIX, config))
    last = norm("encoder/norm", f"{_PREFIX}.LayerNorm", config)
    heads = roberta.head_entries(_PREFIX, config)
    return KeyMap(
        entries=(*embedding_entries(_PREFIX, config), *layers, *last, *heads, *token_head_entries()),
        sizes=sizes(config),
        renames=((r"^(embeddings|encoder|pooler|LayerNorm)\.", rf"{_PREFIX}.\1."),),  # the bare model's files
        ignored=BUFFERS,
        ties=roberta.ties(_PREFIX),
        backbone=rf"^({_PREFIX}|lm_head)\.",
    )


def _moved(name: str) -> str:
    """The name of a layer's tensor: norms stand before their blocks."""
    layer, _, part = name.partition("{L}.")
    module, _, leaf = part.rpartition(".")
    return f"{layer}{{L}}.{_MOVED.get(module, module)}.{leaf}"


def from_hf_config(values: dict[str, Any], where: str = "config.json") -> EncoderConfig:
    """As RoBERTa's, whose keys it has."""
    return dataclasses.replace(roberta.from_hf_config(values, where), norm_placement="pre")


FAMILY = Family(
    name="roberta-prelayernorm",
    model_type="roberta-prelayernorm",
    make_keymap=make_keymap,
    architectures={
        name.replace("Roberta", "RobertaPreLayerNorm"): heads for name, heads in roberta.ARCHITECTURES.items()
    },
    from_hf_config=from_hf_config,
    to_hf_config=roberta.to_hf_config,
    prefix=f"{_PREFIX}.",
)
