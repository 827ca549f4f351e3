"""Gemma 1, 2 and 3: `transformers.GemmaConfig` and its like."""

from __future__ import annotations

from typing import Any

from parity.cases import TOLERANCE, Case

_SIZES = dict(vocab_size=61, hidden_size=30, intermediate_size=37, num_hidden_layers=7, num_attention_heads=6,
              num_key_value_heads=2, head_dim=8, max_position_embeddings=40, pad_token_id=3)  # fmt: skip
_OLD_KEYS = (
    "rope_theta",
    "rope_local_base_freq",
    "rope_scaling.factor",
    "rope_scaling.rope_type",
)  # since 5 in `rope_parameters`
_GLOBAL, _LOCAL = "full_attention", "sliding_attention"


def _case(family: str, name: str, classes: str, **config: Any) -> Case:
    heads = tuple(f"{classes}{head}" for head in ("ForCausalLM", "ForTokenClassification", "Model"))
    if family == "gemma3_text":
        heads = ("Gemma3ForCausalLM", "Gemma3TextModel")
    config_class = "Gemma3TextConfig" if family == "gemma3_text" else f"{classes}Config"
    # A padding query of Gemma 2 that sees no key has the mean of all values (eager attention), elsewhere zero.
    compared = family != "gemma2"
    # The hidden states of Gemma 2 and 3 grow to 12: float32 keeps ours 1.6e-5 from float64 and theirs 1.7e-5.
    return Case(
        family,
        name,
        config_class,
        _SIZES | config,
        heads,
        tolerance=TOLERANCE if family == "gemma" else 5e-5,
        compare_padding=compared,
        unwritten=_OLD_KEYS,
    )


def _thetas(*values: float) -> dict[str, Any]:
    tables = [{"rope_type": "default", "rope_theta": value} for value in values]
    return {"rope_parameters": tables[0] if len(tables) == 1 else dict(zip((_GLOBAL, _LOCAL), tables, strict=True))}


# fmt: off
CASES = (
    _case("gemma", "heads of 8 in groups of 3, every bias, untied", "Gemma", num_hidden_layers=2, attention_bias=True,
          tie_word_embeddings=False, **_thetas(300.0)),
    _case("gemma", "an encoder with one head of keys, gelu that is tanh", "Gemma", num_hidden_layers=2,
          num_key_value_heads=1, is_causal=False, hidden_act="gelu", rms_norm_eps=1e-3),
    _case("gemma2", "a window of 4, caps of 2 and 1.5, scale of 5", "Gemma2", sliding_window=4, query_pre_attn_scalar=5,
          attn_logit_softcapping=2.0, final_logit_softcapping=1.5, rms_norm_eps=1e-2, **_thetas(300.0)),
    _case("gemma2", "an encoder, biases, every third layer global, no caps", "Gemma2", sliding_window=2,
          attention_bias=True, is_causal=False, attn_logit_softcapping=None, final_logit_softcapping=None,
          num_hidden_layers=4, layer_types=[_LOCAL, _GLOBAL, _LOCAL, _LOCAL], hidden_activation="gelu",
          query_pre_attn_scalar=8),
    _case("gemma3_text", "an encoder, a window of 5, two rotations", "Gemma3", sliding_window=5, attention_bias=True,
          use_bidirectional_attention=True, query_pre_attn_scalar=5, final_logit_softcapping=1.5,
          rms_norm_eps=1e-2, **_thetas(500.0, 30.0)),
    _case("gemma3_text", "the rotation of 3 4B: global layers linear", "Gemma3", sliding_window=3,
          query_pre_attn_scalar=8, rope_parameters={_GLOBAL: {"rope_type": "linear", "rope_theta": 90.0, "factor": 2.5},
          _LOCAL: {"rope_type": "default", "rope_theta": 30.0}}),
    _case("gemma3_text", "a window of 3, every other layer global, untied", "Gemma3", sliding_window=3,
          num_hidden_layers=3, layer_types=[_GLOBAL, _LOCAL, _GLOBAL], tie_word_embeddings=False,
          query_pre_attn_scalar=8),
    _case("gemma3_text", "a window of the token itself, all layers local", "Gemma3", num_hidden_layers=3,
          sliding_window=1, query_pre_attn_scalar=8),
)
# fmt: on
