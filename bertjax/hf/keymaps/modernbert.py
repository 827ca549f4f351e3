"""ModernBERT under Hugging Face's names (transformers: models/modernbert/modeling_modernbert.py) and its config.json.

The config has two generations of keys: transformers 4 has the period of global layers and two thetas, transformers 5 a
list with the type of every layer and a table of rope parameters. Both are written, because version 4 silently ignores
the new keys; either is read.

The decoder (models/modernbert_decoder/modeling_modernbert_decoder.py) is Ettin's. It differs from the encoder in
separate projections of query, key and value, the name of its head, and the window: a token sees itself and the
`local_attention // 2 - 1` before it, in the encoder `local_attention // 2` on either side. With `is_causal` false
transformers 5 runs it as an encoder, with that window.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from bertjax.config.model import EncoderConfig
from bertjax.errors import UserError, comma_list
from bertjax.hf.keymap import Entry, KeyMap
from bertjax.hf.keymaps.family import (
    ENCODER_ONLY,
    SEQUENCE,
    Activation,
    Family,
    Fields,
    axis_sizes,
    linear,
    norm,
    parse_fields,
    table,
)
from bertjax.hf.keymaps.rope_parameters import GLOBAL, LOCAL, parse_tables, render_length, render_tables
from bertjax.hf.safe_files import refuse

_FIELDS: Fields = {
    "vocab_size": ("vocab_size", 50368, int),
    "hidden_size": ("hidden_size", 768, int),
    "num_hidden_layers": ("num_layers", 22, int),
    "num_attention_heads": ("num_heads", 12, int),
    "intermediate_size": ("intermediate_size", 1152, int),
    "hidden_activation": ("hidden_act", "gelu", Activation),
    "classifier_activation": ("classifier_act", "gelu", Activation),
    "max_position_embeddings": ("max_position_embeddings", 8192, int),
    "norm_eps": ("layer_norm_eps", 1e-5, float),
    "norm_bias": ("norm_bias", False, bool),
    "mlp_bias": ("feed_forward_bias", False, bool),
    "decoder_bias": ("mlm_bias", True, bool),
    "classifier_bias": ("head_dense_bias", False, bool),
    "attention_dropout": ("attention_dropout", 0.0, float),
    "embedding_dropout": ("embedding_dropout", 0.0, float),
    "mlp_dropout": ("activation_dropout", 0.0, float),
    "classifier_dropout": ("classifier_dropout", 0.0, float),
    "initializer_range": ("initializer_range", 0.02, float),
    "pad_token_id": ("pad_token_id", 50283, int),
}
_POOLING = {"cls": "first", "mean": "mean"}
_WINDOW, _PERIOD = 128, 3
_THETAS = {GLOBAL: ("global_rope_theta", 160_000.0), LOCAL: ("local_rope_theta", 10_000.0)}
_HEADS = {
    "mlm_head": "mlm",
    "sequence_head": "sequence_classification",
    "token_head": "token_classification",
    "answer_head": "question_answering",
    "choice_head": "multiple_choice",
}
_SCORES = {"question_answering": "D 2", "multiple_choice": "D 1"}


def make_keymap(config: EncoderConfig) -> KeyMap:
    """Returns the names of a ModernBERT's parameters.

    Wqkv holds query, key and value, Wi the intermediate layer and its gate, concatenated along the output axis. Layer 0
    has no attention norm.
    """
    param, tensor = "encoder/layers/{L}", "model.layers.{L}"
    qkv = tuple(f"{param}/attention/{part}" for part in ("query", "key", "value"))
    gated = tuple(f"{param}/feed_forward/{part}" for part in ("gate", "intermediate"))
    attention_bias, bias = config.attention_bias == "all", config.feed_forward_bias
    norms = norm("encoder/attention_norms/layers/{K}", "model.layers.{K+1}.attn_norm", config)
    return KeyMap(
        entries=(
            *table("encoder/embeddings/word_embeddings", "model.embeddings.tok_embeddings", "V D"),
            *norm("encoder/embeddings/norm", "model.embeddings.norm", config),
            *(norms if config.num_layers > 1 else ()),
            *linear(qkv, f"{tensor}.attn.Wqkv", "D A", attention_bias, transform="concat_transpose"),
            *linear(f"{param}/attention/output", f"{tensor}.attn.Wo", "A D", attention_bias),
            *norm(f"{param}/feed_forward/norm", f"{tensor}.mlp_norm", config),
            *linear(gated, f"{tensor}.mlp.Wi", "D F", bias, transform="concat_transpose"),
            *linear(f"{param}/feed_forward/output", f"{tensor}.mlp.Wo", "F D", bias),
            *norm("encoder/norm", "model.final_norm", config),
            *_heads(config),
        ),
        sizes=axis_sizes(config),
        renames=(
            (r"^(embeddings|layers|final_norm)\.", r"model.\1."),  # ModernBertModel: no prefix
            (r"^(model\.)?bert\.(encoder\.)?", "model."),  # as its authors trained it with Composer
            (r"^model\.(head|decoder)\.", r"\1."),
        ),
        ties={"decoder.weight": "model.embeddings.tok_embeddings.weight"},
        backbone=r"^model\.",
    )


def _heads(config: EncoderConfig) -> tuple[Entry, ...]:
    """Every head begins with a dense layer and a norm of the same names."""
    entries: list[Entry] = []
    for param, head in _HEADS.items():
        entries += linear(f"{param}/dense", "head.dense", "D D", config.head_dense_bias, head)
        entries += norm(f"{param}/norm", "head.norm", config, head=head)
        if head != "mlm":
            entries += linear(f"{param}/output", "classifier", _SCORES.get(head, "D C"), head=head)
    if config.mlm_bias:
        entries.append(Entry("mlm_head/bias", "decoder.bias", "V", head="mlm"))
    return tuple(entries)


def _extra_fields(values: dict[str, Any], fields: dict[str, Any], where: str) -> dict[str, Any]:
    biased = parse_fields(values, {"attention_bias": ("bias", False, bool)}, where)["bias"]
    head_size = fields["hidden_size"] // max(1, fields["num_heads"])
    refuse(values, where, "head_dim", (head_size, 0, None), "heads share the hidden size")
    return {
        **_parse_layer_types(values, fields["num_layers"], where),
        "global_rope_theta": _parse_theta(values, GLOBAL, where),
        "local_rope_theta": _parse_theta(values, LOCAL, where),
        **parse_tables(values.get("rope_parameters") or {}, values, fields, where),
        "attention_bias": "all" if biased else "none",
        "attention_output_dropout": fields["attention_dropout"],  # one rate for both
        "mlm_act": fields["classifier_act"],
        "pooling": _POOLING[values.get("classifier_pooling", "cls")],
    }


def _parse_layer_types(values: dict[str, Any], num_layers: int, where: str) -> dict[str, Any]:
    """Returns the window and the period of global layers, from the list of layer types or the period of version 4.

    `sliding_window` is half of `local_attention` and counts before it, as in transformers 5.
    """
    every = "global_attn_every_n_layers"
    read = {"local_attention": ("local_attention", _WINDOW, int), every: (every, _PERIOD, int)}
    pattern, layer_types = parse_fields(values, read, where), values.get("layer_types")
    if "sliding_window" in values:
        pattern |= parse_fields(values, {"sliding_window": ("local_attention", 0, int)}, where)
        pattern["local_attention"] *= 2
    if min(pattern.values()) < 1:
        raise UserError(f"{where}: local_attention, sliding_window and {every} must be at least 1")
    if layer_types is not None:
        pattern[every] = _find_period(layer_types, num_layers, values.get(every), where)
    return pattern if pattern[every] > 1 else {"local_attention": 0, every: 1}


def _find_period(layer_types: Any, num_layers: int, stated: Any, where: str) -> int:
    """Returns the number of layers from one global layer to the next; layer 0 is the first."""
    known = isinstance(layer_types, list) and all(each in (GLOBAL, LOCAL) for each in layer_types)
    if not known or len(layer_types) != num_layers:
        raise UserError(f"{where}: layer_types must name {GLOBAL} or {LOCAL} for each of {num_layers} layers")
    global_layers = [index for index, layer_type in enumerate(layer_types) if layer_type == GLOBAL]
    period = stated if type(stated) is int and stated >= num_layers else num_layers
    if len(global_layers) > 1:
        period = global_layers[1]
    if global_layers != list(range(0, num_layers, period)):
        raise UserError(
            f"{where}: layer_types has {GLOBAL} in layers {comma_list(global_layers)}; only every n-th layer, "
            "beginning with layer 0, can have it"
        )
    return period


def _parse_theta(values: dict[str, Any], layer_type: str, where: str) -> float:
    """Returns the rope theta: by the new key, else the old, else the default; a null local one is the global."""
    old, default = _THETAS[layer_type]
    tables = values.get("rope_parameters") or {}
    nested = isinstance(tables, dict) and all(isinstance(table, dict) for table in tables.values())
    if not nested or not tables.keys() <= _THETAS.keys():
        raise UserError(
            f"{where}: rope_parameters = {tables!r} is not supported: it must hold tables for {GLOBAL} and {LOCAL}; "
            "transformers ignores any other"
        )
    new = tables.get(layer_type, {})
    if new.get("rope_theta") is not None:
        theta = parse_fields(new, {"rope_theta": (old, default, float)}, where)[old]
    elif layer_type == LOCAL and old in values and values[old] is None:
        return _parse_theta(values, GLOBAL, where)
    else:
        theta = parse_fields(values, {old: (old, default, float)}, where)[old]
    if theta <= 0.0:
        raise UserError(f"{where}: rope_theta must be positive, not {theta}")
    return theta


def _extra_keys(config: EncoderConfig, architecture: str) -> dict[str, Any]:
    """`attention_dropout` also applies to the output there: another rate for it is not exported."""
    has_classifier = architecture not in ("ModernBertForMaskedLM", "ModernBertModel")
    classifier_pooling = {ours: theirs for theirs, ours in _POOLING.items()}
    thetas = {GLOBAL: config.global_rope_theta, LOCAL: config.local_rope_theta}
    return {
        "attention_bias": config.attention_bias == "all",
        "classifier_activation": config.classifier_act if has_classifier else config.mlm_act or config.hidden_act,
        "classifier_pooling": classifier_pooling[config.pooling],
        "layer_types": [LOCAL if config.is_local(layer) else GLOBAL for layer in range(config.num_layers)],
        "global_attn_every_n_layers": config.global_attn_every_n_layers,
        "local_attention": config.local_attention or _WINDOW,
        "rope_parameters": render_tables(config),
        **render_length(config),
        **{old: thetas[kind] for kind, (old, _) in _THETAS.items()},
    }


FAMILY = Family(
    name="modernbert",
    model_type="modernbert",
    make_keymap=make_keymap,
    architectures={
        "ModernBertForMaskedLM": ("mlm",),
        "ModernBertForSequenceClassification": ("sequence_classification",),
        "ModernBertForMultipleChoice": ("multiple_choice",),
        "ModernBertForTokenClassification": ("token_classification",),
        "ModernBertForQuestionAnswering": ("question_answering",),
        "ModernBertModel": (),
    },
    fields=_FIELDS,
    structure={
        "position_embedding": "none",
        "type_vocab_size": 0,
        "attention_position": "rotary",
        "feed_forward": "glu",
        "norm_placement": "pre",
        "first_attention_norm": False,
        "hidden_dropout": 0.0,
        "classifier_dense": "own",
        "classifier_norm": True,
        "token_classifier_dense": True,
        "scale_residual_init": True,
    },
    # The ids of special tokens are not known here, and the defaults of the config class would be wrong.
    constants={
        "tie_word_embeddings": True,
        **dict.fromkeys(("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id")),
    },
    unsupported=(
        *ENCODER_ONLY,
        ("rope_scaling", (None,), "rotations are not rescaled"),
        ("classifier_pooling", tuple(_POOLING), "known are cls and mean"),
    ),
    training_only=(("initializer_cutoff_factor", (2.0,), "weights are drawn within two standard deviations"),),
    # `layer_norm_eps` and `position_embedding_type` are in the published files, but no code reads them.
    ignored_keys="deterministic_flash_attn global_rope_theta layer_norm_eps local_rope_theta position_embedding_type "
    "reference_compile repad_logits_with_grad sparse_pred_ignore_index sparse_prediction",
    extra_fields=_extra_fields,
    extra_keys=_extra_keys,
    prefix="model.",
)


def _make_decoder_keymap(config: EncoderConfig) -> KeyMap:
    """Returns the names of a decoder's parameters."""
    keymap = make_keymap(config)
    attention, bias = "encoder/layers/{L}/attention", config.attention_bias == "all"
    projections = [
        entry
        for name in ("query", "key", "value")
        for entry in linear(f"{attention}/{name}", f"model.layers.{{L}}.attn.{name[0]}_proj", "D A", bias)
    ]
    others = [
        dataclasses.replace(entry, tensor=entry.tensor.replace("head.", "lm_head.", 1))
        for entry in keymap.entries
        if "Wqkv" not in entry.tensor and entry.head in ("", "mlm")
    ]
    return dataclasses.replace(keymap, entries=(*projections, *others), backbone=r"^(model|lm_head|decoder)\.")


