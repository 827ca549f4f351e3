"""Gemma 1, 2 and 3, text only (transformers: models/gemma, gemma2, gemma3; arXiv:2403.08295, 2408.00118, 2503.19786).

They have Llama's tensors, norms that multiply by 1 + weight, and scaled word embeddings. Gemma 2 adds norms after the
blocks, local layers, and caps of scores; Gemma 3 norms of queries and keys, and a rotation of its own for local layers.
With `use_bidirectional_attention` Gemma 3 is the encoder of EmbeddingGemma (arXiv:2509.20354).
"""

from __future__ import annotations

import dataclasses
from typing import Any

from bertjax.config.model import EncoderConfig
from bertjax.errors import UserError
from bertjax.hf.keymap import KeyMap
from bertjax.hf.keymaps import llama
from bertjax.hf.keymaps.family import (
    ENCODER_ONLY,
    Activation,
    Family,
    Fields,
    change_defaults,
    norm,
    parse_fields,
    unbiased_scores,
)
from bertjax.hf.keymaps.rope_parameters import GLOBAL, LOCAL, parse_tables, render_tables

_LLAMA = llama.FAMILIES["llama"]
_WINDOW = 4096
_TANH_GELU = "gelu_pytorch_tanh"
_THETAS = {
    GLOBAL: ("global_rope_theta", "rope_theta", 1_000_000.0),
    LOCAL: ("local_rope_theta", "rope_local_base_freq", 10_000.0),
}
_CAPS = {"attn_logit_softcapping": ("attention_soft_cap", 50.0), "final_logit_softcapping": ("logit_soft_cap", 30.0)}
_BOTH_SIDES = "use_bidirectional_attention"
_KINDS = (GLOBAL, LOCAL)
_BIASES = {False: "none", True: "all"}
_CLASSIFIER = "Gemma3TextForSequenceClassification"


def make_keymap(config: EncoderConfig) -> KeyMap:
    """Returns the names of the parameters; Llama's name of the norm between the blocks is another norm in Gemma 2."""
    keymap = _without_head(llama.make_keymap(config), "question_answering")  # transformers has no such class
    if config.norm_placement != "sandwich":
        return keymap
    param, tensor, after = "encoder/layers/{L}", "model.layers.{L}", "post_attention_layernorm"
    entries = tuple(
        dataclasses.replace(entry, tensor=entry.tensor.replace(after, "pre_feedforward_layernorm"))
        for entry in keymap.entries
    )
    entries += norm(f"{param}/attention/output_norm", f"{tensor}.{after}", config)
    entries += norm(f"{param}/feed_forward/output_norm", f"{tensor}.post_feedforward_layernorm", config)
    return dataclasses.replace(keymap, entries=entries)


def _gemma3_keymap(config: EncoderConfig) -> KeyMap:
    """Leaves out the token classifier, for which `transformers` has no class of Gemma 3."""
    return _without_head(make_keymap(config), "token_classification")


def _without_head(keymap: KeyMap, head: str) -> KeyMap:
    return dataclasses.replace(keymap, entries=tuple(entry for entry in keymap.entries if entry.head != head))


def _sees_both_sides(values: dict[str, Any], where: str) -> bool:
    return bool(parse_fields(values, {_BOTH_SIDES: ("both", None, bool)}, where)["both"])


def _parse_gemma(values: dict[str, Any], fields: dict[str, Any], where: str) -> dict[str, Any]:
    """Returns what Llama has, too; the first files say gelu and mean its tanh form, as their config class knows."""
    parsed = _LLAMA.extra_fields(values, fields, where)
    if _sees_both_sides(values, where) and parsed["causal"]:
        raise UserError(
            f"{where}: {_BOTH_SIDES} = True needs is_causal = false as well: kernels of transformers obey either"
        )
    return parsed | ({"hidden_act": "gelu_new"} if values.get("hidden_act") == "gelu" else {})


def _parse_gemma2(values: dict[str, Any], fields: dict[str, Any], where: str) -> dict[str, Any]:
    parsed, window = _parse_gemma(values, fields, where), _parse_window(values, where)
    width = _causal_width(window) if parsed["causal"] else 2 * window
    return {
        **parsed,
        **parse_layers(values, fields["num_layers"], 2, width, where),
        **{name: default for key, (name, default) in _CAPS.items() if key not in values},
        "local_rope_theta": parsed["global_rope_theta"],
    }


