"""BigBird: `transformers.BigBirdConfig`. Of sparse attention, what `transformers` computes as full attention."""

from __future__ import annotations

from parity.cases import Case

_TOKENS = dict(bos_token_id=None, eos_token_id=None, sep_token_id=None)
# fmt: off
CASES = (
    Case("big_bird", "heads of 9, scaled embeddings, three types", "BigBirdConfig",
         dict(vocab_size=77, hidden_size=27, num_hidden_layers=3, num_attention_heads=3, intermediate_size=41,
              max_position_embeddings=31, type_vocab_size=3, rescale_embeddings=True, hidden_dropout_prob=0.2,
              classifier_dropout=0.3, attention_type="original_full", num_labels=5, **_TOKENS),
         ("BigBirdForPreTraining", "BigBirdForSequenceClassification", "BigBirdForMultipleChoice",
          "BigBirdForTokenClassification"), seq_len=29, left_padding=True),
    Case("big_bird", "sparse attention with positions beyond the longest text, SiLU, pad id 2", "BigBirdConfig",
         dict(vocab_size=66, hidden_size=24, num_hidden_layers=2, num_attention_heads=4, intermediate_size=17,
              max_position_embeddings=40, type_vocab_size=2, hidden_act="silu", layer_norm_eps=1e-6, pad_token_id=2,
              block_size=3, num_random_blocks=2, **_TOKENS),
         ("BigBirdForMaskedLM", "BigBirdModel"), seq_len=27),
)
# fmt: on
