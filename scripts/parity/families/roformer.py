"""RoFormer: `transformers.RoFormerConfig`. Choices are scored from the first token: the default is the last column."""

from __future__ import annotations

from parity.cases import Case

# fmt: off
CASES = (
    Case("roformer", "embeddings projected up, heads of 10, three types, tanh GELU", "RoFormerConfig",
         dict(vocab_size=77, embedding_size=13, hidden_size=30, num_hidden_layers=3, num_attention_heads=3,
              intermediate_size=41, max_position_embeddings=37, type_vocab_size=3, hidden_act="gelu_new",
              summary_type="first", summary_use_proj=True, summary_activation="tanh", num_labels=5),
         ("RoFormerForMaskedLM", "RoFormerForSequenceClassification", "RoFormerForMultipleChoice",
          "RoFormerForTokenClassification", "RoFormerForQuestionAnswering"), seq_len=33, left_padding=True),
    Case("roformer", "rotated values, heads of 6", "RoFormerConfig",
         dict(vocab_size=51, embedding_size=9, hidden_size=18, num_hidden_layers=2, num_attention_heads=3,
              intermediate_size=23, max_position_embeddings=31, type_vocab_size=1, rotary_value=True),
         ("RoFormerForMaskedLM", "RoFormerModel"), seq_len=29),
    Case("roformer", "no projection, choices without a layer, SiLU, pad id 2", "RoFormerConfig",
         dict(vocab_size=66, hidden_size=24, num_hidden_layers=2, num_attention_heads=4, intermediate_size=17,
              max_position_embeddings=21, type_vocab_size=2, hidden_act="silu", layer_norm_eps=1e-6, pad_token_id=2,
              summary_type="first"),
         ("RoFormerForMaskedLM", "RoFormerForMultipleChoice", "RoFormerModel")),
)
# fmt: on
