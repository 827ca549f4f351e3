"""Llama under Hugging Face's names, and families with these names: Mistral, Qwen 2 and 3, EuroBERT.

All but EuroBERT are decoders. `is_causal` in config.json says whether a token sees those after it: transformers 5 obeys
it, so that a decoder that was trained as an encoder (arXiv:2404.05961) is one there, too; older versions ignore it.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from bertjax.config.model import EncoderConfig
from bertjax.errors import UserError
from bertjax.hf.keymap import Entry, KeyMap
from bertjax.hf.keymaps.bert import classifier_entries
from bertjax.hf.keymaps.family import (
    ENCODER_ONLY,
    Activation,
    Family,
    Fields,
    axis_sizes,
    change_defaults,
    linear,
    norm,
    parse_fields,
    table,
    unbiased_scores,
)
from bertjax.hf.keymaps.rope_parameters import parse_rope, render_length, render_rope, render_table
from bertjax.hf.safe_files import refuse

_FIELDS: Fields = {
    "vocab_size": ("vocab_size", 32000, int),
    "hidden_size": ("hidden_size", 4096, int),
    "intermediate_size": ("intermediate_size", 11008, int),
    "num_hidden_layers": ("num_layers", 32, int),
    "num_attention_heads": ("num_heads", 32, int),
    "num_key_value_heads": ("num_key_value_heads", None, int),
    "head_dim": ("head_size", None, int),
    "hidden_act": ("hidden_act", "silu", Activation),
    "max_position_embeddings": ("max_position_embeddings", 2048, int),
    "rms_norm_eps": ("layer_norm_eps", 1e-6, float),
    "tie_word_embeddings": ("tie_word_embeddings", False, bool),
    "attention_dropout": ("attention_dropout", 0.0, float),
    "initializer_range": ("initializer_range", 0.02, float),
    "pad_token_id": ("pad_token_id", None, int),
}
_BIASES: Fields = {"attention_bias": ("bias", False, bool)}
_MLP_BIAS: Fields = {"mlp_bias": ("feed_forward_bias", False, bool)}
_CAUSAL: Fields = {"is_causal": ("causal", True, bool)}
_WINDOW: Fields = {"sliding_window": ("window", None, int)}
_HEAD_DROPOUT: Fields = {"classifier_dropout": ("classifier_dropout", 0.1, float)}
_QWEN_SIZES = {"vocab_size": 151936, "intermediate_size": 22016, "num_key_value_heads": 32}
_QWEN_FIELDS: Fields = change_defaults(_FIELDS, **_QWEN_SIZES, max_position_embeddings=32768)
_POOLING = {"bos": "first", "mean": "mean", "late": "late"}
_GLOBAL = ("sliding_window", (None,), "every layer is global")
_ATTENTION = {"query": ("q_proj", "D A"), "key": ("k_proj", "D B"), "value": ("v_proj", "D B")}
_FEED_FORWARD = {"gate": ("gate_proj", "D F"), "intermediate": ("up_proj", "D F"), "output": ("down_proj", "F D")}


def make_keymap(config: EncoderConfig) -> KeyMap:
    """Returns the names of the parameters; the token classifier is called `score` by all but EuroBERT."""
    param, tensor = "encoder/layers/{L}", "model.layers.{L}"
    attention, bias = f"{param}/attention", config.attention_bias
    entries = [*table("encoder/embeddings/word_embeddings", "model.embed_tokens", "V D")]
    for name, (theirs, axes) in _ATTENTION.items():
        entries += linear(f"{attention}/{name}", f"{tensor}.self_attn.{theirs}", axes, bias != "none")
    entries += linear(f"{attention}/output", f"{tensor}.self_attn.o_proj", "A D", bias == "all")
    if config.qk_norm:
        entries += norm(f"{attention}/query_norm", f"{tensor}.self_attn.q_norm", config, "H")
        entries += norm(f"{attention}/key_norm", f"{tensor}.self_attn.k_norm", config, "H")
    for name, (theirs, axes) in _FEED_FORWARD.items():
        entries += linear(f"{param}/feed_forward/{name}", f"{tensor}.mlp.{theirs}", axes, config.feed_forward_bias)
    entries += norm(f"{attention}/norm", f"{tensor}.input_layernorm", config)
    entries += norm(f"{param}/feed_forward/norm", f"{tensor}.post_attention_layernorm", config)
    entries += norm("encoder/norm", "model.norm", config)
    return KeyMap(
        entries=(*entries, *_head_entries(config)),
        sizes=axis_sizes(config),
        renames=((r"^(embed_tokens|layers|norm)\.", r"model.\1."),),  # files of the bare model
        ignored=(r"rotary_emb\.inv_freq$",),
        ties={"lm_head.weight": "model.embed_tokens.weight"} if config.tie_word_embeddings else {},
        backbone=r"^(model|lm_head)\.",
    )


def _head_entries(config: EncoderConfig) -> list[Entry]:
    entries = [] if config.tie_word_embeddings else [Entry("mlm_head/table", "lm_head.weight", "V D", head="mlm")]
    if config.mlm_bias:
        entries.append(Entry("mlm_head/bias", "lm_head.bias", "V", head="mlm"))
    if config.classifier_dense == "own":  # EuroBERT
        of_tokens = linear("token_head/output", "classifier", "D C", head="token_classification")
        return [*entries, *classifier_entries("dense", "classifier"), *of_tokens]
    entries += linear("token_head/output", "score", "D C", head="token_classification")
    return [*entries, *linear("answer_head/output", "qa_outputs", "D 2", head="question_answering")]


def _extra_fields(values: dict[str, Any], fields: dict[str, Any], where: str) -> dict[str, Any]:
    """Returns what all decoders have; one that sees only what precedes sums up a text in its last token."""
    parsed = parse_fields(values, {**_CAUSAL, **_HEAD_DROPOUT}, where)
    summary = {"pooling": "last", "classifier_bias": False} if parsed["causal"] else {}
    return {**_parse_shared(values, fields, where), **parsed, **summary}


def _parse_shared(values: dict[str, Any], fields: dict[str, Any], where: str) -> dict[str, Any]:
    """Returns the theta, and sizes of heads as None where they are what None stands for."""
    heads, head_size, shared = fields["num_heads"], fields["head_size"], fields["num_key_value_heads"]
    plain = head_size is not None and head_size * heads == fields["hidden_size"]
    return {
        **parse_rope(values, fields, where, 10_000.0),
        "head_size": None if plain else head_size,
        "num_key_value_heads": None if shared == heads else shared,
    }


def _parse_llama(values: dict[str, Any], fields: dict[str, Any], where: str) -> dict[str, Any]:
    return {**_extra_fields(values, fields, where), **_parse_biases(values, fields, where)}


def _parse_eurobert(values: dict[str, Any], fields: dict[str, Any], where: str) -> dict[str, Any]:
    biases = _parse_biases(values, fields, where)
    return {
        **_parse_shared(values, fields, where),
        **biases,
        "mlm_bias": biases["feed_forward_bias"],
        "pooling": _POOLING[values.get("classifier_pooling", "late")],
    }


def _parse_biases(values: dict[str, Any], fields: dict[str, Any], where: str) -> dict[str, Any]:
    width, heads = fields["hidden_size"], fields["num_heads"]
    if heads < 1 or width % heads:
        raise UserError(f"{where}: hidden_size {width} is not a multiple of num_attention_heads {heads}")
    attention_bias = "all" if parse_fields(values, _BIASES, where)["bias"] else "none"
    return {"attention_bias": attention_bias, **parse_fields(values, _MLP_BIAS, where)}


def _extra_keys(config: EncoderConfig, architecture: str) -> dict[str, Any]:
    """Writes the rotation for versions 4 and 5 of transformers."""
    rescaled = {} if config.rope_type == "default" else {"rope_scaling": render_table(config)}
    dropout = {"classifier_dropout": config.rate("classifier_dropout")}
    return {
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "rope_theta": config.global_rope_theta,
        "rope_parameters": render_rope(config),
        **rescaled,
        **render_length(config),
        **({} if config.causal else {"is_causal": False}),
        **(dropout if architecture.endswith("ForTokenClassification") else {}),
    }


def _render_llama(config: EncoderConfig, architecture: str) -> dict[str, Any]:
    biases = {"attention_bias": config.attention_bias == "all", "mlp_bias": config.feed_forward_bias}
    return _extra_keys(config, architecture) | biases


def _render_eurobert(config: EncoderConfig, architecture: str) -> dict[str, Any]:
    pooling = {ours: theirs for theirs, ours in _POOLING.items()}[config.pooling]
    rendered = _render_llama(config, architecture)
    rendered.pop("classifier_dropout", None)
    rendered.pop("is_causal", None)
    return rendered | {"classifier_pooling": pooling}


def _parse_mistral(values: dict[str, Any], fields: dict[str, Any], where: str) -> dict[str, Any]:
    """Every layer has the window: the token and those before it, or, in an encoder, so many tokens on either side."""
    parsed = _extra_fields(values, fields, where)
    window = parse_fields({"sliding_window": 4096} | values, _WINDOW, where)["window"]
    if window is None:
        return parsed
    if window < 2:
        raise UserError(f"{where}: sliding_window must be at least 2, not {window}: tokens would see themselves alone")
    local = 2 * (window - 1 if parsed["causal"] else window)
    theta = {"local_rope_theta": parsed["global_rope_theta"]}
    return parsed | theta | {"local_attention": local, "global_attn_every_n_layers": 0}


def _render_mistral(config: EncoderConfig, architecture: str) -> dict[str, Any]:
    all_local = all(config.is_local(layer) for layer in range(config.num_layers))
    window = config.local_attention // 2 + config.causal if all_local else None
    return {**_extra_keys(config, architecture), "sliding_window": window}


def _parse_qwen(values: dict[str, Any], fields: dict[str, Any], where: str) -> dict[str, Any]:
    types = values.get("layer_types")
    if types is not None and types != ["full_attention"] * fields["num_layers"]:
        raise UserError(f"{where}: layer_types = {types!r} is not supported: every layer is global")
    refuse(values if values.get("head_dim", 0) is None else {}, where, "head_dim", (), "a number is needed")
    return _extra_fields(values, fields, where)


def _parse_qwen3(values: dict[str, Any], fields: dict[str, Any], where: str) -> dict[str, Any]:
    biased = parse_fields(values, _BIASES, where)["bias"]
    return {**_parse_qwen(values, fields, where), "attention_bias": "all" if biased else "none"}


_STRUCTURE: dict[str, Any] = {
    "position_embedding": "none",
    "type_vocab_size": 0,
    "embedding_norm": "none",
    "attention_position": "rotary",
    "attention_bias": "none",
    "feed_forward": "glu",
    "feed_forward_bias": False,
    "norm_placement": "pre",
    "norm_type": "rms_norm",
    "norm_bias": False,
    "hidden_dropout": 0.0,
    "initializer": "normal",
    "mlm_head": "bias",
    "mlm_bias": False,
    "pooling": "mean",
    "classifier_dense": "none",
}
_CONSTANTS: dict[str, Any] = {"bos_token_id": None, "eos_token_id": None, "use_cache": True}  # ids are not known here
_LLAMA = Family(
    name="llama",
    model_type="llama",
    make_keymap=make_keymap,
    architectures={
        "LlamaForCausalLM": ("mlm",),
        "LlamaForTokenClassification": ("token_classification",),
        "LlamaForQuestionAnswering": ("question_answering",),
        "LlamaModel": (),
    },
    fields=_FIELDS,
    structure=_STRUCTURE,
    constants=_CONSTANTS,
    unsupported=(*ENCODER_ONLY, _GLOBAL),
    ignored_keys="mask_token_id max_window_layers pretraining_tp rope_theta sliding_window use_sliding_window",
    extra_fields=_parse_llama,
    extra_keys=_render_llama,
    prefix="model.",
    last_token_classes={"LlamaForSequenceClassification": unbiased_scores},
    prefixes={"LlamaForQuestionAnswering": "transformer."},
)


def _relative(name: str, classes: str, **changes: Any) -> Family:
    """Returns a family with Llama's names."""
    architectures = {each.replace("Llama", classes): heads for each, heads in _LLAMA.architectures.items()}
    scored = {each.replace("Llama", classes): entries for each, entries in _LLAMA.last_token_classes.items()}
    defaults: dict[str, Any] = {
        "extra_fields": _extra_fields,
        "extra_keys": _extra_keys,
        "architectures": architectures,
        "last_token_classes": scored,
        "prefixes": {each.replace("Llama", classes): prefix for each, prefix in _LLAMA.prefixes.items()},
    }
    return dataclasses.replace(_LLAMA, name=name, model_type=name, **(defaults | changes))


