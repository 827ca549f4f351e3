"""ELECTRA: `transformers.ElectraConfig`, discriminator (ForPreTraining) and generator (ForMaskedLM)."""

from __future__ import annotations

from parity.cases import Case

# fmt: off
CASES = (
    Case("electra", "embeddings projected up, heads of 9, tanh GELU below the erf GELU of two heads", "ElectraConfig",
         dict(vocab_size=77, embedding_size=13, hidden_size=27, num_hidden_layers=3, num_attention_heads=3,
              intermediate_size=70, max_position_embeddings=22, type_vocab_size=3, hidden_act="gelu_new",
              classifier_dropout=0.0, num_labels=5),
         ("ElectraForMaskedLM", "ElectraForSequenceClassification", "ElectraForMultipleChoice"), left_padding=True),
    Case("electra", "no projection, SiLU, pad id 2", "ElectraConfig",
         dict(vocab_size=66, embedding_size=24, hidden_size=24, num_hidden_layers=5, num_attention_heads=4,
              intermediate_size=17, max_position_embeddings=18, type_vocab_size=2, hidden_act="silu",
              layer_norm_eps=1e-6, pad_token_id=2),
         ("ElectraForPreTraining", "ElectraForTokenClassification")),
    Case("electra", "a generator: one head, embeddings wider than the layers, one type", "ElectraConfig",
         dict(vocab_size=51, embedding_size=40, hidden_size=10, num_hidden_layers=1, num_attention_heads=1,
              intermediate_size=40, max_position_embeddings=20, type_vocab_size=1, hidden_act="gelu"),
         ("ElectraForMaskedLM", "ElectraForQuestionAnswering", "ElectraModel")),
)
# fmt: on
