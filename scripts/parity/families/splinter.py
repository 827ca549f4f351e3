"""Splinter: `transformers.SplinterConfig`. The scores of padding are the lowest float32 there."""

from __future__ import annotations

from parity.cases import Case

# fmt: off
CASES = (
    Case("splinter", "one of 7 tokens asks, three types, SiLU", "SplinterConfig",
         dict(vocab_size=7, hidden_size=30, num_hidden_layers=2, num_attention_heads=3, intermediate_size=50,
              max_position_embeddings=31, type_vocab_size=3, hidden_act="silu", question_token_id=4),
         ("SplinterForQuestionAnswering",), seq_len=29, compare_padding=False),
    Case("splinter", "no token asks", "SplinterConfig",
         dict(vocab_size=66, hidden_size=20, num_hidden_layers=2, num_attention_heads=2, intermediate_size=35,
              max_position_embeddings=21, layer_norm_eps=1e-6),
         ("SplinterForQuestionAnswering", "SplinterModel"), compare_padding=False),
)
# fmt: on
