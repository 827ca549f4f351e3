"""Encoder-decoders whose decoder reads the text itself, one token late: BART, mBART, MVP, PLBART, T5, mT5, UMT5.

Outputs at padding are arbitrary: the decoder of `transformers` gets no mask, and padding sees what precedes it.
"""

from __future__ import annotations

from typing import Any

from parity.cases import Case

_SIZES = dict(vocab_size=83, d_model=30, encoder_layers=2, decoder_layers=3, encoder_attention_heads=3,
              decoder_attention_heads=3, encoder_ffn_dim=31, decoder_ffn_dim=31,
              max_position_embeddings=23)  # fmt: skip
_T5 = dict(vocab_size=83, d_model=30, d_kv=7, d_ff=31, num_heads=3, num_layers=2, num_decoder_layers=3,
           relative_attention_num_buckets=8, relative_attention_max_distance=11, decoder_start_token_id=0)  # fmt: skip


def _case(family: str, name: str, classes: str, config: dict[str, Any], eos_id: int) -> Case:
    names = f"{classes}ForSequenceClassification", f"{classes}ForQuestionAnswering"
    names = names[:1] if classes == "PLBart" else names
    return Case(family, name, f"{classes}Config", config, names, compare_padding=False, eos_id=eos_id)


# fmt: off
CASES = (
    _case("bart-classifier", "another depth of the decoder, scaled embeddings", "Bart",
          _SIZES | dict(scale_embedding=True), 2),
    _case("bart-classifier", "one layer in the decoder, which starts with padding, ReLU", "Bart",
          _SIZES | dict(decoder_layers=1, activation_function="relu", decoder_start_token_id=1), 2),
    _case("mbart-classifier", "pre-norm, starts with the last token, end token 7", "MBart",
          _SIZES | dict(eos_token_id=7), 7),
    _case("mvp-classifier", "starts with padding, SiLU", "Mvp",
          _SIZES | dict(activation_function="silu", decoder_start_token_id=1), 2),
    _case("plbart-classifier", "end token 7, embeddings that are not scaled", "PLBart",
          _SIZES | dict(eos_token_id=7, scale_embedding=False), 7),
    _case("t5-classifier", "v1.0: ReLU, distances in shared buckets", "T5", _T5 | dict(initializer_factor=0.5), 1),
    _case("t5-classifier", "v1.1: gated GELU, starts with the end token", "T5",
          _T5 | dict(feed_forward_proj="gated-gelu", initializer_factor=0.3, decoder_start_token_id=1), 1),
    _case("mt5-classifier", "gated SiLU", "MT5", _T5 | dict(feed_forward_proj="gated-silu", initializer_factor=0.3), 1),
    _case("umt5-classifier", "a table of distances in every layer", "UMT5", _T5 | dict(initializer_factor=0.3), 1),
)
# fmt: on
