"""BERT and RoBERTa with rotary positions: `NomicBertConfig`, `JinaEmbeddingsV3Config`, `GteConfig`."""

from __future__ import annotations

from parity.cases import Case

_ROPE = {"rope_type": "default", "rope_theta": 70.0}

# fmt: off
CASES = (
    Case("nomic_bert", "heads of 6 that are not a share of the width, three types, tanh GELU", "NomicBertConfig",
         dict(vocab_size=77, hidden_size=32, num_hidden_layers=3, num_attention_heads=3, intermediate_size=41,
              head_dim=6, max_position_embeddings=40, type_vocab_size=3, hidden_act="gelu_new", layer_norm_eps=1e-5,
              rope_parameters=_ROPE, pad_token_id=2, num_labels=3),
         ("NomicBertForMaskedLM", "NomicBertForSequenceClassification", "NomicBertForTokenClassification",
          "NomicBertModel"), seq_len=33, left_padding=True),
    Case("jina_embeddings_v3", "heads of 10, tanh GELU below the erf GELU of the head", "JinaEmbeddingsV3Config",
         dict(vocab_size=83, hidden_size=30, num_hidden_layers=3, num_attention_heads=3, intermediate_size=41,
              max_position_embeddings=50, type_vocab_size=2, hidden_act="gelu_new", rope_parameters=_ROPE),
         ("JinaEmbeddingsV3ForMaskedLM", "JinaEmbeddingsV3ForSequenceClassification",
          "JinaEmbeddingsV3ForTokenClassification", "JinaEmbeddingsV3ForQuestionAnswering", "JinaEmbeddingsV3Model"),
         seq_len=33, left_padding=True),
    Case("gte", "heads of 10, two types, tanh GELU below the erf GELU of the head", "GteConfig",
         dict(vocab_size=71, hidden_size=30, num_hidden_layers=3, num_attention_heads=3, intermediate_size=37,
              max_position_embeddings=50, type_vocab_size=2, hidden_act="gelu_new", rope_parameters=_ROPE),
         ("GteForMaskedLM", "GteForSequenceClassification", "GteForTokenClassification", "GteModel"), seq_len=33,
         left_padding=True),
    Case("gte", "no types, dynamic rotation within its first length", "GteConfig",
         dict(vocab_size=71, hidden_size=20, num_hidden_layers=2, num_attention_heads=2, intermediate_size=37,
              max_position_embeddings=50, type_vocab_size=0, rope_parameters={**_ROPE, "rope_type": "dynamic",
              "factor": 2.0}),
         ("GteForMaskedLM",)),
)
# fmt: on
