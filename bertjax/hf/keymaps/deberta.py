"""DeBERTa v1 under Hugging Face's names (transformers: models/deberta/modeling_deberta.py), and what v2 shares with it.

The masked-word head is written in the layout that transformers calls legacy, its default: there the word table is tied
as in BERT. The other layout, Microsoft's own, is read as well; transformers 4 overwrites its dense layer with the word
table. Microsoft's files may also hold the position table of the enhanced decoder, under the name of the embeddings'
own: transformers drops it, and so do we, for without a key in config.json nothing says what it is for.
"""

from __future__ import annotations

from typing import Any

from bertjax.config.model import EncoderConfig
from bertjax.errors import UserError
from bertjax.hf.keymap import Entry, KeyMap
from bertjax.hf.keymaps.bert_names import BUFFERS, score_entries
from bertjax.hf.keymaps.family import (
    Family,
    Fields,
    linear,
    norm,
    read_activation,
    read_config,
    refuse,
    refuse_decoders,
    render_config,
    sizes,
    table,
)

FIELDS: Fields = {
    "vocab_size": ("vocab_size", 50265, int),
    "hidden_size": ("hidden_size", 768, int),
    "num_hidden_layers": ("num_layers", 12, int),
    "num_attention_heads": ("num_heads", 12, int),
    "intermediate_size": ("intermediate_size", 3072, int),
    "max_position_embeddings": ("max_position_embeddings", 512, int),
    "type_vocab_size": ("type_vocab_size", 0, int),
    "hidden_dropout_prob": ("hidden_dropout", 0.1, float),
    "attention_probs_dropout_prob": ("attention_dropout", 0.1, float),
    "cls_dropout": ("classifier_dropout", None, float),
    "layer_norm_eps": ("layer_norm_eps", 1e-7, float),
    "initializer_range": ("initializer_range", 0.02, float),
    "pad_token_id": ("pad_token_id", 0, int),
}
SIDE = (r"decoder_positions/.*", r"rtd_head/.*", r"span_head/.*", r"pair_head/.*", r"pooler/.*")
_TERMS = ("c2p", "p2c")


def architectures(prefix: str) -> dict[str, tuple[str, ...]]:
    """The classes of one version."""
    return {
        f"{prefix}ForSequenceClassification": ("sequence_classification",),
        f"{prefix}ForTokenClassification": ("token_classification",),
        f"{prefix}ForQuestionAnswering": ("question_answering",),
        f"{prefix}ForMaskedLM": ("mlm",),
        f"{prefix}Model": (),
    }


def keymap(config: EncoderConfig) -> KeyMap:
    ours, theirs = "encoder/layers/{L}/attention", "deberta.encoder.layer.{L}.attention.self"
    projections = tuple(f"{ours}/{name}" for name in ("query", "key", "value"))
    terms = config.relative_terms if config.attention_position == "disentangled" else ()
    return versioned_keymap(
        config,
        (
            *linear(projections, f"{theirs}.in_proj", "D A", bias=False, transform="interleave_heads"),
            Entry(f"{ours}/query/bias", f"{theirs}.q_bias", "A"),
            Entry(f"{ours}/value/bias", f"{theirs}.v_bias", "A"),
            *(linear(f"{ours}/position_key", f"{theirs}.pos_proj", "D A", bias=False) if "c2p" in terms else ()),
            *(linear(f"{ours}/position_query", f"{theirs}.pos_q_proj", "D A") if "p2c" in terms else ()),
        ),
    )


def versioned_keymap(config: EncoderConfig, of_version: tuple[Entry, ...]) -> KeyMap:
    """All names, given those that the versions do not share."""
    predictions = "cls.predictions"
    return KeyMap(
        entries=(
            *_embedding_entries(config),
            *_layer_entries(config),
            *of_version,
            *linear("mlm_head/dense", f"{predictions}.transform.dense", "D E", head="mlm"),
            *norm("mlm_head/norm", f"{predictions}.transform.LayerNorm", config, "E", head="mlm"),
            Entry("mlm_head/bias", f"{predictions}.bias", "V", head="mlm"),
            *linear("sequence_head/dense", "pooler.dense", "D D", head="sequence_classification"),
            *linear("sequence_head/output", "classifier", "D C", head="sequence_classification"),
            *score_entries(),
        ),
        sizes=sizes(config) | {"R": table_size(config), "W": config.conv_kernel_size},
        renames=(
            (r"^(embeddings|encoder)\.", r"deberta.\1."),  # the bare model's files have no prefix
            (r"^lm_predictions\.lm_head\.(dense|LayerNorm)\.", rf"{predictions}.transform.\1."),
            (r"^lm_predictions\.lm_head\.bias$", f"{predictions}.bias"),
        ),
        ignored=(*BUFFERS, *(() if config.position_embedding == "learned" else (r"position_embeddings\.weight$",))),
        ties={
            f"{predictions}.decoder.weight": "deberta.embeddings.word_embeddings.weight",
            f"{predictions}.decoder.bias": f"{predictions}.bias",
        },
        backbone=r"^(deberta|cls)\.",
    )


def table_size(config: EncoderConfig) -> int:
    """Rows of the table of distances."""
    return 2 * (config.relative_buckets or config.max_distance)


