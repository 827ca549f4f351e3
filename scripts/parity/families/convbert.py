"""ConvBERT: `transformers.ConvBertConfig`."""

from __future__ import annotations

from parity.cases import Case

# fmt: off
CASES = (
    Case("convbert", "embeddings projected up, 3 heads of 5 and 5 neighbors, 2 groups, three types, SiLU",
         "ConvBertConfig",
         dict(vocab_size=77, embedding_size=13, hidden_size=30, num_hidden_layers=3, num_attention_heads=6,
              intermediate_size=50, max_position_embeddings=31, type_vocab_size=3, hidden_act="silu",
              conv_kernel_size=5, num_groups=2, num_labels=5),
         ("ConvBertForMaskedLM", "ConvBertForSequenceClassification", "ConvBertForTokenClassification"),
         seq_len=29, reads_padding=True),
    Case("convbert", "a third of 4 heads, 9 neighbors of 8 tokens, a summary of all", "ConvBertConfig",
         dict(vocab_size=66, embedding_size=20, hidden_size=20, num_hidden_layers=2, num_attention_heads=4,
              intermediate_size=35, max_position_embeddings=21, layer_norm_eps=1e-6, head_ratio=3, pad_token_id=2,
              summary_type="mean"),
         ("ConvBertForMultipleChoice", "ConvBertForQuestionAnswering", "ConvBertModel"), seq_len=8,
         reads_padding=True),
    Case("convbert", "a summary with a layer of its own, one head", "ConvBertConfig",
         dict(vocab_size=51, embedding_size=40, hidden_size=10, num_hidden_layers=1, num_attention_heads=1,
              intermediate_size=40, max_position_embeddings=20, type_vocab_size=1, conv_kernel_size=3,
              summary_type="first", summary_use_proj=True, summary_activation="relu", summary_last_dropout=0.2),
         ("ConvBertForMultipleChoice",), reads_padding=True),
)
# fmt: on
