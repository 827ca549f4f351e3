"""RoBERTa with norms before the blocks (transformers: models/roberta_prelayernorm/modeling_roberta_prelayernorm.py).

Three names differ from RoBERTa's: a norm has the name of the block that it precedes, and one more follows the last
layer.
"""

from __future__ import annotations

import dataclasses

from bertjax.config.model import EncoderConfig
from bertjax.hf.keymap import KeyMap
from bertjax.hf.keymaps import bert_names as names
from bertjax.hf.keymaps import roberta
from bertjax.hf.keymaps.family import axis_sizes, norm

_PREFIX = "roberta_prelayernorm"
_MOVED = {
    "attention.output.LayerNorm": "attention.LayerNorm",
    "output.LayerNorm": "intermediate.LayerNorm",
}


def make_keymap(config: EncoderConfig) -> KeyMap:
    """Returns the names of the parameters."""
    layers = names.layer_entries(_PREFIX, config)
    return KeyMap(
        entries=(
            *names.embedding_entries(_PREFIX, config),
            *(dataclasses.replace(entry, tensor=_move_norm(entry.tensor)) for entry in layers),
            *norm("encoder/norm", f"{_PREFIX}.LayerNorm", config),
            *roberta.head_entries(_PREFIX, config),
        ),
        sizes=axis_sizes(config),
        renames=((r"^(embeddings|encoder|pooler|LayerNorm)\.", rf"{_PREFIX}.\1."),),  # the bare model: no prefix
        ignored=names.BUFFERS,
        ties=roberta.tied_names(_PREFIX),
        backbone=rf"^({_PREFIX}|lm_head)\.",
    )


def _move_norm(name: str) -> str:
    layer, _, rest = name.partition("{L}.")
    module, _, leaf = rest.rpartition(".")
    return f"{layer}{{L}}.{_MOVED.get(module, module)}.{leaf}"


FAMILY = dataclasses.replace(
    roberta.FAMILY,
    name="roberta-prelayernorm",
    model_type="roberta-prelayernorm",
    make_keymap=make_keymap,
    architectures={
        name.replace("Roberta", "RobertaPreLayerNorm"): heads for name, heads in roberta.FAMILY.architectures.items()
    },
    structure={**roberta.FAMILY.structure, "norm_placement": "pre"},
    prefix=f"{_PREFIX}.",
)
