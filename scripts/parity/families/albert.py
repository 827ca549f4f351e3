"""ALBERT: `transformers.AlbertConfig`. transformers keeps a hidden state of every inner layer, we of every layer."""

from __future__ import annotations

from parity.cases import Case

# fmt: off
CASES = (
    Case("albert", "five layers in three groups of two inner layers", "AlbertConfig",
         dict(vocab_size=71, embedding_size=11, hidden_size=36, num_hidden_layers=5, num_hidden_groups=3,
              inner_group_num=2, num_attention_heads=3, intermediate_size=50, max_position_embeddings=23,
              type_vocab_size=3, hidden_act="gelu_new", hidden_dropout_prob=0.1, classifier_dropout_prob=0.2),
         ("AlbertForPreTraining",), left_padding=True, states_per_layer=2),
    Case("albert", "five layers of one group, embeddings as wide as the layers, one type", "AlbertConfig",
         dict(vocab_size=64, embedding_size=35, hidden_size=35, num_hidden_layers=5, num_attention_heads=5,
              intermediate_size=97, max_position_embeddings=16, type_vocab_size=1, hidden_act="gelu",
              layer_norm_eps=1e-6, pad_token_id=3),
         ("AlbertForSequenceClassification", "AlbertForMultipleChoice", "AlbertForTokenClassification", "AlbertModel")),
    Case("albert", "embeddings wider than the layers, ReLU", "AlbertConfig",
         dict(vocab_size=50, embedding_size=40, hidden_size=18, num_hidden_layers=3, num_hidden_groups=3,
              num_attention_heads=2, intermediate_size=20, max_position_embeddings=30, type_vocab_size=2,
              hidden_act="relu"),
         ("AlbertForMaskedLM", "AlbertForQuestionAnswering")),
)
# fmt: on
