"""DeBERTa v1 to v3 under Hugging Face's names (transformers: models/deberta and models/deberta_v2).

v3 is v2 trained with replaced token detection; the head of that objective has no class in `transformers`.

The masked-LM head is written in the layout that `transformers` calls legacy, its default: there the word table is tied
as in BERT. The other layout, Microsoft's own, is read as well; transformers 4 overwrites its dense layer with the word
table. Microsoft's files may also hold the position table of the enhanced decoder, under the name of the embeddings'
table: `transformers` drops it, and so does bertjax, because no key of config.json says what it is for.
"""

from __future__ import annotations

from typing import Any

from bertjax.config.model import EncoderConfig
from bertjax.errors import UserError
from bertjax.hf.keymap import Entry, KeyMap
from bertjax.hf.keymaps import bert
from bertjax.hf.keymaps.family import (
    ENCODER_ONLY,
    Activation,
    Family,
    Fields,
    Refusals,
    axis_sizes,
    change_defaults,
    linear,
    norm,
    parse_fields,
    table,
)
from bertjax.hf.safe_files import refuse

FIELDS: Fields = {
    **change_defaults(bert.ENCODER_FIELDS, vocab_size=50265, type_vocab_size=0, layer_norm_eps=1e-7),
    "pooler_hidden_act": ("classifier_act", "gelu", Activation),
}
STRUCTURE: dict[str, Any] = {
    "embedding_projection_bias": False,
    "embedding_norm": "after",
    "zero_pad_embeddings": True,
    "classifier_dense": "own",
    "initializer": "normal",
    "rtd_head": "summary",
}
CONSTANTS: dict[str, Any] = {"pooler_dropout": 0.0, "legacy": True, "tie_word_embeddings": True}
TRAINING_ONLY: Refusals = (("pooler_dropout", (0,), "there is no dropout before the classifier's dense layer"),)
IGNORED_KEYS = "legacy"
SIDECAR_PATHS = (r"decoder_positions/.*", r"rtd_head/.*", r"span_head/.*", r"pair_head/.*", r"pooler/.*")
_TERMS = ("c2p", "p2c")
_FLAGS: Fields = {
    "relative_attention": ("relative", False, bool),
    "position_biased_input": ("biased", True, bool),
    "max_relative_positions": ("distance", -1, int),
    "cls_dropout": ("dropout", None, float),
}


def name_architectures(prefix: str) -> dict[str, tuple[str, ...]]:
    """Returns the classes of one version."""
    return {
        f"{prefix}ForSequenceClassification": ("sequence_classification",),
        f"{prefix}ForTokenClassification": ("token_classification",),
        f"{prefix}ForQuestionAnswering": ("question_answering",),
        f"{prefix}ForMaskedLM": ("mlm",),
        f"{prefix}Model": (),
    }


def make_keymap(config: EncoderConfig) -> KeyMap:
    """Returns the names of a DeBERTa v1's parameters."""
    param, tensor = "encoder/layers/{L}/attention", "deberta.encoder.layer.{L}.attention.self"
    projections = tuple(f"{param}/{name}" for name in ("query", "key", "value"))
    terms = config.pos_att_type if config.attention_position == "disentangled" else ()
    return make_shared_keymap(
        config,
        (
            *linear(projections, f"{tensor}.in_proj", "D A", bias=False, transform="interleave_heads"),
            Entry(f"{param}/query/bias", f"{tensor}.q_bias", "A"),
            Entry(f"{param}/value/bias", f"{tensor}.v_bias", "A"),
            *(linear(f"{param}/position_key", f"{tensor}.pos_proj", "D A", bias=False) if "c2p" in terms else ()),
            *(linear(f"{param}/position_query", f"{tensor}.pos_q_proj", "D A") if "p2c" in terms else ()),
        ),
    )


