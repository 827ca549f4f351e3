"""T5 and mT5 under Hugging Face's names (transformers: models/t5/modeling_t5.py, models/mt5), v1.0 and v1.1.

In v1.1 hidden states are scored as they are, and against a table of their own. `transformers` 5 writes
`tie_word_embeddings` = true for both versions, and tells them apart by `scale_decoder_outputs`.
mT5 (arXiv:2010.11934) is v1.1.
"""

from __future__ import annotations

import dataclasses

from bertjax.config.encoder_decoder import EncoderDecoderConfig, as_decoder
from bertjax.config.model import EncoderConfig
from bertjax.config.presets import preset
from bertjax.errors import UserError
from bertjax.hf.encoder_decoder.family import EncoderDecoderFamily, Values, joint_axis_sizes, network_entries
from bertjax.hf.json_keys import JsonKeys, refuse
from bertjax.hf.keymap import Entry, KeyMap
from bertjax.hf.keymaps.family import (
    ACTIVATIONS,
    Fields,
    change_defaults,
    linear,
    norm,
    parse_fields,
    render_fields,
    table,
)

_FIELDS: Fields = {
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
_STRUCTURE = {
    name: value for name, value in preset("t5-small").items() if name not in {field for field, _, _ in _FIELDS.values()}
}


_MT5_FIELDS = change_defaults(_FIELDS, vocab_size=250112, d_ff=1024, num_layers=8, num_heads=6)


def _parse(values: JsonKeys, where: str, shared: Fields = _FIELDS) -> EncoderDecoderConfig:
    projection = values.get("feed_forward_proj", "relu" if shared is _FIELDS else "gated-gelu")
    gate, _, act = projection.rpartition("-") if isinstance(projection, str) else ("", "", "")
    refuse({"feed_forward_proj": act}, where, "feed_forward_proj", tuple(ACTIVATIONS), f"it is {projection!r}")
    if gate not in ("", "gated"):
        raise UserError(f"{where}: feed_forward_proj = {projection!r} is not supported: gated-gelu and the like are")
    fields = parse_fields(values, shared, where)
    scaled = values.get("scale_decoder_outputs", values.get("tie_word_embeddings", True) is not False) is True
    scaled = scaled and shared is _FIELDS
    common = _STRUCTURE | fields
    common |= {
        "feed_forward": "glu" if gate else "dense",
        "hidden_act": "gelu_new" if projection == "gated-gelu" else ACTIVATIONS[act],
        "scale_logits": scaled,
        "tie_word_embeddings": scaled,
    }
    common |= dict.fromkeys(("attention_dropout", "activation_dropout", "output_dropout"), fields["hidden_dropout"])
    encoder, depth = EncoderConfig(**common), values.get("num_decoder_layers")
    depth = fields["num_layers"] if depth is None else depth
    return EncoderDecoderConfig(encoder, as_decoder(encoder, encoder, num_layers=depth))


def _render(config: EncoderDecoderConfig) -> Values:
    act = {"gelu_new": "gelu_new", "gelu": "gelu", "relu": "relu", "silu": "silu"}[config.encoder.hidden_act]
    gated = config.encoder.feed_forward == "glu"
    projection = ("gated-" + act.replace("gelu_new", "gelu")) if gated else act
    return {
        **render_fields(config.encoder, _FIELDS),
        "num_decoder_layers": config.decoder.num_layers,
        "feed_forward_proj": projection,
        "tie_word_embeddings": config.decoder.scale_logits,
    }


def make_keymap(config: EncoderDecoderConfig) -> KeyMap:
    """Returns the names of the parameters; the bias of distances is in the first layer."""
    output = () if config.decoder.tie_word_embeddings else (Entry("mlm_head/table", "lm_head.weight", "V D"),)
    word_table = table("encoder/embeddings/word_embeddings", "shared", "V D")
    copies = {f"{network}.embed_tokens.weight": "shared.weight" for network in ("encoder", "decoder")}
    return KeyMap(
        entries=(
            *network_entries((*word_table, *_entries(config.encoder, "encoder")), "encoder"),
            *network_entries((*_entries(config.decoder, "decoder"), *output), "decoder"),
        ),
        sizes=joint_axis_sizes(config),
        ignored=(r"^decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight$",),
        ties=copies | ({"lm_head.weight": "shared.weight"} if config.decoder.tie_word_embeddings else {}),
    )


def _entries(config: EncoderConfig, network: str) -> tuple[Entry, ...]:
    param, block = "encoder/layers/{L}", f"{network}.block.{{L}}.layer"
    first = f"{network}.block.0.layer.0.SelfAttention.relative_attention_bias"
    last = 2 if config.causal else 1
    dense, names = f"{block}.{last}.DenseReluDense", {"gate": "wi_0", "intermediate": "wi_1"}
    names = names if config.feed_forward == "glu" else {"intermediate": "wi"}
    return (
        *table("encoder/relative_attention_bias", first, "U N"),
        *_attention(f"{param}/attention", f"{block}.0.SelfAttention", f"{block}.0", config, "D"),
        *(
            _attention(f"{param}/cross_attention", f"{block}.1.EncDecAttention", f"{block}.1", config, "Q")
            if config.causal
            else ()
        ),
        *(
            entry
            for part, name in names.items()
            for entry in linear(f"{param}/feed_forward/{part}", f"{dense}.{name}", "D F", bias=False)
        ),
        *linear(f"{param}/feed_forward/output", f"{dense}.wo", "F D", bias=False),
        *norm(f"{param}/feed_forward/norm", f"{block}.{last}.layer_norm", config),
        *norm("encoder/norm", f"{network}.final_layer_norm", config),
    )


def _attention(param: str, tensor: str, block: str, config: EncoderConfig, source: str) -> tuple[Entry, ...]:
    return (
        *linear(f"{param}/query", f"{tensor}.q", "D A", bias=False),
        *linear(f"{param}/key", f"{tensor}.k", f"{source} A", bias=False),
        *linear(f"{param}/value", f"{tensor}.v", f"{source} A", bias=False),
        *linear(f"{param}/output", f"{tensor}.o", "A D", bias=False),
        *norm(f"{param}/norm", f"{block}.layer_norm", config),
    )


T5 = EncoderDecoderFamily(
    name="t5",
    architecture="T5ForConditionalGeneration",
    parse=_parse,
    render=_render,
    make_keymap=make_keymap,
    ignored_keys="classifier_dropout initializer_factor n_positions output_past dense_act_fn is_gated_act",
    objective="span_corruption",
)
MT5 = dataclasses.replace(
    T5,
    name="mt5",
    architecture="MT5ForConditionalGeneration",
    parse=lambda values, where: _parse(values, where, _MT5_FIELDS),
)
