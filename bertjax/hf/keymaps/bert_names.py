"""BERT's names for an encoder and its heads, which RoBERTa and ELECTRA took over under prefixes of their own."""

from __future__ import annotations

from bertjax.config.model import EncoderConfig
from bertjax.hf.keymap import Entry
from bertjax.hf.keymaps.family import linear, norm, table

BUFFERS = (r"embeddings\.position_ids$", r"embeddings\.token_type_ids$")
TENSORFLOW_NORMS = (
    (r"LayerNorm\.gamma$", "LayerNorm.weight"),  # files converted from TensorFlow
    (r"LayerNorm\.beta$", "LayerNorm.bias"),
)


def embedding_entries(prefix: str, config: EncoderConfig) -> tuple[Entry, ...]:
    """Three tables and their norm, at the width of the word table."""
    param, tensor = "encoder/embeddings", f"{prefix}.embeddings"
    return (
        *table(f"{param}/word_embeddings", f"{tensor}.word_embeddings", "V E"),
        *table(f"{param}/position_embeddings", f"{tensor}.position_embeddings", "P E"),
        *table(f"{param}/token_type_embeddings", f"{tensor}.token_type_embeddings", "T E"),
        *norm(f"{param}/norm", f"{tensor}.LayerNorm", config, "E"),
    )


def layer_entries(prefix: str, config: EncoderConfig) -> tuple[Entry, ...]:
    param, tensor = "encoder/layers/{L}", f"{prefix}.encoder.layer.{{L}}"
    return (
        *linear(f"{param}/attention/query", f"{tensor}.attention.self.query", "D D"),
        *linear(f"{param}/attention/key", f"{tensor}.attention.self.key", "D D"),
        *linear(f"{param}/attention/value", f"{tensor}.attention.self.value", "D D"),
        *linear(f"{param}/attention/output", f"{tensor}.attention.output.dense", "D D"),
        *norm(f"{param}/attention/norm", f"{tensor}.attention.output.LayerNorm", config),
        *linear(f"{param}/feed_forward/intermediate", f"{tensor}.intermediate.dense", "D F"),
        *linear(f"{param}/feed_forward/output", f"{tensor}.output.dense", "F D"),
        *norm(f"{param}/feed_forward/norm", f"{tensor}.output.LayerNorm", config),
    )


def token_head_entries() -> tuple[Entry, ...]:
    """The heads on every token, which are one linear layer in all families of this kind."""
    return (
        *linear("token_head/output", "classifier", "D C", head="token_classification"),
        *linear("answer_head/output", "qa_outputs", "D 2", head="question_answering"),
    )