def _parse_gemma3(values: dict[str, Any], fields: dict[str, Any], where: str) -> dict[str, Any]:
    """The window of a decoder counts the tokens up to a query, that of an encoder those on both sides of it."""
    both_sides, window = _sees_both_sides(values, where), _parse_window(values, where)
    if both_sides and (values.get("architectures") or [""])[0] == _CLASSIFIER:
        raise UserError(f"{where}: {_BOTH_SIDES} = True is not supported: the class scores the last token")
    period = parse_fields(values, {"sliding_window_pattern": ("period", 6, int)}, where)["period"]
    width = window if both_sides else _causal_width(window)
    return {
        **_LLAMA.extra_fields({}, fields, where),  # sizes of heads
        **parse_layers(values, fields["num_layers"], period, width, where),
        **_parse_rotations(values, fields, where),
        "attention_bias": _BIASES[parse_fields(values, {"attention_bias": ("biased", False, bool)}, where)["biased"]],
        "causal": not both_sides,
    }


def _parse_window(values: dict[str, Any], where: str) -> int:
    window: int = parse_fields(values, {"sliding_window": ("window", _WINDOW, int)}, where)["window"]
    if window < 1:
        raise UserError(f"{where}: sliding_window must be at least 1, not {window}")
    return window


def _causal_width(window: int) -> int:
    """Returns `local_attention` for a window of the query and those before it; 1 = the query alone."""
    return max(1, 2 * window - 2)


def parse_layers(values: dict[str, Any], num_layers: int, period: int, width: int, where: str) -> dict[str, Any]:
    """Returns the pattern of global layers; without `layer_types` the last layer of every period is one.

    Args:
        values: config.json.
        num_layers: number of layers.
        period: layers from one global layer to the next, where nothing else is said.
        width: `local_attention` of the other layers.
        where: the file to name in errors.

    Raises:
        UserError: the global layers are not every n-th one.
    """
    if period < 1:
        raise UserError(f"{where}: sliding_window_pattern must be at least 1, not {period}")
    types = values.get("layer_types")
    valid = types is None or (
        isinstance(types, list) and len(types) == num_layers and all(each in _KINDS for each in types)
    )
    if not valid:
        raise UserError(f"{where}: layer_types must name {GLOBAL} or {LOCAL} for each of {num_layers} layers")
    count = min(num_layers, period) if types is None else num_layers  # a file may state any number of layers
    usual = [LOCAL if (layer + 1) % period else GLOBAL for layer in range(count)]
    types = usual if types is None else types
    if LOCAL not in types:
        return {"local_attention": 0}
    first = period - 1
    if GLOBAL not in types:
        return {"local_attention": width, "global_attn_every_n_layers": 0}
    if types != usual:
        first, *others = (*(layer for layer, each in enumerate(types) if each == GLOBAL), num_layers)
        period = others[0] - first if len(others) > 1 else max(first + 1, num_layers - first)
        if first >= period or types != [_KINDS[(layer - first) % period > 0] for layer in range(num_layers)]:
            raise UserError(f"{where}: layer_types must have {GLOBAL} in every n-th layer, from one of the first n on")
    return {"local_attention": width, "global_attn_every_n_layers": period, "first_global_layer": first}


def _parse_rotations(values: dict[str, Any], fields: dict[str, Any], where: str) -> dict[str, Any]:
    """Returns bases and rescaling; the table of version 4 is that of the global layers."""
    tables = values.get("rope_parameters") or {}
    nested = isinstance(tables, dict) and all(isinstance(each, dict | None) for each in tables.values())
    if not nested or not tables.keys() <= _THETAS.keys():
        raise UserError(f"{where}: rope_parameters = {tables!r} must be tables for {GLOBAL} and {LOCAL}")
    scaling = values.get("rope_scaling") or {}
    if not isinstance(scaling, dict):
        raise UserError(f"{where}: rope_scaling must be a table, not {scaling!r}")
    tables = {**tables, GLOBAL: {**(tables.get(GLOBAL) or {}), **scaling}}
    parsed = parse_tables(tables, values, fields, where)
    for kind, (name, old, default) in _THETAS.items():
        table = tables.get(kind) or {}
        source, key = (table, "rope_theta") if "rope_theta" in table else (values, old)
        parsed |= parse_fields(source, {key: (name, default, float)}, where)
        if parsed[name] <= 0.0:
            raise UserError(f"{where}: {key} must be positive, not {parsed[name]}")
    return parsed


def _extra_keys(config: EncoderConfig, architecture: str, act: str = "hidden_act") -> dict[str, Any]:
    rendered = _LLAMA.extra_keys(config, architecture)
    del rendered["mlp_bias"]
    rendered |= {act: _TANH_GELU} if config.hidden_act == "gelu_new" else {}
    return rendered | ({} if config.causal else {_BOTH_SIDES: True})


def _render_gemma2(config: EncoderConfig, architecture: str) -> dict[str, Any]:
    width = config.local_attention // 2 + config.causal
    return {**_extra_keys(config, architecture, "hidden_activation"), **_render_layers(config, width)}


