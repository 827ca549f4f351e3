"""RoBERTa and DistilRoBERTa: `transformers.RobertaConfig`. Positions skip the pad id and start after it."""

from __future__ import annotations

from parity.cases import Case

# fmt: off
CASES = (
    Case("roberta", "heads of 10, tanh GELU below the erf GELU of the head, four labels", "RobertaConfig",
         dict(vocab_size=93, hidden_size=30, num_hidden_layers=3, num_attention_heads=3, intermediate_size=52,
              max_position_embeddings=21, type_vocab_size=1, hidden_act="gelu_new", layer_norm_eps=1e-5,
              hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.2, classifier_dropout=0.3,
              id2label={0: "bad", 1: "good", 2: "neither", 3: "both"},
              label2id={"bad": 0, "good": 1, "neither": 2, "both": 3}),
         ("RobertaForMaskedLM", "RobertaForSequenceClassification", "RobertaForMultipleChoice",
          "RobertaForTokenClassification"),
         left_padding=True),
    Case("roberta", "one layer, pad id 6, three types, ReLU", "RobertaConfig",
         dict(vocab_size=57, hidden_size=28, num_hidden_layers=1, num_attention_heads=4, intermediate_size=19,
              max_position_embeddings=40, type_vocab_size=3, hidden_act="relu", pad_token_id=6),
         ("RobertaForQuestionAnswering", "RobertaModel"), left_padding=True),
)
# fmt: on
