"""SqueezeBERT: `transformers.SqueezeBertConfig`."""

from __future__ import annotations

from parity.cases import Case

# fmt: off
CASES = (
    Case("squeezebert", "3 groups of queries, 2 of the feed-forward block, three types, SiLU", "SqueezeBertConfig",
         dict(vocab_size=77, hidden_size=36, embedding_size=36, num_hidden_layers=3, num_attention_heads=4,
              intermediate_size=50, max_position_embeddings=31, type_vocab_size=3, hidden_act="silu", q_groups=3,
              k_groups=3, v_groups=3, intermediate_groups=2, output_groups=2, num_labels=5),
         ("SqueezeBertForMaskedLM", "SqueezeBertForSequenceClassification", "SqueezeBertForMultipleChoice",
          "SqueezeBertForTokenClassification"), seq_len=29),
    Case("squeezebert", "one group of queries, 5 of the feed-forward block", "SqueezeBertConfig",
         dict(vocab_size=66, hidden_size=20, embedding_size=20, num_hidden_layers=2, num_attention_heads=2,
              intermediate_size=35, max_position_embeddings=21, layer_norm_eps=1e-6, q_groups=1, k_groups=1,
              v_groups=1, intermediate_groups=5, output_groups=5),
         ("SqueezeBertForQuestionAnswering", "SqueezeBertModel")),
)
# fmt: on
