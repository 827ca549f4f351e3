"""MobileBERT: `transformers.MobileBertConfig`."""

from __future__ import annotations

from parity.cases import Case

# There the last token reads the row of padding next to it, and padding reads that token; here both read zeros.
# fmt: off
CASES = (
    Case("mobilebert", "three feed-forward blocks, narrow queries and keys, three types", "MobileBertConfig",
         dict(vocab_size=77, hidden_size=36, embedding_size=14, num_hidden_layers=3, num_attention_heads=4,
              intermediate_size=50, intra_bottleneck_size=20, num_feedforward_networks=3, max_position_embeddings=31,
              type_vocab_size=3, num_labels=5),
         ("MobileBertForPreTraining", "MobileBertForMaskedLM", "MobileBertForSequenceClassification",
          "MobileBertForMultipleChoice", "MobileBertForTokenClassification"), seq_len=29,
         zero_pad=True, compare_padding=False),
    Case("mobilebert", "one feed-forward block, narrow attention, GELU", "MobileBertConfig",
         dict(vocab_size=66, hidden_size=20, embedding_size=18, num_hidden_layers=2, num_attention_heads=2,
              intermediate_size=35, intra_bottleneck_size=10, num_feedforward_networks=1, max_position_embeddings=21,
              use_bottleneck_attention=True, key_query_shared_bottleneck=False, hidden_act="gelu"),
         ("MobileBertForQuestionAnswering", "MobileBertModel"),
         zero_pad=True, compare_padding=False),
    Case("mobilebert", "a pooler without a layer", "MobileBertConfig",
         dict(vocab_size=55, hidden_size=24, embedding_size=7, num_hidden_layers=1, num_attention_heads=3,
              intermediate_size=20, intra_bottleneck_size=12, num_feedforward_networks=2, max_position_embeddings=20,
              classifier_activation=False),
         ("MobileBertForNextSentencePrediction", "MobileBertForSequenceClassification"),
         zero_pad=True, compare_padding=False),
)
# fmt: on