def make_shared_keymap(config: EncoderConfig, version_entries: tuple[Entry, ...]) -> KeyMap:
    """Returns all names; `version_entries` are those that the versions do not share."""
    predictions = "cls.predictions"
    has_position_table = config.position_embedding == "learned"
    return KeyMap(
        entries=(
            *_embedding_entries(config),
            *bert.output_entries("deberta", config, "A"),
            *version_entries,
            *bert.prediction_entries(predictions, config, "E"),
            *bert.classifier_entries("pooler.dense", "classifier"),
            *bert.choice_entries("classifier", "pooler.dense"),
            *bert.token_head_entries(),
        ),
        sizes=axis_sizes(config)
        | {"R": 2 * (config.position_buckets or config.max_distance), "W": config.conv_kernel_size},
        renames=(
            (r"^(embeddings|encoder)\.", r"deberta.\1."),  # the bare model: no prefix
            (r"^lm_predictions\.lm_head\.(dense|LayerNorm)\.", rf"{predictions}.transform.\1."),
            (r"^lm_predictions\.lm_head\.bias$", f"{predictions}.bias"),
        ),
        ignored=(*bert.BUFFERS, *(() if has_position_table else (r"position_embeddings\.weight$",))),
        ties={
            f"{predictions}.decoder.weight": "deberta.embeddings.word_embeddings.weight",
            f"{predictions}.decoder.bias": f"{predictions}.bias",
        },
        backbone=r"^(deberta|cls)\.",
    )


def _embedding_entries(config: EncoderConfig) -> tuple[Entry, ...]:
    param, tensor = "encoder/embeddings", "deberta.embeddings"
    relative = config.attention_position == "disentangled"
    learned, types = config.position_embedding == "learned", config.type_vocab_size > 0
    projection, normed = f"{param}/projection", relative and config.norm_relative_embeddings
    return (
        *table(f"{param}/word_embeddings", f"{tensor}.word_embeddings", "V E"),
        *(table(f"{param}/position_embeddings", f"{tensor}.position_embeddings", "P E") if learned else ()),
        *(table(f"{param}/token_type_embeddings", f"{tensor}.token_type_embeddings", "T E") if types else ()),
        *(linear(projection, f"{tensor}.embed_proj", "E D", bias=False) if config.embedding_size else ()),
        *norm(f"{param}/norm", f"{tensor}.LayerNorm", config),
        *(table("encoder/relative", "deberta.encoder.rel_embeddings", "R D") if relative else ()),
        *(norm("encoder/relative/norm", "deberta.encoder.LayerNorm", config) if normed else ()),
    )


def parse_shared(values: dict[str, Any], fields: dict[str, Any], where: str) -> dict[str, Any]:
    """Returns the fields that both versions have under the same keys. Args: as of `Family.extra_fields`."""
    width = fields["hidden_size"]
    refuse(values, where, "pooler_hidden_size", (width,), "the pooler is as wide as the encoder")
    flags = parse_fields(values, {**_FLAGS, "embedding_size": ("width", width, int)}, where)
    terms = _parse_terms(values.get("pos_att_type"), where)
    if terms and not flags["relative"]:
        raise UserError(f"{where}: pos_att_type needs relative_attention = true, else it only changes the scale")
    return {
        "embedding_size": None if flags["width"] == width else flags["width"],
        "position_embedding": "learned" if flags["biased"] else "none",
        "attention_position": "disentangled" if flags["relative"] else "none",
        "pos_att_type": terms,
        "classifier_dropout": flags["dropout"],
        "max_relative_positions": flags["distance"] if flags["distance"] >= 1 else None,
    }


def _parse_terms(value: Any, where: str) -> tuple[str, ...]:
    """Parses `pos_att_type`: a list, or one string with bars between the terms."""
    terms = [term.strip() for term in value.lower().split("|")] if isinstance(value, str) else value or []
    if not isinstance(terms, list) or not all(term in _TERMS for term in terms):
        raise UserError(f"{where}: pos_att_type = {value!r} is not supported: known are {', '.join(_TERMS)}")
    return tuple(terms)


def render_shared(config: EncoderConfig, architecture: str) -> dict[str, Any]:
    """Returns the keys that both versions write; without them the defaults of the config class would make a BERT."""
    relative = config.attention_position == "disentangled"
    distance = config.max_relative_positions
    optional = {"embedding_size": config.embedding_size, "cls_dropout": config.classifier_dropout}
    return {
        **{key: value for key, value in optional.items() if value is not None},
        "relative_attention": relative,
        "pos_att_type": list(config.pos_att_type) if relative else None,
        "max_relative_positions": -1 if distance in (None, config.max_position_embeddings) else distance,
        "position_biased_input": config.position_embedding == "learned",
        "pooler_hidden_size": config.hidden_size,
    }


FAMILY = Family(
    name="deberta",
    model_type="deberta",
    make_keymap=make_keymap,
    architectures=name_architectures("Deberta"),
    fields=FIELDS,
    structure={**STRUCTURE, "attention_bias": "query_value"},
    constants=CONSTANTS,
    unsupported=(*ENCODER_ONLY, ("talking_head", (False, None), "heads are not mixed")),
    training_only=TRAINING_ONLY,
    ignored_keys=IGNORED_KEYS,
    extra_fields=parse_shared,
    extra_keys=render_shared,
    prefix="deberta.",
    sidecar_paths=SIDECAR_PATHS,
)