_SLIDING = (("use_sliding_window", (False, None), "every layer is global"),)
_FAMILIES = (
    _LLAMA,
    _relative(
        "mistral",
        "Mistral",
        fields=change_defaults(_FIELDS, intermediate_size=14336, max_position_embeddings=131072, num_key_value_heads=8),
        unsupported=ENCODER_ONLY,
        extra_fields=_parse_mistral,
        extra_keys=_render_mistral,
        prefixes={},
    ),
    _relative(
        "qwen2",
        "Qwen2",
        fields=_QWEN_FIELDS,
        structure=_STRUCTURE | {"attention_bias": "query_key_value"},
        unsupported=(*ENCODER_ONLY, *_SLIDING),
        extra_fields=_parse_qwen,
    ),
    _relative(
        "qwen3",
        "Qwen3",
        fields=change_defaults(_QWEN_FIELDS, head_dim=128),
        structure=_STRUCTURE | {"qk_norm": True},
        unsupported=(*ENCODER_ONLY, *_SLIDING),
        extra_fields=_parse_qwen3,
        extra_keys=lambda config, architecture: {
            **_extra_keys(config, architecture),
            "attention_bias": config.attention_bias == "all",
        },
    ),
    _relative(
        "eurobert",
        "EuroBert",
        architectures={
            "EuroBertForMaskedLM": ("mlm",),
            "EuroBertForSequenceClassification": ("sequence_classification",),
            "EuroBertForTokenClassification": ("token_classification",),
            "EuroBertModel": (),
        },
        last_token_classes={},
        fields=change_defaults(
            _FIELDS,
            vocab_size=128256,
            hidden_size=768,
            intermediate_size=3072,
            num_hidden_layers=12,
            num_attention_heads=12,
            max_position_embeddings=8192,
            rms_norm_eps=1e-5,
            pad_token_id=128001,
        ),
        structure=_STRUCTURE | {"classifier_dense": "own", "classifier_act": "gelu", "classifier_dropout": 0.0},
        unsupported=(*ENCODER_ONLY, _GLOBAL, ("classifier_pooling", tuple(_POOLING), "known are bos, mean and late")),
        extra_fields=_parse_eurobert,
        extra_keys=_render_eurobert,
    ),
)
FAMILIES = {family.name: family for family in _FAMILIES}
