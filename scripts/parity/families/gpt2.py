"""GPT-2: `transformers.GPT2Config`."""

from __future__ import annotations

from parity.cases import Case

# fmt: off
CASES = (
    Case("gpt2", "heads of 9, feed-forward of 31, erf GELU", "GPT2Config",
         dict(vocab_size=83, n_embd=27, n_layer=3, n_head=3, n_inner=31, n_positions=23, activation_function="gelu",
              pad_token_id=2, bos_token_id=None, eos_token_id=None),
         ("GPT2LMHeadModel", "GPT2ForTokenClassification", "GPT2ForQuestionAnswering", "GPT2Model",
          "GPT2ForSequenceClassification"),
         left_padding=True),
    Case("gpt2", "n_inner null, no pad id, another epsilon", "GPT2Config",
         dict(vocab_size=50, n_embd=20, n_layer=2, n_head=5, n_positions=18, layer_norm_epsilon=1e-3,
              eos_token_id=49),
         ("GPT2LMHeadModel",)),
)
# fmt: on
