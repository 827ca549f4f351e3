"""Encoders of T5, mT5 and UMT5: `transformers.T5Config` and its like, alone."""

from __future__ import annotations

from parity.cases import Case

_SIZES = dict(vocab_size=71, d_model=30, d_kv=7, d_ff=31, num_heads=3, num_layers=3,
              relative_attention_num_buckets=8, relative_attention_max_distance=11)  # fmt: skip

# fmt: off
CASES = (
    Case("t5-encoder", "v1.0: ReLU, heads of 7, distances in shared buckets", "T5Config",
         _SIZES | dict(initializer_factor=0.5), ("T5EncoderModel", "T5ForTokenClassification"), left_padding=True),
    Case("t5-encoder", "v1.1: gated GELU, another epsilon", "T5Config",
         _SIZES | dict(feed_forward_proj="gated-gelu", layer_norm_epsilon=1e-3, initializer_factor=0.3),
         ("T5EncoderModel",)),
    Case("mt5-encoder", "gated SiLU", "MT5Config",
         _SIZES | dict(feed_forward_proj="gated-silu", initializer_factor=0.3),
         ("MT5EncoderModel", "MT5ForTokenClassification")),
    Case("umt5-encoder", "a table of distances in every layer", "UMT5Config",
         _SIZES | dict(initializer_factor=0.3), ("UMT5EncoderModel", "UMT5ForTokenClassification"), left_padding=True),
)
# fmt: on
