"""XLM and FlauBERT: `transformers.XLMConfig` and its like."""

from __future__ import annotations

from typing import Any

from parity.cases import Case

_SIZES = dict(
    vocab_size=83, emb_dim=30, n_layers=3, n_heads=5, max_position_embeddings=27, bos_token_id=None, eos_token_id=None
)


def _case(family: str, name: str, classes: str, **config: Any) -> Case:
    heads = (
        "WithLMHeadModel",
        "ForSequenceClassification",
        "ForTokenClassification",
        "ForQuestionAnsweringSimple",
        "Model",
    )
    # Padding is zero after every layer.
    return Case(
        family,
        name,
        f"{classes}Config",
        _SIZES | config,
        tuple(f"{classes}{head}" for head in heads),
        compare_padding=False,
    )


# fmt: off
CASES = (
    _case("xlm", "ReLU, an epsilon of 1e-3, 7 languages without embeddings", "XLM", gelu_activation=False, n_langs=7,
          use_lang_emb=False, layer_norm_eps=1e-3),
    _case("flaubert", "2 heads of 12, a pad id of 5", "Flaubert", emb_dim=24, n_heads=2, n_layers=2, pad_token_id=5,
          pad_index=5),
)
# fmt: on
