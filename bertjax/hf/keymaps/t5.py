"""Encoders and classifiers of T5, mT5 and UMT5 under Hugging Face's names (transformers: models/t5, mt5, umt5).

`T5EncoderModel` has the encoder of an encoder-decoder (`hf/encoder_decoder/t5.py`), with its word table. Layers share
one table of distances, which is among the tensors of the first; UMT5 (arXiv:2304.09151) has a table in every layer. The
classes for whole texts and for answers have the decoder as well, which reads the text itself, one token late.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from bertjax.config.encoder_decoder import EncoderDecoderConfig
from bertjax.config.model import EncoderConfig
from bertjax.errors import UserError
from bertjax.hf.encoder_decoder.family import (
    joint_axis_sizes,
    network_entries,
    parse_start,
    render_start,
    require_decoder,
    single_keymap,
)
from bertjax.hf.keymap import Entry, KeyMap
from bertjax.hf.keymaps.bert import classifier_entries, token_head_entries
from bertjax.hf.keymaps.family import (
    ACTIVATIONS,
    ENCODER_ONLY,
    Family,
    Fields,
    axis_sizes,
    change_defaults,
    linear,
    norm,
    parse_fields,
    render_fields,
    table,
)
from bertjax.hf.safe_files import refuse

FIELDS: Fields = {
    "vocab_size": ("vocab_size", 32128, int),
    "d_model": ("hidden_size", 512, int),
    "d_kv": ("head_size", 64, int),
    "d_ff": ("intermediate_size", 2048, int),
    "num_heads": ("num_heads", 8, int),
    "num_layers": ("num_layers", 6, int),
    "relative_attention_num_buckets": ("relative_attention_num_buckets", 32, int),
    "relative_attention_max_distance": ("relative_attention_max_distance", 128, int),
    "layer_norm_epsilon": ("layer_norm_eps", 1e-6, float),
    "dropout_rate": ("hidden_dropout", 0.1, float),
    "pad_token_id": ("pad_token_id", 0, int),
}
MT5_FIELDS = change_defaults(FIELDS, vocab_size=250112, d_ff=1024, num_layers=8, num_heads=6)
STRUCTURE: dict[str, Any] = {
    "position_embedding": "none",
    "type_vocab_size": 0,
    "embedding_norm": "none",
    "attention_position": "relative_bias",
    "attention_bias": "none",
    "attention_scale": False,
    "feed_forward_bias": False,
    "norm_placement": "pre",
    "norm_type": "rms_norm",
    "norm_bias": False,
    "decoder_start": "pad",
}
# Sizes of the decoder, ids of its tokens, the initial draw; nothing reads the rest.
INERT = """
classifier_dropout decoder_start_token_id initializer_factor is_encoder_decoder n_positions num_decoder_layers
output_past scale_decoder_outputs
"""
_PREFIX, _BACKBONE = "transformer.", r"transformer\.(shared|encoder|decoder)\."
_DECODER: Fields = {
    "eos_token_id": ("eos_token_id", 1, int),
    "num_decoder_layers": ("decoder_layers", None, int),
}
_DROPOUTS = ("attention_dropout", "activation_dropout", "output_dropout")
_HEAD_DROPOUT: Fields = {"classifier_dropout": ("classifier_dropout", 0.0, float)}


def parse_stack(values: dict[str, Any], fields: dict[str, Any], where: str, projection: str) -> dict[str, Any]:
    """Returns the feed-forward block and the dropout of a stack of layers, which follow from keys of config.json.

    Args:
        values: config.json.
        fields: what was parsed of it.
        where: the file to name in errors.
        projection: default of `feed_forward_proj`.
    """
    key = "feed_forward_proj"
    projection = values.get(key, projection)
    gate, _, name = projection.rpartition("-") if isinstance(projection, str) else ("", "", "")
    refuse({key: name}, where, key, tuple(ACTIVATIONS), f"it is {projection!r}")
    if gate not in ("", "gated"):
        raise UserError(f"{where}: {key} = {projection!r} is not supported: gated-gelu and the like are")
    name = "gelu_new" if projection == "gated-gelu" else name
    for copy, value in (("dense_act_fn", name), ("is_gated_act", bool(gate))):
        refuse(values, where, copy, (value,), f"{key} = {projection!r} says otherwise")
    return {
        "feed_forward": "glu" if gate else "dense",
        "hidden_act": ACTIVATIONS[name],
        **dict.fromkeys(_DROPOUTS, fields["hidden_dropout"]),
    }


def render_projection(config: EncoderConfig) -> str:
    """Returns `feed_forward_proj`, where gated-gelu is the tanh formula."""
    if config.feed_forward == "dense":
        return config.hidden_act
    return "gated-" + {"gelu_new": "gelu", "gelu": "gelu_python"}.get(config.hidden_act, config.hidden_act)


def stack_entries(config: EncoderConfig, network: str) -> tuple[Entry, ...]:
    """Returns the entries of all layers, and of the norm after them; U: buckets of distances, Q: width of the encoder.

    Args:
        config: the stack; a causal one is a decoder.
        network: what the names begin with.
    """
    param, block = "encoder/layers/{L}", f"{network}.block.{{L}}.layer"
    last, biases = (2 if config.causal else 1), "SelfAttention.relative_attention_bias"
    dense, names = f"{block}.{last}.DenseReluDense", {"gate": "wi_0", "intermediate": "wi_1"}
    entries = [*_attention(f"{param}/attention", f"{block}.0", "SelfAttention", config, "D")]
    if config.relative_attention_shared:
        entries += table("encoder/relative_attention_bias", f"{network}.block.0.layer.0.{biases}", "U N")
    else:
        entries += table(f"{param}/attention/relative_attention_bias", f"{block}.0.{biases}", "U N")
    if config.causal:
        entries += _attention(f"{param}/cross_attention", f"{block}.1", "EncDecAttention", config, "Q")
    for part, name in (names if config.feed_forward == "glu" else {"intermediate": "wi"}).items():
        entries += linear(f"{param}/feed_forward/{part}", f"{dense}.{name}", "D F", bias=False)
    entries += linear(f"{param}/feed_forward/output", f"{dense}.wo", "F D", bias=False)
    entries += norm(f"{param}/feed_forward/norm", f"{block}.{last}.layer_norm", config)
    return (*entries, *norm("encoder/norm", f"{network}.final_layer_norm", config))


def _attention(param: str, block: str, name: str, config: EncoderConfig, source: str) -> tuple[Entry, ...]:
    tensor = f"{block}.{name}"
    return (
        *linear(f"{param}/query", f"{tensor}.q", "D A", bias=False),
        *linear(f"{param}/key", f"{tensor}.k", f"{source} A", bias=False),
        *linear(f"{param}/value", f"{tensor}.v", f"{source} A", bias=False),
        *linear(f"{param}/output", f"{tensor}.o", "A D", bias=False),
        *norm(f"{param}/norm", f"{block}.layer_norm", config),
    )


def joint_keymap(config: EncoderDecoderConfig) -> KeyMap:
    """Returns the names of the parameters of encoder and decoder; the bias of distances is in the first layer."""
    output = () if config.decoder.tie_word_embeddings else (Entry("mlm_head/table", "lm_head.weight", "V D"),)
    word_table = table("encoder/embeddings/word_embeddings", "shared", "V D")
    copies = {f"{network}.embed_tokens.weight": "shared.weight" for network in ("encoder", "decoder")}
    return KeyMap(
        entries=(
            *network_entries((*word_table, *stack_entries(config.encoder, "encoder")), "encoder"),
            *network_entries((*stack_entries(config.decoder, "decoder"), *output), "decoder"),
        ),
        sizes=joint_axis_sizes(config),
        ignored=(r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight$",),
        ties=copies | ({"lm_head.weight": "shared.weight"} if config.decoder.tie_word_embeddings else {}),
    )


def make_keymap(config: EncoderConfig) -> KeyMap:
    """Returns the names of the parameters; those of a decoder that a file of an encoder also holds are foreign."""
    tokens, answers = token_head_entries()[:2], token_head_entries()[2:]
    if config.decoder_layers is not None:
        heads = (*classifier_entries("classification_head.dense", "classification_head.out_proj"), *answers)
        keymap = single_keymap(joint_keymap, config, heads, rf"^{_BACKBONE}", _PREFIX)
        return dataclasses.replace(keymap, renames=((r"^(shared|encoder|decoder)\.", rf"{_PREFIX}\1."),))
    word_table = "transformer.shared"
    return KeyMap(
        entries=(
            *table("encoder/embeddings/word_embeddings", word_table, "V D"),
            *stack_entries(config, "transformer.encoder"),
            *tokens,
        ),
        sizes={**axis_sizes(config), "U": config.relative_attention_num_buckets},
        renames=((r"^(shared|encoder)\.", r"transformer.\1."),),  # T5EncoderModel
        ties={"transformer.encoder.embed_tokens.weight": f"{word_table}.weight"},
        backbone=r"^transformer\.(shared|encoder)\.",
    )


def _extra_fields(
    values: dict[str, Any], parsed: dict[str, Any], where: str, projection: str, decoder_classes: tuple[str, ...]
) -> dict[str, Any]:
    fields = parse_stack(values, parsed, where, projection)
    if (values.get("architectures") or [""])[0] not in decoder_classes:
        return fields
    decoder = parse_fields(values, _DECODER, where)
    require_decoder(values, parsed | decoder, where)
    if decoder["decoder_layers"] is None:
        if "num_hidden_layers" in values:  # transformers has another default then
            raise UserError(f"{where}: num_decoder_layers must be a number where num_hidden_layers is one")
        decoder["decoder_layers"] = parsed["num_layers"]
    start = parse_start(values, parsed | decoder, where)
    return {**fields, **decoder, "decoder_start": start, "pooling": "eos", "classifier_dense": "own"}


def _extra_keys(config: EncoderConfig, architecture: str) -> dict[str, Any]:
    keys = {"d_kv": config.head_dim, "feed_forward_proj": render_projection(config)}
    if config.decoder_layers is None:
        return keys
    return {**keys, **render_fields(config, _DECODER), **render_start(config)}


def _family(name: str, classes: str, fields: Fields, projection: str, **structure: Any) -> Family:
    sequences, answers = f"{classes}ForSequenceClassification", f"{classes}ForQuestionAnswering"
    return Family(
        name=name,
        model_type=name,
        make_keymap=make_keymap,
        architectures={
            sequences: ("sequence_classification",),
            answers: ("question_answering",),
            f"{classes}ForTokenClassification": ("token_classification",),
            f"{classes}EncoderModel": (),
        },
        decoder_classes=(sequences, answers),
        prefixes={answers: ""},
        fields={**fields, **_HEAD_DROPOUT},
        structure={**STRUCTURE, "mlm_head": "bias", "pooling": "mean", "classifier_dense": "none", **structure},
        unsupported=tuple(refusal for refusal in ENCODER_ONLY if refusal[0] != "is_encoder_decoder"),
        aliases={
            "hidden_size": "d_model",
            "num_attention_heads": "num_heads",
            "num_hidden_layers": "num_layers",
            "head_dim": "d_kv",
        },
        ignored_keys=INERT,
        extra_fields=lambda values, parsed, where: _extra_fields(
            values, parsed, where, projection, (sequences, answers)
        ),
        extra_keys=_extra_keys,
        prefix=_PREFIX,
    )


FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        _family("t5", "T5", FIELDS, "relu"),
        _family("mt5", "MT5", MT5_FIELDS, "gated-gelu"),
        _family("umt5", "UMT5", MT5_FIELDS, "gated-gelu", relative_attention_shared=False),
    )
}
