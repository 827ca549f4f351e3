"""UltraBERT under Hugging Face's names (transformers: models/ultrabert/modeling_ultrabert.py).

A EuroBERT with local layers, a rotation for each kind of layer, and a masked-token head of two layers. Of a folder that
names code of its authors `transformers` reads this class as well; its config.json states windows and bases by layer.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from bertjax.config.model import EncoderConfig
from bertjax.errors import UserError
from bertjax.hf.keymap import Entry, KeyMap
from bertjax.hf.keymaps import bert, gemma, llama
from bertjax.hf.keymaps.family import ENCODER_ONLY, Fields, change_defaults, linear, parse_fields
from bertjax.hf.keymaps.rope_parameters import GLOBAL, LOCAL, parse_tables, render_length, render_tables

_EUROBERT = llama.FAMILIES["eurobert"]
_WINDOW, _PERIOD = 128, 3
_THETAS = {GLOBAL: ("global_rope_theta", 2_560_000.0), LOCAL: ("local_rope_theta", 10_000.0)}
_POOLING = {"cls": "first", "mean": "mean"}
_FIELDS: Fields = {
    **change_defaults(llama.FAMILIES["llama"].fields, max_position_embeddings=32768, pad_token_id=0),
    "classifier_dropout": ("classifier_dropout", 0.0, float),
}
_HEAD: Fields = {"prediction_head_size": ("prediction_head_size", 768, int)}
_SLIDING: Fields = {"sliding_window": ("window", _WINDOW, int)}


def make_keymap(config: EncoderConfig) -> KeyMap:
    """Returns the names of an UltraBERT's parameters."""
    prefix, keymap, tied = "ultrabert.", llama.make_keymap(config), config.tie_word_embeddings
    encoder = (entry for entry in keymap.entries if not entry.head)
    return dataclasses.replace(
        keymap,
        entries=(
            *(dataclasses.replace(each, tensor=each.tensor.replace("model.", prefix, 1)) for each in encoder),
            *linear("mlm_head/dense", "head.linear1", "D M", bias=False, head="mlm"),
            *linear("mlm_head/second", "head.linear2", "M D", bias=False, head="mlm"),
            *(() if tied else (Entry("mlm_head/table", "cls.weight", "V D", head="mlm"),)),
            *linear("sequence_head/output", "classifier", "D C", head="sequence_classification"),
            *bert.token_head_entries(),
        ),
        sizes={**keymap.sizes, "M": config.prediction_head_size or config.hidden_size},
        renames=(
            (r"^(embed_tokens|layers|norm)\.", rf"{prefix}\1."),  # UltrabertModel: no prefix
            (r"^model\.", prefix),  # names of the modules, under which `transformers` does not save
            (r"^head\.decoder\.", "cls."),
        ),
        ties={"cls.weight": f"{prefix}embed_tokens.weight"} if tied else {},
        backbone=r"^(ultrabert|head|cls)\.",
    )


def _extra_fields(values: dict[str, Any], fields: dict[str, Any], where: str) -> dict[str, Any]:
    biases: dict[str, Any] = {key: values[key] for key in ("attention_bias", "mlp_bias") if key in values}
    values.update(_parse_windows(values, fields["num_layers"], where))
    window = parse_fields(values, _SLIDING, where)["window"]
    if window < 1:
        raise UserError(f"{where}: sliding_window must be at least 1, not {window}")
    layers = gemma.parse_layers(values, fields["num_layers"], _PERIOD, 2 * window, where)
    size = parse_fields(values, _HEAD, where)["prediction_head_size"]
    return {
        **_EUROBERT.extra_fields(biases, fields, where),
        **layers,
        **_parse_rotations(values, fields, where),
        "mlm_bias": False,
        "prediction_head_size": None if size == fields["hidden_size"] else size,
        "pooling": _POOLING[values.get("classifier_pooling", "cls")],
    }


