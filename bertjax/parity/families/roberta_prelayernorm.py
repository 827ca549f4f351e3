"""RoBERTa with norms before the blocks: `transformers.RobertaPreLayerNormConfig`."""

from __future__ import annotations

from bertjax.parity.cases import Case

# fmt: off
CASES = (
    Case("roberta-prelayernorm", "heads of 9, tanh GELU, pad id 4", "RobertaPreLayerNormConfig",
         dict(vocab_size=71, hidden_size=27, num_hidden_layers=3, num_attention_heads=3, intermediate_size=40,
              max_position_embeddings=24, type_vocab_size=1, hidden_act="gelu_new", layer_norm_eps=1e-5,
              pad_token_id=4),
         ("RobertaPreLayerNormForMaskedLM", "RobertaPreLayerNormForSequenceClassification", "RobertaPreLayerNormModel"),
         left_padding=True),
)
# fmt: on
