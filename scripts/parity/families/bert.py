"""BERT: `transformers.BertConfig`. SpanBERT and FinBERT are BERT models of other training text."""

from __future__ import annotations

from parity.cases import Case

# fmt: off
CASES = (
    Case("bert", "heads of 20, narrow feed-forward, three types, tanh GELU", "BertConfig",
         dict(vocab_size=101, hidden_size=60, num_hidden_layers=3, num_attention_heads=3, intermediate_size=44,
              max_position_embeddings=19, type_vocab_size=3, hidden_act="gelu_new"),
         ("BertForPreTraining", "BertForSequenceClassification", "BertForMultipleChoice", "BertForTokenClassification",
          "BertForQuestionAnswering")),
    Case("bert", "one layer, heads of 7, another epsilon and pad id", "BertConfig",
         dict(vocab_size=64, hidden_size=35, num_hidden_layers=1, num_attention_heads=5, intermediate_size=97,
              max_position_embeddings=33, type_vocab_size=2, hidden_act="gelu", layer_norm_eps=1e-5, pad_token_id=3),
         ("BertForPreTraining", "BertForMaskedLM", "BertForNextSentencePrediction", "BertModel"), left_padding=True),
    Case("bert", "five layers of one head, one type, ReLU", "BertConfig",
         dict(vocab_size=130, hidden_size=24, num_hidden_layers=5, num_attention_heads=1, intermediate_size=50,
              max_position_embeddings=16, type_vocab_size=1, hidden_act="relu"),
         ("BertForPreTraining",)),
)
# fmt: on
