"""RemBERT: `transformers.RemBertConfig`."""

from __future__ import annotations

from parity.cases import Case

# fmt: off
CASES = (
    Case("rembert", "tables of 13 and 37, heads of 9, three types, tanh GELU", "RemBertConfig",
         dict(vocab_size=77, input_embedding_size=13, output_embedding_size=37, hidden_size=27, num_hidden_layers=3,
              num_attention_heads=3, intermediate_size=41, max_position_embeddings=31, type_vocab_size=3,
              hidden_act="gelu_new", hidden_dropout_prob=0.2, bos_token_id=None, eos_token_id=None, num_labels=5),
         ("RemBertForMaskedLM", "RemBertForSequenceClassification", "RemBertForMultipleChoice",
          "RemBertForTokenClassification"), seq_len=29),
    Case("rembert", "tables as wide as the layers, SiLU, pad id 2", "RemBertConfig",
         dict(vocab_size=66, input_embedding_size=24, output_embedding_size=24, hidden_size=24, num_hidden_layers=2,
              num_attention_heads=4, intermediate_size=17, max_position_embeddings=21, type_vocab_size=2,
              hidden_act="silu", layer_norm_eps=1e-6, pad_token_id=2, bos_token_id=None, eos_token_id=None),
         ("RemBertForMaskedLM", "RemBertForQuestionAnswering", "RemBertModel")),
)
# fmt: on
