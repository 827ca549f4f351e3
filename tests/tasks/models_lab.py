"""Folders of random models of `transformers` with a trained tokenizer, which both sides load."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
from parity.cases import Case
from parity.compare import random_transformers_model
from tokens_lab import trained

from bertjax.data.tokenizer_io import save_huggingface_tokenizer

_BERT = {"hidden_size": 18, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 20}
_XLNET = {"d_model": 18, "n_layer": 2, "n_head": 3, "d_inner": 20, "ff_activation": "gelu"}
# family -> (class of the config, class of the model, keys in addition to vocab_size and pad_token_id)
MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "bert": ("BertConfig", "BertForMaskedLM", _BERT),
    "roberta": ("RobertaConfig", "RobertaForMaskedLM", _BERT | {"max_position_embeddings": 130, "type_vocab_size": 1}),
    "deberta-v2": (
        "DebertaV2Config",
        "DebertaV2ForMaskedLM",
        _BERT
        | {
            "relative_attention": True,
            "pos_att_type": ["p2c", "c2p"],
            "max_relative_positions": 9,
            "type_vocab_size": 0,
        },
    ),
    "modernbert": ("ModernBertConfig", "ModernBertForMaskedLM", _BERT | {"num_attention_heads": 3, "hidden_size": 24}),
    "xlnet": ("XLNetConfig", "XLNetLMHeadModel", _XLNET),
    "gpt2": ("GPT2Config", "GPT2LMHeadModel", {"n_embd": 18, "n_layer": 2, "n_head": 3, "n_positions": 128}),
}


@contextlib.contextmanager
def quick_compilation() -> Iterator[None]:
    """Compiles without the expensive passes."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    try:
        yield
    finally:
        jax.config.update("jax_disable_most_optimizations", before)


def write_folder(family: str, folder: Path) -> tuple[Any, Any]:
    """Writes a model and tokenizer of `transformers` to `folder`, and returns both."""
    from transformers import AutoTokenizer

    tokenizer = trained(family)
    config_class, model_class, keys = MODELS[family]
    special = {"pad_token_id": tokenizer.pad_id, "bos_token_id": None, "eos_token_id": None}
    case = Case(
        family, "with a tokenizer", config_class, {"vocab_size": tokenizer.size, **special, **keys}, (model_class,)
    )
    model = random_transformers_model(case, model_class)
    model.save_pretrained(folder)
    save_huggingface_tokenizer(tokenizer, folder, max_length=120)
    return model, AutoTokenizer.from_pretrained(folder)
