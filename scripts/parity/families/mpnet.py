"""MPNet: `transformers.MPNetConfig`. Sequences longer than the distances with a bucket of their own."""

from __future__ import annotations

from parity.cases import Case

# fmt: off
CASES = (
    Case("mpnet", "heads of 10, distances in shared buckets, tanh GELU below the erf GELU of the head", "MPNetConfig",
         dict(vocab_size=83, hidden_size=30, num_hidden_layers=3, num_attention_heads=3, intermediate_size=41,
              max_position_embeddings=180, hidden_act="gelu_new", layer_norm_eps=1e-5),
         ("MPNetForMaskedLM", "MPNetForSequenceClassification", "MPNetForMultipleChoice", "MPNetForTokenClassification",
          "MPNetForQuestionAnswering", "MPNetModel"), seq_len=170, left_padding=True),
)
# fmt: on