def _parse_windows(values: dict[str, Any], num_layers: int, where: str) -> dict[str, Any]:
    """Returns the window and the kinds of the layers where published files state a window for each layer."""
    windows = values.get("attention_windows")
    if "attention_windows" not in values:
        return {}
    stated = {each for each in windows if each} if isinstance(windows, list) else {windows}
    if not isinstance(windows, list) or len(windows) != num_layers or len(stated) > 1:
        raise UserError(f"{where}: attention_windows must have one window, or none, for each of {num_layers} layers")
    types = values.get("layer_types") or [LOCAL if each else GLOBAL for each in windows]
    return {"layer_types": types, **({"sliding_window": stated.pop()} if stated else {})}


def _parse_rotations(values: dict[str, Any], fields: dict[str, Any], where: str) -> dict[str, Any]:
    """Returns bases and rescaling, of the tables by kind of layer or of the bases by layer of published files."""
    tables, bases, count = values.get("rope_parameters"), values.get("rope_theta"), fields["num_layers"]
    types = values.get("layer_types") or [
        LOCAL if (layer + 1) % _PERIOD else GLOBAL for layer in range(min(count, 10**4))
    ]
    if tables is None and bases is None:
        tables = {kind: {"rope_theta": default} for kind, (_, default) in _THETAS.items()}
    elif tables is None:
        if not isinstance(bases, list) or len(bases) != count:
            raise UserError(f"{where}: rope_theta must be a list with a base for each of {count} layers")
        tables = {kind: {"rope_theta": base} for kind, base in zip(types, bases, strict=False)}
        if any(tables[kind]["rope_theta"] != base for kind, base in zip(types, bases, strict=False)):
            raise UserError(f"{where}: rope_theta has several bases for layers of a kind, which is not supported")
    nested = isinstance(tables, dict) and all(isinstance(each, dict) for each in tables.values())
    if not nested or not tables.keys() <= _THETAS.keys():
        raise UserError(f"{where}: rope_parameters = {tables!r} must be tables for {GLOBAL} and {LOCAL}")
    parsed = parse_tables(tables, values, fields, where)
    for kind in {*types}:
        name, _ = _THETAS[kind]
        parsed |= parse_fields(tables.get(kind, {}), {"rope_theta": (name, None, float)}, f"{where}: {kind}")
        if parsed[name] is None or parsed[name] <= 0.0:
            raise UserError(f"{where}: rope_parameters must have a positive rope_theta for {kind}")
    return parsed


def _extra_keys(config: EncoderConfig, architecture: str) -> dict[str, Any]:
    kinds = (GLOBAL, LOCAL)
    return {
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "attention_bias": config.attention_bias == "all",
        "mlp_bias": config.feed_forward_bias,
        "prediction_head_size": config.prediction_head_size or config.hidden_size,
        "classifier_pooling": {ours: theirs for theirs, ours in _POOLING.items()}[config.pooling],
        "layer_types": [kinds[config.is_local(layer)] for layer in range(config.num_layers)],
        "sliding_window": config.local_attention // 2 or _WINDOW,
        "rope_parameters": render_tables(config),
        **render_length(config),
    }


FAMILY = dataclasses.replace(
    _EUROBERT,
    name="ultrabert",
    model_type="ultrabert",
    make_keymap=make_keymap,
    architectures={
        "UltrabertForMaskedLM": ("mlm",),
        "UltrabertForSequenceClassification": ("sequence_classification",),
        "UltrabertForTokenClassification": ("token_classification",),
        "UltrabertForQuestionAnswering": ("question_answering",),
        "UltrabertModel": (),
    },
    fields=_FIELDS,
    structure={
        **llama.FAMILIES["llama"].structure,
        "mlm_head": "two_layers",
        "mlm_act": "gelu_new",
        "head_dense_bias": False,
    },
    constants={"bos_token_id": None, "eos_token_id": None, "use_cache": False},  # ids are not known here
    unsupported=(
        *ENCODER_ONLY,
        ("rope_scaling", (None,), "rope_parameters has the rotations"),
        ("classifier_pooling", tuple(_POOLING), "known are cls and mean"),
    ),
    ignored_keys="attention_windows auto_map pretraining_tp rope_theta",
    extra_fields=_extra_fields,
    extra_keys=_extra_keys,
    prefix="ultrabert.",
    prefixes={},
)
