"""The encoder of T5Gemma: `transformers.T5GemmaConfig`."""

from __future__ import annotations

from typing import Any

from parity.cases import Case

_GLOBAL, _LOCAL = "full_attention", "sliding_attention"


def _config(encoder: dict[str, Any], **others: Any) -> dict[str, Any]:
    sizes = dict(vocab_size=61, hidden_size=30, intermediate_size=37, num_hidden_layers=5, num_attention_heads=6,
                 num_key_value_heads=2, head_dim=8, max_position_embeddings=40, pad_token_id=3)  # fmt: skip
    return dict(is_encoder_decoder=False, vocab_size=61, encoder=sizes | encoder) | others


# A padding query that sees no key has the mean of all values (eager attention), elsewhere zero.
_OLD_KEYS = ("rope_theta", "rope_scaling.factor", "rope_scaling.rope_type")  # since 5 in `rope_parameters`
_UNUSUAL: dict[str, Any] = dict(compare_padding=False, unwritten=tuple(f"encoder.{key}" for key in _OLD_KEYS))

# fmt: off
CASES = (
    Case("t5gemma", "a window of 2, a cap of 2, scale of 5, heads of 8 in groups of 3", "T5GemmaConfig",
         _config(dict(sliding_window=2, query_pre_attn_scalar=5, attn_logit_softcapping=2.0, rms_norm_eps=1e-2,
                      rope_parameters={"rope_type": "default", "rope_theta": 300.0})),
         ("T5GemmaEncoderModel",), **_UNUSUAL),
    Case("t5gemma", "every third layer global, every bias, no cap, a linear rotation", "T5GemmaConfig",
         _config(dict(sliding_window=1, num_hidden_layers=4, layer_types=[_LOCAL, _GLOBAL, _LOCAL, _LOCAL],
                      attention_bias=True, attn_logit_softcapping=None, hidden_activation="gelu",
                      rope_parameters={"rope_type": "linear", "rope_theta": 90.0, "factor": 2.5}),
                 dropout_rate=0.2, num_labels=5),
         ("T5GemmaForTokenClassification", "T5GemmaEncoderModel"), **_UNUSUAL),
)
# fmt: on
