"""BERT with ALiBi and gated blocks, under the names of its authors: MosaicBERT and Jina v2.

MosaicBERT: mosaicml/examples:examples/benchmarks/bert/src/bert_layers.py (arXiv:2312.17482), also DNABERT-2's
(arXiv:2306.15006); query, key and value are one matrix. Jina v2: jinaai/jina-bert-implementation (arXiv:2310.19923).
`transformers` has no class for either, so they are read here and exported in the native format.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

from bertjax.config.model import EncoderConfig
from bertjax.hf.keymap import Entry, KeyMap
from bertjax.hf.keymaps import bert
from bertjax.hf.keymaps.family import ENCODER_ONLY, Family, linear, norm


def make_keymap(config: EncoderConfig, packed: bool) -> KeyMap:
    """Returns the names of the parameters: those of BERT outside the layers.

    Args:
        config: the model.
        packed: query, key and value are one matrix.
    """
    keymap, param, tensor = bert.make_keymap(config), "encoder/layers/{L}", "bert.encoder.layer.{L}"
    attention, theirs = f"{param}/attention", f"{tensor}.attention"
    parts = ("query", "key", "value")
    qkv: list[Entry] = []
    if packed:
        paths = tuple(f"{attention}/{part}" for part in parts)
        qkv += linear(paths, f"{theirs}.self.Wqkv", "D A", transform="concat_transpose")
    else:
        qkv += (entry for part in parts for entry in linear(f"{attention}/{part}", f"{theirs}.self.{part}", "D A"))
    gated = tuple(f"{param}/feed_forward/{part}" for part in ("gate", "intermediate"))
    layers = (
        *qkv,
        *linear(f"{attention}/output", f"{theirs}.output.dense", "A D"),
        *norm(f"{attention}/norm", f"{theirs}.output.LayerNorm", config),
        *linear(gated, f"{tensor}.mlp.gated_layers", "D F", False, transform="concat_transpose"),
        *linear(f"{param}/feed_forward/output", f"{tensor}.mlp.wo", "F D"),
        *norm(f"{param}/feed_forward/norm", f"{tensor}.mlp.layernorm", config),
    )
    others = tuple(entry for entry in keymap.entries if not entry.tensor.startswith(tensor))
    renames = ((r"^model\.(?=bert\.|cls\.)", ""), *keymap.renames)  # of Composer
    return dataclasses.replace(keymap, entries=(*others, *layers), renames=renames)


def _extra_fields(values: dict[str, Any], fields: dict[str, Any], where: str) -> dict[str, Any]:
    """The one dropout rate of a block applies inside the feed-forward block, not after it."""
    return {"activation_dropout": fields["hidden_dropout"], "feed_forward_dropout": 0.0}


_MOSAIC = Family(
    name="mosaic_bert",
    model_type="mosaic_bert",
    make_keymap=functools.partial(make_keymap, packed=True),
    architectures=bert.FAMILY.architectures,
    fields=bert.BERT_FIELDS,
    structure={
        "position_embedding": "none",
        "attention_position": "relative_bias",
        "relative_bias": "linear",
        "feed_forward": "glu",
        "feed_forward_inner_bias": False,
        "mlm_act": "gelu",
        "initializer": "normal",
    },
    unsupported=ENCODER_ONLY,
    extra_fields=_extra_fields,
    prefix="bert.",
    written=False,
)
FAMILIES = {
    "mosaic_bert": _MOSAIC,
    "jina_bert": dataclasses.replace(
        _MOSAIC,
        name="jina_bert",
        model_type="jina_bert",
        make_keymap=functools.partial(make_keymap, packed=False),
    ),
}
