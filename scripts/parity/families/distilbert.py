"""DistilBERT: `transformers.DistilBertConfig`. The sinusoids are only what its position table begins with."""

from __future__ import annotations

from parity.cases import Case

# fmt: off
CASES = (
    Case("distilbert", "heads of 12, narrow feed-forward, three labels", "DistilBertConfig",
         dict(vocab_size=83, dim=36, n_layers=3, n_heads=3, hidden_dim=30, max_position_embeddings=19,
              activation="gelu", dropout=0.0, attention_dropout=0.2, seq_classif_dropout=0.4, num_labels=3),
         ("DistilBertForSequenceClassification", "DistilBertForMultipleChoice",
          "DistilBertForTokenClassification"), left_padding=True),
    Case("distilbert", "one layer, positions that began as sinusoids, ReLU, pad id 4", "DistilBertConfig",
         dict(vocab_size=60, dim=20, n_layers=1, n_heads=4, hidden_dim=90, max_position_embeddings=25,
              sinusoidal_pos_embds=True, activation="relu", qa_dropout=0.3, pad_token_id=4),
         ("DistilBertForMaskedLM", "DistilBertForQuestionAnswering", "DistilBertModel")),
)
# fmt: on
