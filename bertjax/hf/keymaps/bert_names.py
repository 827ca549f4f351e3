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
    ours, theirs = "encoder/embeddings", f"{prefix}.embeddings"
    return (
        *table(f"{ours}/word_embeddings", f"{theirs}.word_embeddings", "V E"),
        *table(f"{ours}/position_embeddings", f"{theirs}.position_embeddings", "P E"),
        *table(f"{ours}/token_type_embeddings", f"{theirs}.token_type_embeddings", "T E"),
        *norm(f"{ours}/norm", f"{theirs}.LayerNorm", config, "E"),
    )


def layer_entries(prefix: str, config: EncoderConfig) -> tuple[Entry, ...]:
    ours, theirs = "encoder/layers/{L}", f"{prefix}.encoder.layer.{{L}}"
    return (
        *linear(f"{ours}/attention/query", f"{theirs}.attention.self.query", "D D"),
        *linear(f"{ours}/attention/key", f"{theirs}.attention.self.key", "D D"),
        *linear(f"{ours}/attention/value", f"{theirs}.attention.self.value", "D D"),
        *linear(f"{ours}/attention/output", f"{theirs}.attention.output.dense", "D D"),
        *norm(f"{ours}/attention/norm", f"{theirs}.attention.output.LayerNorm", config),
        *linear(f"{ours}/feed_forward/intermediate", f"{theirs}.intermediate.dense", "D F"),
        *linear(f"{ours}/feed_forward/output", f"{theirs}.output.dense", "F D"),
        *norm(f"{ours}/feed_forward/norm", f"{theirs}.output.LayerNorm", config),
    )


def score_entries() -> tuple[Entry, ...]:
    """The heads on every token, which are one linear layer in all families of this kind."""
    return (
        *linear("token_head/output", "classifier", "D C", head="token_classification"),
        *linear("answer_head/output", "qa_outputs", "D 2", head="question_answering"),
    )
