"""MobileBERT (arXiv:2004.02984) under the names of transformers (models/mobilebert).

Narrow layers between projections, several feed-forward blocks in each, norms without statistics, and word embeddings
projected with their neighbors. Not: layer norms (two epsilons there), models without bottlenecks or trigrams. The
last token of a padded text reads the row of padding in `transformers`, as if the text were longer; zeros here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bertjax.config.model import EncoderConfig
from bertjax.hf.keymap import Entry, KeyMap
from bertjax.hf.keymaps import bert
from bertjax.hf.keymaps.family import (
    ABSOLUTE_POSITIONS,
    ENCODER_ONLY,
    Family,
    axis_sizes,
    change_defaults,
    linear,
    parse_fields,
    table,
)
from bertjax.hf.keymaps.family import norm as norm_entries
from bertjax.hf.safe_files import refuse

_SIZES = {"hidden_size": 512, "num_hidden_layers": 24, "num_attention_heads": 4, "intermediate_size": 512}
_FIELDS = {
    **change_defaults(bert.BERT_FIELDS, **_SIZES, hidden_act="relu", hidden_dropout_prob=0.0),
    "embedding_size": ("embedding_size", 128, int),
    "intra_bottleneck_size": ("bottleneck_size", 128, int),
    "use_bottleneck_attention": ("use_bottleneck_attention", False, bool),
    "num_feedforward_networks": ("num_feedforward_networks", 4, int),
}

_POOLER = ("pooler/dense", "mobilebert.pooler.dense")


def make_keymap(config: EncoderConfig) -> KeyMap:
    """Returns the names of the parameters; W: width inside a layer, X: of three words, Y: of the head's own table."""
    embeddings, theirs, predictions = "encoder/embeddings", "mobilebert.embeddings", "cls.predictions"
    return KeyMap(
        entries=(
            *table(f"{embeddings}/word_embeddings", f"{theirs}.word_embeddings", "V E"),
            *table(f"{embeddings}/position_embeddings", f"{theirs}.position_embeddings", "P D"),
            *table(f"{embeddings}/token_type_embeddings", f"{theirs}.token_type_embeddings", "T D"),
            *linear(f"{embeddings}/projection", f"{theirs}.embedding_transformation", "X D"),
            *norm_entries(f"{embeddings}/norm", f"{theirs}.LayerNorm", config),
            *_layer_entries(config),
            *(() if config.pooler_act == "none" else linear(*_POOLER, "D D", head="pooler")),
            *bert.prediction_entries(predictions, config, "D"),
            Entry("mlm_head/further_table", f"{predictions}.dense.weight", "V Y", "transpose", "mlm"),
            *linear("pair_head", "cls.seq_relationship", "D 2", head="pair"),
            *linear("sequence_head/output", "classifier", "D C", head="sequence_classification"),
            *bert.choice_entries("classifier"),
            *bert.token_head_entries(),
        ),
        sizes=axis_sizes(config)
        | {
            "W": config.layer_width,
            "X": config.embedding_dim * (config.embedding_ngram or 1),
            "Y": config.hidden_size - config.embedding_dim,
        },
        renames=((r"^(embeddings|encoder|pooler)\.", r"mobilebert.\1."),),  # MobileBertModel: no prefix
        ignored=bert.BUFFERS,
        ties={
            f"{predictions}.decoder.weight": f"{theirs}.word_embeddings.weight",
            f"{predictions}.decoder.bias": f"{predictions}.bias",
        },
        backbone=r"^(mobilebert|cls)\.",
    )


def _layer_entries(config: EncoderConfig) -> Iterator[Entry]:
    layer, theirs = "encoder/layers/{L}", "mobilebert.encoder.layer.{L}"

    def dense_and_norm(dense: str, norm: str, tensor: str, axes: str) -> Iterator[Entry]:
        yield from linear(f"{layer}/{dense}", f"{theirs}.{tensor}.dense", axes)
        yield from norm_entries(f"{layer}/{norm}", f"{theirs}.{tensor}.LayerNorm", config, axes[-1])

    values = "D A" if config.attention_bottleneck else "W A"
    for name, axes in {"query": "W A", "key": "W A", "value": values}.items():
        yield from linear(f"{layer}/attention/{name}", f"{theirs}.attention.self.{name}", axes)
    yield from dense_and_norm("attention/output", "attention/norm", "attention.output", "A W")
    ends = {"bottleneck": ("bottleneck.input", "D W"), "expansion": ("output.bottleneck", "W D")}
    ends |= {"attention/bottleneck": ("bottleneck.attention", "D W")} if config.attention_bottleneck else {}
    for name, (tensor, axes) in ends.items():
        yield from dense_and_norm(f"{name}/dense", f"{name}/norm", tensor, axes)
    last = config.num_feedforward_networks - 1
    for number in range(last + 1):
        block, tensor = f"feed_forward_{number}" if number else "feed_forward", f"ffn.{number}." * (number < last)
        yield from linear(f"{layer}/{block}/intermediate", f"{theirs}.{tensor}intermediate.dense", "W F")
        yield from dense_and_norm(f"{block}/output", f"{block}/norm", f"{tensor}output", "F W")


def _parse(values: dict[str, Any], fields: dict[str, Any], where: str) -> dict[str, Any]:
    shared = {"key_query_shared_bottleneck": values.get("key_query_shared_bottleneck", True)}
    narrow = fields["use_bottleneck_attention"]
    reason = f"with use_bottleneck_attention = {str(narrow).lower()} queries and keys "
    reason += "read no projection of their own" if narrow else "need the width of a bottleneck"
    refuse(shared, where, "key_query_shared_bottleneck", (not narrow,), reason)
    layer = parse_fields(values, {"classifier_activation": ("layer", True, bool)}, where)["layer"]
    return {"output_embedding_size": fields["hidden_size"], "pooler_act": "tanh" if layer else "none"}


def _render(config: EncoderConfig, architecture: str) -> dict[str, Any]:
    return {
        "key_query_shared_bottleneck": not config.use_bottleneck_attention,
        "classifier_activation": config.pooler_act != "none",
    }


FAMILY = Family(
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
        *ABSOLUTE_POSITIONS,
        *ENCODER_ONLY,
        ("trigram_input", (True,), "words are projected with their neighbors"),
        ("use_bottleneck", (True,), "layers have a bottleneck"),
        ("normalization_type", ("no_norm",), "layer norms have two epsilons there"),
    ),
    extra_fields=_parse,
    extra_keys=_render,
    ignored_keys="true_hidden_size",
    prefix="mobilebert.",
)