_V2_DEFAULTS = {
    "vocab_size": 128_100,
    "hidden_size": 1536,
    "num_hidden_layers": 24,
    "num_attention_heads": 24,
    "intermediate_size": 6144,
}
_V2_FIELDS: Fields = {
    **change_defaults(FIELDS, **_V2_DEFAULTS),
    "share_att_key": ("share_att_key", False, bool),
}
_CONVOLUTION: Fields = {
    "conv_kernel_size": ("conv_kernel_size", 0, int),
    "conv_act": ("conv_act", "tanh", Activation),
}
_RELATIVE: Fields = {
    "position_buckets": ("buckets", -1, int),
    "norm_rel_ebd": ("norm", "none", str),
}


def _make_v2_keymap(config: EncoderConfig) -> KeyMap:
    """Returns the names of a DeBERTa v2's parameters."""
    param, tensor = "encoder/layers/{L}/attention", "deberta.encoder.layer.{L}.attention.self"
    separate = config.attention_position == "disentangled" and not config.share_att_key
    terms = config.pos_att_type if separate else ()
    return make_shared_keymap(
        config,
        (
            *linear(f"{param}/query", f"{tensor}.query_proj", "D A"),
            *linear(f"{param}/key", f"{tensor}.key_proj", "D A"),
            *linear(f"{param}/value", f"{tensor}.value_proj", "D A"),
            *(linear(f"{param}/position_key", f"{tensor}.pos_key_proj", "D A") if "c2p" in terms else ()),
            *(linear(f"{param}/position_query", f"{tensor}.pos_query_proj", "D A") if "p2c" in terms else ()),
            *_convolution_entries(config),
        ),
    )


def _convolution_entries(config: EncoderConfig) -> tuple[Entry, ...]:
    if not config.conv_kernel_size:
        return ()
    param, tensor = "encoder/convolution", "deberta.encoder.conv"
    return (
        Entry(f"{param}/kernel", f"{tensor}.conv.weight", "W D D", "conv"),
        Entry(f"{param}/bias", f"{tensor}.conv.bias", "D"),
        *norm(f"{param}/norm", f"{tensor}.LayerNorm", config),
    )


def _parse_v2(values: dict[str, Any], fields: dict[str, Any], where: str) -> dict[str, Any]:
    rest = parse_shared(values, fields, where) | parse_fields(values, _CONVOLUTION, where)
    head_size = fields["hidden_size"] // max(1, fields["num_heads"])
    refuse(values, where, "attention_head_size", (head_size,), "heads share the hidden size")
    table = parse_fields(values, _RELATIVE, where)
    relative, normed = rest["attention_position"] == "disentangled", "layer_norm" in table["norm"].lower()
    if normed and not relative:
        raise UserError(f"{where}: norm_rel_ebd needs relative_attention = true, which has the table to normalize")
    buckets = max(0, table["buckets"]) if relative else 0
    return {**rest, "position_buckets": buckets, "norm_relative_embeddings": normed}


def _render_v2(config: EncoderConfig, architecture: str) -> dict[str, Any]:
    convolution = {"conv_kernel_size": config.conv_kernel_size, "conv_act": config.conv_act, "conv_groups": 1}
    return {
        **render_shared(config, architecture),
        "attention_head_size": config.head_dim,
        "position_buckets": config.position_buckets or -1,
        "norm_rel_ebd": "layer_norm" if config.norm_relative_embeddings else "none",
        "conv_kernel_size": config.conv_kernel_size,
        **(convolution if config.conv_kernel_size else {}),
    }


FAMILY_V2 = Family(
    name="deberta-v2",
    model_type="deberta-v2",
    make_keymap=_make_v2_keymap,
    architectures={"DebertaV2ForMultipleChoice": ("multiple_choice",), **name_architectures("DebertaV2")},
    fields=_V2_FIELDS,
    structure=STRUCTURE,
    constants=CONSTANTS,
    unsupported=(*ENCODER_ONLY, ("conv_groups", (1, None), "the convolution has one group")),
    training_only=TRAINING_ONLY,
    ignored_keys=IGNORED_KEYS,
    extra_fields=_parse_v2,
    extra_keys=_render_v2,
    prefix="deberta.",
    sidecar_paths=SIDECAR_PATHS,
)
