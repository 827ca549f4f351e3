"""RoBERTa and DistilRoBERTa under Hugging Face's names (transformers: models/roberta/modeling_roberta.py).

Their position table has `pad_token_id + 1` rows before the first position, and `max_position_embeddings` counts them.
"""

from __future__ import annotations

from typing import Any

from bertjax.config.model import EncoderConfig
from bertjax.errors import UserError
from bertjax.hf.keymap import Entry, KeyMap
from bertjax.hf.keymaps.bert_names import BUFFERS, embedding_entries, layer_entries, token_head_entries
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
)

ARCHITECTURES: dict[str, tuple[str, ...]] = {
    "RobertaForSequenceClassification": ("sequence_classification",),
    "RobertaForTokenClassification": ("token_classification",),
    "RobertaForQuestionAnswering": ("question_answering",),
    "RobertaForMaskedLM": ("mlm",),
    "RobertaModel": (),
}
# RobertaConfig's defaults are BERT's in part, and no published RoBERTa's: every published config.json has these keys.
FIELDS: Fields = {
    "vocab_size": ("vocab_size", 50265, int),
    "hidden_size": ("hidden_size", 768, int),
    "num_hidden_layers": ("num_layers", 12, int),
    "num_attention_heads": ("num_heads", 12, int),
    "intermediate_size": ("intermediate_size", 3072, int),
    "max_position_embeddings": ("max_position_embeddings", 512, int),
    "type_vocab_size": ("type_vocab_size", 2, int),
    "hidden_dropout_prob": ("hidden_dropout", 0.1, float),
    "attention_probs_dropout_prob": ("attention_dropout", 0.1, float),
    "classifier_dropout": ("classifier_dropout", None, float),
    "layer_norm_eps": ("layer_norm_eps", 1e-12, float),
    "initializer_range": ("initializer_range", 0.02, float),
    "pad_token_id": ("pad_token_id", 1, int),
}


def make_keymap(config: EncoderConfig) -> KeyMap:
    return KeyMap(
        entries=(
            *embedding_entries("roberta", config),
            *layer_entries("roberta", config),
            *head_entries("roberta", config),
            *token_head_entries(),
        ),
        sizes=sizes(config),
        renames=((r"^(embeddings|encoder|pooler)\.", r"roberta.\1."),),  # RobertaModel's files have no prefix
        ignored=BUFFERS,
        ties=ties("roberta"),
        backbone=r"^(roberta|lm_head)\.",
    )


def head_entries(prefix: str, config: EncoderConfig) -> tuple[Entry, ...]:
    """Pooler, masked-word head and classifier."""
    return (
        *linear("pooler/dense", f"{prefix}.pooler.dense", "D D", head="pooler"),
        *linear("mlm_head/dense", "lm_head.dense", "D D", head="mlm"),
        *norm("mlm_head/norm", "lm_head.layer_norm", config, head="mlm"),
        Entry("mlm_head/bias", "lm_head.bias", "V", head="mlm"),
        *linear("sequence_head/dense", "classifier.dense", "D D", head="sequence_classification"),
        *linear("sequence_head/output", "classifier.out_proj", "D C", head="sequence_classification"),
    )


def ties(prefix: str) -> dict[str, str]:
    """The masked-word head's copies of what lies elsewhere."""
    return {
        "lm_head.decoder.weight": f"{prefix}.embeddings.word_embeddings.weight",
        "lm_head.decoder.bias": "lm_head.bias",
    }


def from_hf_config(values: dict[str, Any], where: str = "config.json") -> EncoderConfig:
    """Our config from a RobertaConfig; raises `UserError` for a key that would change the maths otherwise."""
    refuse(values, where, "position_embedding_type", ("absolute", None), "only absolute positions are supported")
    refuse_decoders(values, where)
    fields = parse_fields(values, FIELDS, where)
    offset, rows = fields["pad_token_id"] + 1, fields.pop("max_position_embeddings")
    if not 1 <= offset < rows:
        raise UserError(
            f"{where}: positions begin behind row pad_token_id = {offset - 1}, "
            f"but max_position_embeddings = {rows} rows leave none for text"
        )
    return EncoderConfig(
        **fields,
        hidden_act=parse_activation(values, where),
        mlm_act="gelu",  # whatever the other layers have (RobertaLMHead)
        max_position_embeddings=rows - offset,
        position_offset=offset,
        classifier_dense="own",
        initializer="normal",
    )


def to_hf_config(config: EncoderConfig, architecture: str) -> dict[str, Any]:
    """The rows before the first position are part of what Hugging Face calls the most positions."""
    return {
        "hidden_act": config.hidden_act,
        "tie_word_embeddings": True,
        "is_decoder": False,
        "add_cross_attention": False,
        "use_cache": True,
        **render_fields(config, FIELDS),
        "max_position_embeddings": config.position_offset + config.max_position_embeddings,
    }


FAMILY = Family(
    name="roberta",
    model_type="roberta",
    make_keymap=make_keymap,
    architectures=ARCHITECTURES,
    from_hf_config=from_hf_config,
    to_hf_config=to_hf_config,
    prefix="roberta.",
)