def _embedding_entries(config: EncoderConfig) -> tuple[Entry, ...]:
    ours, theirs = "encoder/embeddings", "deberta.embeddings"
    relative = config.attention_position == "disentangled"
    learned, types = config.position_embedding == "learned", config.type_vocab_size > 0
    projection, norms = f"{ours}/projection", relative and config.relative_norm
    return (
        *table(f"{ours}/word_embeddings", f"{theirs}.word_embeddings", "V E"),
        *(table(f"{ours}/position_embeddings", f"{theirs}.position_embeddings", "P E") if learned else ()),
        *(table(f"{ours}/token_type_embeddings", f"{theirs}.token_type_embeddings", "T E") if types else ()),
        *(linear(projection, f"{theirs}.embed_proj", "E D", bias=False) if config.embedding_size else ()),
        *norm(f"{ours}/norm", f"{theirs}.LayerNorm", config),
        *(table("encoder/relative", "deberta.encoder.rel_embeddings", "R D") if relative else ()),
        *(norm("encoder/relative/norm", "deberta.encoder.LayerNorm", config) if norms else ()),
    )


def _layer_entries(config: EncoderConfig) -> tuple[Entry, ...]:
    ours, theirs = "encoder/layers/{L}", "deberta.encoder.layer.{L}"
    return (
        *linear(f"{ours}/attention/output", f"{theirs}.attention.output.dense", "A D"),
        *norm(f"{ours}/attention/norm", f"{theirs}.attention.output.LayerNorm", config),
        *linear(f"{ours}/feed_forward/intermediate", f"{theirs}.intermediate.dense", "D F"),
        *linear(f"{ours}/feed_forward/output", f"{theirs}.output.dense", "F D"),
        *norm(f"{ours}/feed_forward/norm", f"{theirs}.output.LayerNorm", config),
    )


def config_from_huggingface(values: dict[str, Any], where: str = "config.json") -> EncoderConfig:
    """Our config from a DebertaConfig; raises `UserError` for a key that would change the maths otherwise."""
    refuse(values, where, "talking_head", (False, None), "heads are not mixed")
    return EncoderConfig(**versioned_fields(values, FIELDS, where), attention_bias="query_value")


def versioned_fields(values: dict[str, Any], fields: Fields, where: str) -> dict[str, Any]:
    """The arguments of `EncoderConfig` that both versions say alike."""
    refuse_decoders(values, where)
    read = read_config(values, fields, where)
    refuse(values, where, "pooler_hidden_size", (read["hidden_size"], None), "the pooler is as wide as the encoder")
    flags = read_config(values, _FLAGS, where)
    width = flags["width"] or read["hidden_size"]
    terms = _read_terms(values.get("pos_att_type"), where)
    if terms and not flags["relative"]:
        raise UserError(f"{where}: pos_att_type needs relative_attention = true, else it only changes the scale")
    return read | {
        "embedding_size": None if width == read["hidden_size"] else width,
        "embedding_projection_bias": False,
        "embedding_norm": "after",
        "mask_embeddings": True,
        "position_embedding": "learned" if flags["biased"] else "none",
        "attention_position": "disentangled" if flags["relative"] else "none",
        "relative_terms": terms,
        "relative_max_distance": flags["distance"] if flags["distance"] >= 1 else None,
        "hidden_act": read_activation(values, where),
        "summary_dense": "own",
        "summary_act": read_activation(values, where, "pooler_hidden_act"),
        "initializer": "normal",
        "rtd_head": "summary",
    }


_FLAGS: Fields = {
    "relative_attention": ("relative", False, bool),
    "position_biased_input": ("biased", True, bool),
    "max_relative_positions": ("distance", -1, int),
    "embedding_size": ("width", None, int),
}


def _read_terms(value: Any, where: str) -> tuple[str, ...]:
    """`pos_att_type`: a list, or one string with bars between."""
    terms = [term.strip() for term in value.lower().split("|")] if isinstance(value, str) else value or []
    if not isinstance(terms, list) or not all(term in _TERMS for term in terms):
        raise UserError(f"{where}: pos_att_type = {value!r} is not supported: known are {', '.join(_TERMS)}")
    return tuple(terms)


def config_to_huggingface(config: EncoderConfig, architecture: str) -> dict[str, Any]:
    return versioned_config(config, FIELDS)


def versioned_config(config: EncoderConfig, fields: Fields) -> dict[str, Any]:
    """What both versions write alike; their defaults, where a key were left out, make a BERT."""
    relative = config.attention_position == "disentangled"
    far = config.relative_max_distance
    return {
        **{key: value for key, value in render_config(config, fields).items() if value is not None},
        **({} if config.embedding_size is None else {"embedding_size": config.embedding_size}),
        "hidden_act": config.hidden_act,
        "relative_attention": relative,
        "pos_att_type": list(config.relative_terms) if relative else None,
        "max_relative_positions": -1 if far in (None, config.max_position_embeddings) else far,
        "position_biased_input": config.position_embedding == "learned",
        "pooler_hidden_size": config.hidden_size,
        "pooler_hidden_act": config.summary_act,
        "pooler_dropout": 0.0,
        "legacy": True,
        "tie_word_embeddings": True,
    }


FAMILY = Family(
    name="deberta",
    model_type="deberta",
    keymap=keymap,
    architectures=architectures("Deberta"),
    config_from_huggingface=config_from_huggingface,
    config_to_huggingface=config_to_huggingface,
    prefix="deberta.",
    side=SIDE,
)
