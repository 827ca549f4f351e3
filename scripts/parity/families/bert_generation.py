"""BertGeneration: `transformers.BertGenerationConfig`."""

from __future__ import annotations

from parity.cases import Case

# fmt: off
CASES = (
    Case("bert-generation", "three layers, SiLU", "BertGenerationConfig",
         dict(vocab_size=66, hidden_size=30, num_hidden_layers=3, num_attention_heads=3, intermediate_size=50,
              max_position_embeddings=31, hidden_act="silu", layer_norm_eps=1e-6),
         ("BertGenerationDecoder", "BertGenerationEncoder"), seq_len=29),
)
# fmt: on