def _classifier_entries(config: EncoderConfig) -> tuple[Entry, ...]:
    """Returns the entries of the classifier; one setting gives both of its layers a bias or none."""
    entries = (entry for entry in make_keymap(config).entries if entry.head == SEQUENCE)
    return tuple(entry for entry in entries if config.head_dense_bias or entry.tensor != "classifier.bias")


def _parse_decoder(values: dict[str, Any], fields: dict[str, Any], where: str) -> dict[str, Any]:
    parsed = _extra_fields(values, fields, where)
    refuse(values if values.get("pad_token_id", 0) is None else {}, where, "pad_token_id", (), "a number is needed")
    parsed |= parse_fields(values, {"is_causal": ("causal", True, bool)}, where)
    if parsed["causal"] and parsed["local_attention"]:
        parsed["local_attention"] = parsed["local_attention"] // 2 * 2 - 2
        if parsed["local_attention"] < 2:
            raise UserError(f"{where}: local_attention must be at least 4: local layers would see their token alone")
    return parsed | {
        "pooling": "last" if parsed["causal"] else "mean",
        "classifier_bias": fields["head_dense_bias"],
    }


def _render_decoder(config: EncoderConfig, architecture: str) -> dict[str, Any]:
    rendered = _extra_keys(dataclasses.replace(config, pooling="first"), architecture)
    if config.causal and config.local_attention:
        rendered["local_attention"] = config.local_attention // 2 * 2 + 2
    del rendered["classifier_pooling"]
    return rendered | ({} if config.causal else {"is_causal": False})


DECODER = dataclasses.replace(
    FAMILY,
    name="modernbert-decoder",
    model_type="modernbert-decoder",
    make_keymap=_make_decoder_keymap,
    architectures={"ModernBertDecoderForCausalLM": ("mlm",), "ModernBertDecoderModel": ()},
    constants={"tie_word_embeddings": True, "eos_token_id": None},  # its other ids cannot be null
    last_token_classes={"ModernBertDecoderForSequenceClassification": _classifier_entries},
    extra_fields=_parse_decoder,
    extra_keys=_render_decoder,
)
