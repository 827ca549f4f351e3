"""SqueezeBERT (arXiv:2006.11316) under the names of transformers (models/squeezebert).

A BERT whose matrices inside layers are convolutions of width 1, in groups of channels: `model.attention_groups` and
`model.feed_forward_groups`. Not: other groups of keys or values than of queries, groups after attention, other ones
in the two halves of the feed-forward block.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from bertjax.config.model import EncoderConfig
from bertjax.hf.keymap import Entry, KeyMap
from bertjax.hf.keymaps import bert
from bertjax.hf.keymaps.family import ABSOLUTE_POSITIONS, ENCODER_ONLY, Family
from bertjax.hf.safe_files import refuse

_NAMES = {
    ".layer.": ".layers.",
    ".attention.self.": ".attention.",
    ".attention.output.dense": ".post_attention.conv1d",
    ".intermediate.dense": ".intermediate.conv1d",
    ".output.dense": ".output.conv1d",
}
_NORMS = bert.NormNames("post_attention.layernorm", "output.layernorm")
_SHARES = {
    "query": "X D",
    "key": "X D",
    "value": "X D",
    "feed_forward/intermediate": "Y F",
    "feed_forward/output": "Z D",
}


def make_keymap(config: EncoderConfig) -> KeyMap:
    """Returns the names of the parameters; X, Y, Z: channels that one group of a layer reads."""
    keymap = bert.make_keymap(config, "transformer", _NORMS)
    width, attention, feed_forward = config.hidden_size, config.attention_groups, config.feed_forward_groups
    sizes = {"X": width // attention, "Y": width // feed_forward, "Z": config.intermediate_size // feed_forward}
    return dataclasses.replace(
        keymap, entries=tuple(map(_as_convolution, keymap.entries)), sizes={**keymap.sizes, **sizes}
    )


def _as_convolution(entry: Entry) -> Entry:
    """Returns an entry of a BERT with the name and the shape that a layer has here."""
    tensor, path = entry.tensor, entry.paths[0]
    if "encoder/layers" not in path:
        return entry
    for theirs, ours in _NAMES.items():
        tensor = tensor.replace(theirs, ours)
    if entry.transform != "transpose":
        return dataclasses.replace(entry, tensor=tensor)
    axes = next((axes for name, axes in _SHARES.items() if f"/{name}/" in path), entry.axes)
    return dataclasses.replace(entry, tensor=tensor, axes=axes, transform="pointwise")


def _parse(values: dict[str, Any], fields: dict[str, Any], where: str) -> dict[str, Any]:
    equal = {
        "k_groups": ("attention_groups", "q_groups"),
        "v_groups": ("attention_groups", "q_groups"),
        "output_groups": ("feed_forward_groups", "intermediate_groups"),
    }
    for key, (name, other) in equal.items():
        refuse(
            {key: values.get(key, 4)},
            where,
            key,
            (fields[name],),
            f"it must be {other} = {fields[name]}",
        )
    width = {"embedding_size": values.get("embedding_size", 768)}
    refuse(width, where, "embedding_size", (fields["hidden_size"],), "embeddings are as wide as the layers")
    return {}


def _render(config: EncoderConfig, architecture: str) -> dict[str, Any]:
    attention = dict.fromkeys(("k_groups", "v_groups"), config.attention_groups)
    return attention | {
        "post_attention_groups": 1,
        "output_groups": config.feed_forward_groups,
        "embedding_size": config.hidden_size,
    }


FAMILY = Family(
    name="squeezebert",
    model_type="squeezebert",
    make_keymap=make_keymap,
    architectures={
        "SqueezeBertForSequenceClassification": ("pooler", "sequence_classification"),
        "SqueezeBertForMultipleChoice": ("pooler", "multiple_choice"),
        "SqueezeBertForTokenClassification": ("token_classification",),
        "SqueezeBertForQuestionAnswering": ("question_answering",),
        "SqueezeBertForMaskedLM": ("mlm",),
        "SqueezeBertModel": (),
    },
    fields={
        **bert.ENCODER_FIELDS,
        "q_groups": ("attention_groups", 4, int),
        "intermediate_groups": ("feed_forward_groups", 4, int),
    },
    structure={"initializer": "normal"},
    constants={"tie_word_embeddings": True},
    unsupported=(
        *ABSOLUTE_POSITIONS,
        *ENCODER_ONLY,
        ("post_attention_groups", (1, None), "the layer after attention is dense"),
    ),
    zero_heads=("pooler",),
    extra_fields=_parse,
    extra_keys=_render,
    prefix="transformer.",
)
