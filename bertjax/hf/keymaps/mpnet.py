"""MPNet under Hugging Face's names (transformers: models/mpnet/modeling_mpnet.py): RoBERTa without token types.

Positions begin after row 1, and distances have 32 buckets, whatever config.json says.
"""

from __future__ import annotations

import dataclasses

from bertjax.config.model import EncoderConfig
from bertjax.hf.keymap import KeyMap
from bertjax.hf.keymaps import bert, roberta
from bertjax.hf.keymaps.family import Fields, change_defaults, table

_NORMS = bert.NormNames("attention.LayerNorm", "output.LayerNorm")
_ATTENTION = (
    ("self.query", "attn.q"),
    ("self.key", "attn.k"),
    ("self.value", "attn.v"),
    ("n.output.dense", "n.attn.o"),
)
_FIELDS: Fields = {
    **change_defaults(bert.ENCODER_FIELDS, vocab_size=30527, pad_token_id=1),
    "relative_attention_num_buckets": ("relative_attention_num_buckets", 32, int),
}


def make_keymap(config: EncoderConfig) -> KeyMap:
    """Returns the names of an MPNet's parameters."""
    keymap = roberta.make_keymap(config, "mpnet", _NORMS)
    entries = [
        dataclasses.replace(entry, tensor=_rename(entry.tensor))
        for entry in keymap.entries
        if "token_type" not in entry.tensor
    ]
    entries += table("encoder/relative_attention_bias", "mpnet.encoder.relative_attention_bias", "U N")
    sizes = {**keymap.sizes, "U": config.relative_attention_num_buckets}
    return dataclasses.replace(keymap, entries=tuple(entries), sizes=sizes)


def _rename(name: str) -> str:
    for old, new in _ATTENTION:
        name = name.replace(old, new)
    return name


FAMILY = dataclasses.replace(
    roberta.FAMILY,
    name="mpnet",
    model_type="mpnet",
    make_keymap=make_keymap,
    architectures={name.replace("Roberta", "MPNet"): heads for name, heads in roberta.FAMILY.architectures.items()},
    fields={key: field for key, field in _FIELDS.items() if key != "type_vocab_size"},
    structure={
        **roberta.FAMILY.structure,
        "type_vocab_size": 0,
        "attention_position": "relative_bias",
        "relative_attention_max_distance": 128,
    },
    constants={"tie_word_embeddings": True},
    unsupported=(
        *roberta.FAMILY.unsupported,
        ("pad_token_id", (1,), "positions begin after row 1"),
        ("relative_attention_num_buckets", (32,), "distances have 32 buckets"),
    ),
    prefix="mpnet.",
)
