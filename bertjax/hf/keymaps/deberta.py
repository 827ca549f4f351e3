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
from bertjax.hf.keymaps.bert_names import BUFFERS, token_head_entries
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
SIDECAR = (r"decoder_positions/.*", r"rtd_head/.*", r"span_head/.*", r"pair_head/.*", r"pooler/.*")
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


def make_keymap(config: EncoderConfig) -> KeyMap:
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
    """All names, given those that the versions do not share."""
    predictions = "cls.predictions"
    return KeyMap(
        entries=(
            *_embedding_entries(config),
            *_layer_entries(config),
            *version_entries,
            *linear("mlm_head/dense", f"{predictions}.transform.dense", "D E", head="mlm"),
            *norm("mlm_head/norm", f"{predictions}.transform.LayerNorm", config, "E", head="mlm"),
            Entry("mlm_head/bias", f"{predictions}.bias", "V", head="mlm"),
            *linear("sequence_head/dense", "pooler.dense", "D D", head="sequence_classification"),
            *linear("sequence_head/output", "classifier", "D C", head="sequence_classification"),
            *token_head_entries(),
        ),
        sizes=sizes(config) | {"R": num_relative_positions(config), "W": config.conv_kernel_size},
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


def num_relative_positions(config: EncoderConfig) -> int:
    """Rows of the table of distances."""
    return 2 * (config.position_buckets or config.max_distance)


def _embedding_entries(config: EncoderConfig) -> tuple[Entry, ...]:
    param, tensor = "encoder/embeddings", "deberta.embeddings"
    relative = config.attention_position == "disentangled"
    learned, types = config.position_embedding == "learned", config.type_vocab_size > 0
    projection, norms = f"{param}/projection", relative and config.norm_relative_embeddings
    return (
        *table(f"{param}/word_embeddings", f"{tensor}.word_embeddings", "V E"),
        *(table(f"{param}/position_embeddings", f"{tensor}.position_embeddings", "P E") if learned else ()),
        *(table(f"{param}/token_type_embeddings", f"{tensor}.token_type_embeddings", "T E") if types else ()),
        *(linear(projection, f"{tensor}.embed_proj", "E D", bias=False) if config.embedding_size else ()),
        *norm(f"{param}/norm", f"{tensor}.LayerNorm", config),
        *(table("encoder/relative", "deberta.encoder.rel_embeddings", "R D") if relative else ()),
        *(norm("encoder/relative/norm", "deberta.encoder.LayerNorm", config) if norms else ()),
    )


def _layer_entries(config: EncoderConfig) -> tuple[Entry, ...]:
    param, tensor = "encoder/layers/{L}", "deberta.encoder.layer.{L}"
    return (
        *linear(f"{param}/attention/output", f"{tensor}.attention.output.dense", "A D"),
        *norm(f"{param}/attention/norm", f"{tensor}.attention.output.LayerNorm", config),
        *linear(f"{param}/feed_forward/intermediate", f"{tensor}.intermediate.dense", "D F"),
        *linear(f"{param}/feed_forward/output", f"{tensor}.output.dense", "F D"),
        *norm(f"{param}/feed_forward/norm", f"{tensor}.output.LayerNorm", config),
    )


def from_hf_config(values: dict[str, Any], where: str = "config.json") -> EncoderConfig:
    """Our config from a DebertaConfig; raises `UserError` for a key that would change the maths otherwise."""
    refuse(values, where, "talking_head", (False, None), "heads are not mixed")
    return EncoderConfig(**parse_shared_fields(values, FIELDS, where), attention_bias="query_value")


def parse_shared_fields(values: dict[str, Any], fields: Fields, where: str) -> dict[str, Any]:
    """The arguments of `EncoderConfig` that both versions say alike."""
    refuse_decoders(values, where)
    read = parse_fields(values, fields, where)
    refuse(values, where, "pooler_hidden_size", (read["hidden_size"], None), "the pooler is as wide as the encoder")
    flags = parse_fields(values, _FLAGS, where)
    width = flags["width"] or read["hidden_size"]
    terms = _read_terms(values.get("pos_att_type"), where)
    if terms and not flags["relative"]:
        raise UserError(f"{where}: pos_att_type needs relative_attention = true, else it only changes the scale")
    return read | {
        "embedding_size": None if width == read["hidden_size"] else width,
        "embedding_projection_bias": False,
        "embedding_norm": "after",
        "zero_pad_embeddings": True,
        "position_embedding": "learned" if flags["biased"] else "none",
        "attention_position": "disentangled" if flags["relative"] else "none",
        "pos_att_type": terms,
        "max_relative_positions": flags["distance"] if flags["distance"] >= 1 else None,
        "hidden_act": parse_activation(values, where),
        "classifier_dense": "own",
        "classifier_act": parse_activation(values, where, "pooler_hidden_act"),
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


def to_hf_config(config: EncoderConfig, architecture: str) -> dict[str, Any]:
    return render_shared_config(config, FIELDS)


def render_shared_config(config: EncoderConfig, fields: Fields) -> dict[str, Any]:
    """What both versions write alike; their defaults, where a key were left out, make a BERT."""
    relative = config.attention_position == "disentangled"
    far = config.max_relative_positions
    return {
        **{key: value for key, value in render_fields(config, fields).items() if value is not None},
        **({} if config.embedding_size is None else {"embedding_size": config.embedding_size}),
        "hidden_act": config.hidden_act,
        "relative_attention": relative,
        "pos_att_type": list(config.pos_att_type) if relative else None,
        "max_relative_positions": -1 if far in (None, config.max_position_embeddings) else far,
        "position_biased_input": config.position_embedding == "learned",
        "pooler_hidden_size": config.hidden_size,
        "pooler_hidden_act": config.classifier_act,
        "pooler_dropout": 0.0,
        "legacy": True,
        "tie_word_embeddings": True,
    }


FAMILY = Family(
    name="deberta",
    model_type="deberta",
    make_keymap=make_keymap,
    architectures=architectures("Deberta"),
    from_hf_config=from_hf_config,
    to_hf_config=to_hf_config,
    prefix="deberta.",
    sidecar_paths=SIDECAR,
)
