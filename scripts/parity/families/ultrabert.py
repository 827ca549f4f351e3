"""UltraBERT: `transformers.UltrabertConfig`."""

from __future__ import annotations

from parity.cases import Case

_TABLE = {"rope_type": "default", "rope_theta": 50.0}

# fmt: off
CASES = (
    Case("ultrabert", "a window of 3, every third layer global, heads of 8 in pairs, a head of 13", "UltrabertConfig",
         dict(vocab_size=77, hidden_size=32, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
              intermediate_size=41, sliding_window=3, prediction_head_size=13, classifier_pooling="mean",
              rms_norm_eps=1e-3, rope_parameters={"full_attention": {**_TABLE, "rope_theta": 90.0},
              "sliding_attention": _TABLE}, num_labels=5),
         ("UltrabertForMaskedLM", "UltrabertForSequenceClassification", "UltrabertForTokenClassification",
          "UltrabertForQuestionAnswering"), seq_len=29, left_padding=True),
    Case("ultrabert", "biases, tied, GELU, every other layer global, a linear rotation, pad id 2", "UltrabertConfig",
         dict(vocab_size=66, hidden_size=24, num_hidden_layers=3, num_attention_heads=2, intermediate_size=17,
              attention_bias=True, mlp_bias=True, tie_word_embeddings=True, hidden_act="gelu", sliding_window=2,
              prediction_head_size=24, layer_types=["full_attention", "sliding_attention", "full_attention"],
              rope_parameters={"full_attention": {**_TABLE, "rope_type": "linear", "factor": 2.5},
              "sliding_attention": _TABLE}, pad_token_id=2),
         ("UltrabertForMaskedLM", "UltrabertForSequenceClassification", "UltrabertModel")),
)
# fmt: on
