"""MobileBERT (arXiv:2004.02984) under the names of transformers (models/mobilebert).

Narrow layers between projections, several feed-forward blocks in each, norms without statistics, and word embeddings
projected with their neighbors. Not: layer norms (two epsilons there), models without bottlenecks or trigrams. The
last token of a padded text reads the row of padding in `transformers`, as if the text were longer; zeros here.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any

from bertjax.config.model import EncoderConfig
from bertjax.hf.keymap import Entry, KeyMap
from bertjax.hf.keymaps import bert, family
from bertjax.hf.safe_files import refuse

_SIZES = {"hidden_size": 512, "num_hidden_layers": 24, "num_attention_heads": 4, "intermediate_size": 512}
_FIELDS: family.Fields = {
    **family.change_defaults(bert.BERT_FIELDS, **_SIZES, hidden_act="relu", hidden_dropout_prob=0.0),
    "embedding_size": ("embedding_size", 128, int),
    "intra_bottleneck_size": ("bottleneck_size", 128, int),
    "use_bottleneck_attention": ("use_bottleneck_attention", False, bool),
    "num_feedforward_networks": ("num_feedforward_networks", 4, int),
}
_POOLER = "classifier_activation"
_WIDER = {"word_embeddings": "V E", "position_embeddings": "P D", "token_type_embeddings": "T D"}


def make_keymap(config: EncoderConfig) -> KeyMap:
    """Returns the names of the parameters; W: width inside a layer, X: of three words, Y: of the head's own table."""
    keymap, embeddings, theirs = bert.make_keymap(config, "mobilebert"), "encoder/embeddings", "mobilebert.embeddings"
    tables = (family.table(f"{embeddings}/{name}", f"{theirs}.{name}", axes) for name, axes in _WIDER.items())
    heads = [entry for entry in keymap.entries if entry.head]
    return dataclasses.replace(
        keymap,
        entries=(
            *itertools.chain(*tables),
            *family.linear(f"{embeddings}/projection", f"{theirs}.embedding_transformation", "X D"),
            *family.norm(f"{embeddings}/norm", f"{theirs}.LayerNorm", config),
            *_layer_entries(config),
            *(entry for entry in heads if entry.head != "pooler" or config.pooler_act != "none"),
            Entry("mlm_head/further_table", "cls.predictions.dense.weight", "V Y", "transpose", "mlm"),
        ),
        sizes={
            **keymap.sizes,
            "W": config.layer_width,
            "X": config.embedding_dim * (config.embedding_ngram or 1),
            "Y": config.hidden_size - config.embedding_dim,
        },
    )


def _layer_entries(config: EncoderConfig) -> Iterator[Entry]:
    layer, theirs = "encoder/layers/{L}", "mobilebert.encoder.layer.{L}"
    dense = {f"attention/{name}": (f"attention.self.{name}", "W A") for name in ("query", "key", "value")}
    normed = {
        "attention/output": ("attention/norm", "attention.output", "A W"),
        "bottleneck/dense": ("bottleneck/norm", "bottleneck.input", "D W"),
        "expansion/dense": ("expansion/norm", "output.bottleneck", "W D"),
    }
    if config.attention_bottleneck:
        dense["attention/value"] = "attention.self.value", "D A"
        normed["attention/bottleneck/dense"] = "attention/bottleneck/norm", "bottleneck.attention", "D W"
    last = config.num_feedforward_networks - 1
    for number in range(last + 1):
        block, tensor = f"feed_forward_{number}" if number else "feed_forward", f"ffn.{number}." * (number < last)
        dense[f"{block}/intermediate"] = f"{tensor}intermediate.dense", "W F"
        normed[f"{block}/output"] = f"{block}/norm", f"{tensor}output", "F W"
    for name, (tensor, axes) in dense.items():
        yield from family.linear(f"{layer}/{name}", f"{theirs}.{tensor}", axes)
    for name, (norm, tensor, axes) in normed.items():
        yield from family.linear(f"{layer}/{name}", f"{theirs}.{tensor}.dense", axes)
        yield from family.norm(f"{layer}/{norm}", f"{theirs}.{tensor}.LayerNorm", config, axes[-1])


def _parse(values: dict[str, Any], fields: dict[str, Any], where: str) -> dict[str, Any]:
    narrow = fields["use_bottleneck_attention"]
    reason = f"use_bottleneck_attention = {str(narrow).lower()} needs the opposite"
    shared = {"key_query_shared_bottleneck": values.get("key_query_shared_bottleneck", True)}
    refuse(shared, where, "key_query_shared_bottleneck", (not narrow,), reason)
    layer = family.parse_fields(values, {_POOLER: (_POOLER, True, bool)}, where)[_POOLER]
    return {"output_embedding_size": fields["hidden_size"], "pooler_act": "tanh" if layer else "none"}


def _render(config: EncoderConfig, architecture: str) -> dict[str, Any]:
    shared = {"key_query_shared_bottleneck": not config.use_bottleneck_attention}
    return shared | {_POOLER: config.pooler_act != "none"}


FAMILY = family.Family(
    name="mobilebert",
    model_type="mobilebert",
    make_keymap=make_keymap,
    architectures={name.replace("Bert", "MobileBert", 1): heads for name, heads in bert.FAMILY.architectures.items()},
    fields=_FIELDS,
    structure={
        **{"embedding_ngram": 3, "embedding_norm": "after", "norm_type": "affine", "initializer": "normal"},
        **{"attention_output_dropout": 0.0, "feed_forward_dropout": 0.0},  # inside a bottleneck
    },
    constants={
        **{"tie_word_embeddings": True, "trigram_input": True, "use_bottleneck": True},
        "normalization_type": "no_norm",
    },
    unsupported=(
        *family.ABSOLUTE_POSITIONS,
        *family.ENCODER_ONLY,
        ("trigram_input", (True,), "words are projected with their neighbors"),
        ("use_bottleneck", (True,), "layers have a bottleneck"),
        ("normalization_type", ("no_norm",), "layer norms have two epsilons there"),
    ),
    extra_fields=_parse,
    extra_keys=_render,
    ignored_keys="true_hidden_size",
    prefix="mobilebert.",
)
