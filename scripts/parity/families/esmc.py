"""ESM C: `transformers.EsmcConfig`."""

from __future__ import annotations

from parity.cases import Case

# fmt: off
CASES = (
    Case("esmc", "heads of 10, three layers, another base", "EsmcConfig",
         dict(vocab_size=33, hidden_size=30, num_hidden_layers=3, num_attention_heads=3, intermediate_size=41,
              attention_dropout=0.3, classifier_dropout=0.2, max_position_embeddings=40, pad_token_id=1,
              rope_parameters={"rope_type": "default", "rope_theta": 70.0},
              id2label={0: "H", 1: "E", 2: "C"}, label2id={"H": 0, "E": 1, "C": 2}),
         ("EsmcForMaskedLM", "EsmcForSequenceClassification", "EsmcForTokenClassification", "EsmcModel"), seq_len=33,
         left_padding=True),
    Case("esmc", "biases everywhere, rescaled rotation, tanh GELU, pad id 4", "EsmcConfig",
         dict(vocab_size=57, hidden_size=28, num_hidden_layers=5, num_attention_heads=2, intermediate_size=19,
              hidden_act="gelu_new", attention_bias=True, mlp_bias=True, max_position_embeddings=40, pad_token_id=4,
              rope_parameters={"rope_type": "linear", "factor": 3.0, "rope_theta": 50.0}),
         ("EsmcForMaskedLM", "EsmcModel")),
)
# fmt: on
