"""ModernBERT: `transformers.ModernBertConfig`."""

from __future__ import annotations

from parity.cases import Case

_HEADS = (
    "ModernBertForMaskedLM",
    "ModernBertForSequenceClassification",
    "ModernBertForMultipleChoice",
    "ModernBertForTokenClassification",
    "ModernBertForQuestionAnswering",
)
# transformers 5 moves these keys of transformers 4 into `rope_parameters`.
_OLD_KEYS = ("global_rope_theta", "local_rope_theta")
_LAYER_TYPES = ["full_attention" if layer % 4 == 0 else "sliding_attention" for layer in range(7)]
_ROPE = {
    "full_attention": {"rope_type": "default", "rope_theta": 3_000.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 70.0},
}

_IDS = dict.fromkeys(("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"), 1)

# fmt: off
CASES = (
    Case("modernbert", "period 4, window 6, unequal bases, heads of 10, odd layers", "ModernBertConfig",
         dict(vocab_size=97, hidden_size=50, num_hidden_layers=7, num_attention_heads=5, intermediate_size=37,
              max_position_embeddings=80, local_attention=6, layer_types=_LAYER_TYPES, rope_parameters=_ROPE,
              pad_token_id=1, classifier_pooling="mean"),
         _HEADS, seq_len=41, left_padding=True, unwritten=_OLD_KEYS),
    Case("modernbert", "every bias, old keys, pooling cls, odd window, other activations", "ModernBertConfig",
         dict(vocab_size=64, hidden_size=24, num_hidden_layers=3, num_attention_heads=2, intermediate_size=60,
              max_position_embeddings=40, local_attention=5, global_attn_every_n_layers=2, global_rope_theta=500.0,
              local_rope_theta=40.0, pad_token_id=63, attention_bias=True, mlp_bias=True, norm_bias=True,
              classifier_bias=True, decoder_bias=False, norm_eps=1e-3, hidden_activation="silu",
              classifier_activation="relu"),
         (*_HEADS, "ModernBertModel"), seq_len=33, unwritten=_OLD_KEYS),
    Case("modernbert", "rows of blocks: longer than three windows and their blocks", "ModernBertConfig",
         dict(vocab_size=50, hidden_size=16, num_hidden_layers=3, num_attention_heads=2, intermediate_size=20,
              max_position_embeddings=512, local_attention=34, pad_token_id=0),
         ("ModernBertForMaskedLM",), seq_len=301, left_padding=True, unwritten=_OLD_KEYS),
    Case("modernbert", "yarn in global layers", "ModernBertConfig",
         dict(vocab_size=50, hidden_size=24, num_hidden_layers=4, num_attention_heads=2, intermediate_size=20,
              max_position_embeddings=80, local_attention=6, pad_token_id=0,
              rope_parameters={**_ROPE, "full_attention": {"rope_type": "yarn", "rope_theta": 60.0, "factor": 4.0,
              "original_max_position_embeddings": 10}}),
         ("ModernBertModel",), unwritten=_OLD_KEYS),
    Case("modernbert", "every layer global, one layer", "ModernBertConfig",
         dict(vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=1, intermediate_size=20,
              max_position_embeddings=20, global_attn_every_n_layers=1, pad_token_id=0),
         ("ModernBertModel",), unwritten=_OLD_KEYS),
    Case("modernbert-decoder", "period 2, a window of 3 tokens, every bias", "ModernBertDecoderConfig",
         dict(vocab_size=53, hidden_size=30, num_hidden_layers=5, num_attention_heads=3, intermediate_size=22,
              max_position_embeddings=40, local_attention=6, global_attn_every_n_layers=2, pad_token_id=3,
              attention_bias=True, mlp_bias=True, norm_bias=True, classifier_bias=True, **_IDS),
         ("ModernBertDecoderForCausalLM", "ModernBertDecoderModel"), seq_len=21, unwritten=_OLD_KEYS),
    Case("modernbert-decoder", "an encoder, window 6 on either side, no bias", "ModernBertDecoderConfig",
         dict(vocab_size=53, hidden_size=24, num_hidden_layers=4, num_attention_heads=2, intermediate_size=22,
              max_position_embeddings=40, local_attention=6, pad_token_id=0, decoder_bias=False, is_causal=False,
              rope_parameters=_ROPE, **_IDS),
         ("ModernBertDecoderForCausalLM",), seq_len=21, unwritten=_OLD_KEYS),
)
# fmt: on