def _render_gemma3(config: EncoderConfig, architecture: str) -> dict[str, Any]:
    rendered = _extra_keys(dataclasses.replace(config, causal=True), architecture, "hidden_activation")
    thetas = {kind: getattr(config, name) for kind, (name, *_) in _THETAS.items()}
    return {
        **rendered,
        **_render_layers(config, config.local_attention // 2 + 1 if config.causal else config.local_attention),
        **{old: thetas[kind] for kind, (_, old, _) in _THETAS.items()},
        "rope_parameters": render_tables(config),
        _BOTH_SIDES: not config.causal,
    }


def _render_layers(config: EncoderConfig, width: int) -> dict[str, Any]:
    return {
        "layer_types": [_KINDS[config.is_local(layer)] for layer in range(config.num_layers)],
        "sliding_window": width if config.local_attention else _WINDOW,
        "query_pre_attn_scalar": config.attention_scale_size or config.head_dim,
    }


_STRUCTURE: dict[str, Any] = {**_LLAMA.structure, "embedding_scale": True, "norm_zero_centered": True}
_STRUCTURE2 = _STRUCTURE | {"norm_placement": "sandwich"}
_FIELDS = change_defaults(
    _LLAMA.fields,
    vocab_size=256000,
    hidden_size=3072,
    intermediate_size=24576,
    num_hidden_layers=28,
    num_attention_heads=16,
    num_key_value_heads=16,
    head_dim=256,
    hidden_act=_TANH_GELU,
    max_position_embeddings=8192,
    tie_word_embeddings=True,
    pad_token_id=0,
)
_FIELDS2: Fields = {
    **change_defaults(
        {key: field for key, field in _FIELDS.items() if key != "hidden_act"},
        hidden_size=2304,
        intermediate_size=9216,
        num_hidden_layers=26,
        num_attention_heads=8,
        num_key_value_heads=4,
    ),
    **{key: (name, None, float) for key, (name, _) in _CAPS.items()},
    "hidden_activation": ("hidden_act", _TANH_GELU, Activation),
    "query_pre_attn_scalar": ("attention_scale_size", 256, int),
}
_FIELDS3 = change_defaults(
    {key: field for key, field in _FIELDS2.items() if key != "attn_logit_softcapping"},
    vocab_size=262208,
    max_position_embeddings=131072,
)
_NO_BIAS = ("mlp_bias", (False, None), "feed-forward blocks have no biases")


def _relative(name: str, classes: str, **changes: Any) -> Family:
    """Returns a family with the classes of Llama."""
    return dataclasses.replace(
        _LLAMA,
        name=name,
        model_type=name,
        make_keymap=make_keymap,
        architectures={
            each.replace("Llama", classes): heads
            for each, heads in _LLAMA.architectures.items()
            if "question_answering" not in heads
        },
        last_token_classes={f"{classes}ForSequenceClassification": unbiased_scores},
        **changes,
    )


_FAMILIES = (
    _relative(
        "gemma",
        "Gemma",
        fields=_FIELDS,
        structure=_STRUCTURE,
        unsupported=(
            *_LLAMA.unsupported,
            _NO_BIAS,
            ("hidden_activation", (None, _TANH_GELU), "hidden_act counts"),
        ),
        extra_fields=_parse_gemma,
        extra_keys=_extra_keys,
    ),
    _relative(
        "gemma2",
        "Gemma2",
        fields=_FIELDS2,
        structure=_STRUCTURE2,
        unsupported=(*ENCODER_ONLY, _NO_BIAS),
        ignored_keys="cache_implementation hidden_act rope_theta",
        extra_fields=_parse_gemma2,
        extra_keys=_render_gemma2,
    ),
    dataclasses.replace(
        _relative(
            "gemma3_text",
            "Gemma3",
            fields=_FIELDS3,
            structure=_STRUCTURE2 | {"qk_norm": True},
            unsupported=(
                *ENCODER_ONLY,
                ("is_causal", (True,), f"{_BOTH_SIDES} says what a token sees"),
                ("attn_logit_softcapping", (None,), "transformers has no such cap in these classes"),
            ),
            ignored_keys="_sliding_window_pattern cache_implementation rope_local_base_freq rope_theta",
            extra_fields=_parse_gemma3,
            extra_keys=_render_gemma3,
        ),
        make_keymap=_gemma3_keymap,
        architectures={"Gemma3ForCausalLM": ("mlm",), "Gemma3TextModel": ()},
        last_token_classes={_CLASSIFIER: unbiased_scores},
    ),
)
FAMILIES = {family.name: family for family in _FAMILIES}
