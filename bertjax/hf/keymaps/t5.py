"""Encoders of T5, mT5 and UMT5 under Hugging Face's names (transformers: models/t5, models/mt5, models/umt5).

`T5EncoderModel` has the encoder of an encoder-decoder (`hf/encoder_decoder/t5.py`), with its word table. Layers share
one table of distances, which is among the tensors of the first; UMT5 (arXiv:2304.09151) has a table in every layer.
"""

from __future__ import annotations

from typing import Any

from bertjax.config.model import EncoderConfig
from bertjax.errors import UserError
from bertjax.hf.keymap import Entry, KeyMap
from bertjax.hf.keymaps.bert import token_head_entries
from bertjax.hf.keymaps.family import (
    ACTIVATIONS,
    ENCODER_ONLY,
    Family,
    Fields,
    axis_sizes,
    change_defaults,
    linear,
    norm,
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
}
# Sizes of the decoder, ids of its tokens, the initial draw; nothing reads the rest.
INERT = """
classifier_dropout decoder_start_token_id initializer_factor is_encoder_decoder n_positions num_decoder_layers
output_past scale_decoder_outputs
"""
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


def make_keymap(config: EncoderConfig) -> KeyMap:
    """Returns the names of the parameters of an encoder; those of a decoder that a file also holds are foreign."""
    word_table = "transformer.shared"
    return KeyMap(
        entries=(
            *table("encoder/embeddings/word_embeddings", word_table, "V D"),
            *stack_entries(config, "transformer.encoder"),
            *(entry for entry in token_head_entries() if entry.head == "token_classification"),
        ),
        sizes={**axis_sizes(config), "U": config.relative_attention_num_buckets},
        renames=((r"^(shared|encoder)\.", r"transformer.\1."),),  # T5EncoderModel
        ties={"transformer.encoder.embed_tokens.weight": f"{word_table}.weight"},
        backbone=r"^transformer\.(shared|encoder)\.",
    )


def _extra_keys(config: EncoderConfig, architecture: str) -> dict[str, Any]:
    return {"d_kv": config.head_dim, "feed_forward_proj": render_projection(config)}


def _family(name: str, classes: str, fields: Fields, projection: str, **structure: Any) -> Family:
    return Family(
        name=name,
        model_type=name,
        make_keymap=make_keymap,
        architectures={f"{classes}ForTokenClassification": ("token_classification",), f"{classes}EncoderModel": ()},
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
        extra_fields=lambda values, parsed, where: parse_stack(values, parsed, where, projection),
        extra_keys=_extra_keys,
        prefix="transformer.",
    )


FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        _family("t5", "T5", FIELDS, "relu"),
        _family("mt5", "MT5", MT5_FIELDS, "gated-gelu"),
        _family("umt5", "UMT5", MT5_FIELDS, "gated-gelu", relative_attention_shared=False),
    )
}
