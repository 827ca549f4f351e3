"""ModernBERT under Hugging Face's names (transformers: models/modernbert/modeling_modernbert.py) and its config.json.

The config has two generations of keys: transformers 4 counts from one global layer to the next and names two thetas,
transformers 5 lists the kind of every layer and a table of rotations. Both are written, for version 4 reads the new
ones without a word as if they were absent; either is read.
"""

from __future__ import annotations

from typing import Any

from bertjax.config.model import EncoderConfig
from bertjax.errors import UserError
from bertjax.hf.keymap import Entry, KeyMap
from bertjax.hf.keymaps.family import (
    Family,
    Fields,
    linear,
    norm,
    parse_activation,
    parse_fields,
    refuse,
    refuse_decoders,
    render_fields,
    sizes,
    table,
)

ARCHITECTURES: dict[str, tuple[str, ...]] = {
    "ModernBertForMaskedLM": ("mlm",),
    "ModernBertForSequenceClassification": ("sequence_classification",),
    "ModernBertForTokenClassification": ("token_classification",),
    "ModernBertForQuestionAnswering": ("question_answering",),
    "ModernBertModel": (),
}
FIELDS: Fields = {
    "vocab_size": ("vocab_size", 50368, int),
    "hidden_size": ("hidden_size", 768, int),
    "num_hidden_layers": ("num_layers", 22, int),
    "num_attention_heads": ("num_heads", 12, int),
    "intermediate_size": ("intermediate_size", 1152, int),
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
POOLING = {"cls": "first", "mean": "mean"}
GLOBAL, LOCAL = "full_attention", "sliding_attention"
_WINDOW, _PERIOD = 128, 3
_THETAS = {GLOBAL: ("global_rope_theta", 160_000.0), LOCAL: ("local_rope_theta", 10_000.0)}
_HEADS = {
    "mlm_head": "mlm",
    "sequence_head": "sequence_classification",
    "token_head": "token_classification",
    "answer_head": "question_answering",
}


def make_keymap(config: EncoderConfig) -> KeyMap:
    """Wqkv holds query, key, value; Wi the gate and what it gates, both on the output axis. Layer 0 has no norm."""
    param, tensor = "encoder/layers/{L}", "model.layers.{L}"
    qkv = tuple(f"{param}/attention/{part}" for part in ("query", "key", "value"))
    gated = tuple(f"{param}/feed_forward/{part}" for part in ("gate", "intermediate"))
    bias, fed = config.attention_bias == "all", config.feed_forward_bias
    norms = norm("encoder/attention_norms/layers/{K}", "model.layers.{K+1}.attn_norm", config)
    return KeyMap(
        entries=(
            *table("encoder/embeddings/word_embeddings", "model.embeddings.tok_embeddings", "V D"),
            *norm("encoder/embeddings/norm", "model.embeddings.norm", config),
            *(norms if config.num_layers > 1 else ()),
            *linear(qkv, f"{tensor}.attn.Wqkv", "D A", bias, transform="concat_transpose"),
            *linear(f"{param}/attention/output", f"{tensor}.attn.Wo", "A D", bias),
            *norm(f"{param}/feed_forward/norm", f"{tensor}.mlp_norm", config),
            *linear(gated, f"{tensor}.mlp.Wi", "D F", fed, transform="concat_transpose"),
            *linear(f"{param}/feed_forward/output", f"{tensor}.mlp.Wo", "F D", fed),
            *norm("encoder/norm", "model.final_norm", config),
            *_heads(config),
        ),
        sizes=sizes(config),
        renames=((r"^(embeddings|layers|final_norm)\.", r"model.\1."),),  # ModernBertModel's files have no prefix
        ties={"decoder.weight": "model.embeddings.tok_embeddings.weight"},
        backbone=r"^model\.",
    )


def _heads(config: EncoderConfig) -> tuple[Entry, ...]:
    """Every head begins with the same dense layer and norm, under the same names."""
    entries: list[Entry] = []
    for param, head in _HEADS.items():
        entries += linear(f"{param}/dense", "head.dense", "D D", config.head_dense_bias, head)
        entries += norm(f"{param}/norm", "head.norm", config, head=head)
        if head != "mlm":
            scores = "D 2" if head == "question_answering" else "D C"
            entries += linear(f"{param}/output", "classifier", scores, head=head)
    if config.mlm_bias:
        entries.append(Entry("mlm_head/bias", "decoder.bias", "V", head="mlm"))
    return tuple(entries)


def from_hf_config(values: dict[str, Any], where: str = "config.json") -> EncoderConfig:
    """Our config from either generation of keys; raises `UserError` for what would change the maths otherwise."""
    refuse_decoders(values, where)
    refuse(values, where, "rope_scaling", (None,), "rotations are not rescaled")
    refuse(values, where, "classifier_pooling", (*POOLING, None), "known are cls and mean")
    fields = parse_fields(values, FIELDS, where)
    biased = parse_fields(values, {"attention_bias": ("attention_bias", False, bool)}, where)["attention_bias"]
    head_act = parse_activation(values, where, "classifier_activation")
    return EncoderConfig(
        **fields,
        **_read_pattern(values, fields["num_layers"], where),
        global_rope_theta=_read_theta(values, GLOBAL, where),
        local_rope_theta=_read_theta(values, LOCAL, where),
        hidden_act=parse_activation(values, where, "hidden_activation"),
        attention_bias="all" if biased else "none",
        attention_output_dropout=fields["attention_dropout"],  # one rate drives both there
        hidden_dropout=0.0,
        mlm_act=head_act,
        classifier_act=head_act,
        pooling=POOLING[values.get("classifier_pooling") or "cls"],
        **STRUCTURE,
    )


STRUCTURE: dict[str, Any] = {
    "position_embedding": "none",
    "type_vocab_size": 0,
    "attention_position": "rotary",
    "feed_forward": "glu",
    "norm_placement": "pre",
    "first_attention_norm": False,
    "classifier_dense": "own",
    "classifier_norm": True,
    "token_classifier_dense": True,
    "scale_residual_init": True,
}
"""What every ModernBERT has and no key of its config.json says."""


def _read_pattern(values: dict[str, Any], num_layers: int, where: str) -> dict[str, Any]:
    """`window` and `global_attn_every_n_layers` from the list of kinds, or from the period of version 4."""
    every = "global_attn_every_n_layers"
    read = {"local_attention": ("local_attention", _WINDOW, int), every: (every, _PERIOD, int)}
    pattern, kinds = parse_fields(values, read, where), values.get("layer_types")
    if min(pattern.values()) < 1:
        raise UserError(f"{where}: local_attention and global_attn_every_n_layers must be at least 1")
    if kinds is not None:
        pattern[every] = _period(kinds, num_layers, values.get(every), where)
    return pattern if pattern[every] > 1 else {"local_attention": 0, every: 1}


def _period(kinds: Any, num_layers: int, told: Any, where: str) -> int:
    """The number of layers from one that sees all to the next; layer 0 is the first."""
    if not isinstance(kinds, list) or len(kinds) != num_layers or not set(kinds) <= {GLOBAL, LOCAL}:
        raise UserError(f"{where}: layer_types must name {GLOBAL} or {LOCAL} for each of {num_layers} layers")
    found = [index for index, kind in enumerate(kinds) if kind == GLOBAL]
    period = found[1] if len(found) > 1 else told if type(told) is int and told >= num_layers else num_layers
    expected = list(range(0, num_layers, period))
    if found != expected:
        listed = ", ".join(map(str, found)) or "none"
        raise UserError(
            f"{where}: layer_types makes layers {listed} see the whole row, which is no period from layer 0: "
            "only every n-th layer, beginning with the first, can"
        )
    return period


def _read_theta(values: dict[str, Any], kind: str, where: str) -> float:
    """The base of a kind's rotations: the new key, else the old, else the default; a null local one is the global."""
    old, default = _THETAS[kind]
    tables = values.get("rope_parameters") or {}
    new = (tables.get(kind) or {}) if isinstance(tables, dict) else None
    if not isinstance(new, dict):
        raise UserError(f"{where}: rope_parameters must hold a table for {GLOBAL} and {LOCAL}")
    for key in ("rope_type", "type"):
        refuse(new, where, key, ("default", None), "rotations are not rescaled")
    if new.get("rope_theta") is not None:
        theta = parse_fields(new, {"rope_theta": (old, default, float)}, where)[old]
    elif kind == LOCAL and old in values and values[old] is None:
        return _read_theta(values, GLOBAL, where)
    else:
        theta = parse_fields(values, {old: (old, default, float)}, where)[old]
    if theta <= 0.0:
        raise UserError(f"{where}: the base of rotations must be positive, not {theta}")
    return theta


def to_hf_config(config: EncoderConfig, architecture: str) -> dict[str, Any]:
    """Both generations of keys. Ids of specials that we do not know are null, where the defaults would name wrong ones.

    `attention_dropout` drives the output there, too: another rate of ours for it is not exported.
    """
    classifies = architecture not in ("ModernBertForMaskedLM", "ModernBertModel")
    poolings = {param: tensor for tensor, param in POOLING.items()}
    thetas = {GLOBAL: config.global_rope_theta, LOCAL: config.local_rope_theta}
    return {
        **render_fields(config, FIELDS),
        "embedding_dropout": config.rate("embedding_dropout"),
        "classifier_dropout": config.rate("classifier_dropout"),
        "attention_bias": config.attention_bias == "all",
        "hidden_activation": config.hidden_act,
        "classifier_activation": config.classifier_act if classifies else config.mlm_act or config.hidden_act,
        "classifier_pooling": poolings[config.pooling],
        "layer_types": [LOCAL if config.is_local(layer) else GLOBAL for layer in range(config.num_layers)],
        "global_attn_every_n_layers": config.global_attn_every_n_layers,
        "local_attention": config.local_attention or _WINDOW,
        "rope_parameters": {kind: {"rope_type": "default", "rope_theta": theta} for kind, theta in thetas.items()},
        **{old: thetas[kind] for kind, (old, _) in _THETAS.items()},
        "tie_word_embeddings": True,
        **dict.fromkeys(("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id")),
    }


FAMILY = Family(
    name="modernbert",
    model_type="modernbert",
    make_keymap=make_keymap,
    architectures=ARCHITECTURES,
    from_hf_config=from_hf_config,
    to_hf_config=to_hf_config,
    prefix="model.",
)
