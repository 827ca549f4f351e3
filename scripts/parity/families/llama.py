"""Llama and those of its names: `transformers.LlamaConfig` and its like."""

from __future__ import annotations

from typing import Any

from parity.cases import Case

_SIZES = dict(vocab_size=61, hidden_size=30, intermediate_size=37, num_hidden_layers=3, num_attention_heads=6,
              num_key_value_heads=2, max_position_embeddings=40, pad_token_id=3)  # fmt: skip
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 300.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
_YARN = {"rope_type": "yarn", "rope_theta": 60.0, "factor": 4.0, "original_max_position_embeddings": 10}
_LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 60.0,
    "short_factor": [1.0, 1.5, 2.5],
    "factor": 3.0,
    "long_factor": [2.0, 3.0, 4.5],
    "original_max_position_embeddings": 40,
}
_COMPUTED = ("attention_factor", "beta_fast", "beta_slow", "truncate")
_RESCALING = {*_LLAMA3, *_YARN, *_LONGROPE, *_COMPUTED}
_OLD_KEYS = ("rope_theta", *(f"rope_scaling.{key}" for key in sorted(_RESCALING)))  # since 5 in `rope_parameters`


def _theta(value: float) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": "default", "rope_theta": value}}


def _decoder(family: str, name: str, classes: str, **config: Any) -> Case:
    heads = ["ForCausalLM", "ForTokenClassification", "ForQuestionAnswering", "Model"]
    heads += ["ForSequenceClassification"] if config.get("is_causal", True) else []  # it scores the last token
    names = tuple(f"{classes}{head}" for head in heads)
    return Case(family, name, f"{classes}Config", _SIZES | config, names, left_padding=True, unwritten=_OLD_KEYS)


# fmt: off
CASES = (
    _decoder("llama", "heads of 14 in groups of 3, every bias, untied", "Llama", head_dim=14, attention_bias=True,
             mlp_bias=True, **_theta(300.0)),
    _decoder("llama", "an encoder with one head of keys, tied", "Llama", num_key_value_heads=1, is_causal=False,
             head_dim=6, tie_word_embeddings=True, rms_norm_eps=1e-3, hidden_act="gelu"),
    _decoder("llama", "the rotation of Llama 3.1", "Llama", head_dim=14, rope_parameters=_LLAMA3),
    _decoder("mistral", "a window of 5 tokens, linear rotation", "Mistral", sliding_window=5, head_dim=6,
             rope_parameters={"rope_type": "linear", "rope_theta": 90.0, "factor": 2.5}),
    _decoder("mistral", "an encoder, window 3 on either side", "Mistral", sliding_window=3, is_causal=False,
             head_dim=6),
    _decoder("mistral", "heads of 8", "Mistral", head_dim=8, sliding_window=None, **_theta(1e6)),
    _decoder("qwen2", "an encoder, heads of 6, tied", "Qwen2", hidden_size=36, is_causal=False,
             tie_word_embeddings=True, **_theta(50.0)),
    _decoder("qwen2", "an encoder, heads of 6, yarn", "Qwen2", hidden_size=36, is_causal=False, rope_parameters=_YARN),
    _decoder("qwen2", "a decoder, heads of 6 in groups of 3", "Qwen2", hidden_size=36),
    _decoder("qwen3", "heads of 10, normed queries and keys, biases", "Qwen3", head_dim=10, attention_bias=True),
    _decoder("qwen3", "an encoder, every head its own keys", "Qwen3", num_key_value_heads=6, head_dim=4,
             is_causal=False),
    Case("eurobert", "groups of 2, heads of 6, every bias, late pooling", "EuroBertConfig",
         dict(vocab_size=59, hidden_size=36, intermediate_size=29, num_hidden_layers=3, num_attention_heads=6,
              num_key_value_heads=3, max_position_embeddings=50, pad_token_id=5, mask_token_id=6, bos_token_id=1,
              eos_token_id=2, attention_bias=True, mlp_bias=True, **_theta(700.0)),
         ("EuroBertForMaskedLM", "EuroBertForSequenceClassification", "EuroBertForTokenClassification",
          "EuroBertModel"), left_padding=True, unwritten=_OLD_KEYS),
    Case("eurobert", "longrope within its first length", "EuroBertConfig",
         dict(vocab_size=40, hidden_size=36, intermediate_size=20, num_hidden_layers=2, num_attention_heads=6,
              max_position_embeddings=120, pad_token_id=0, mask_token_id=6, bos_token_id=1, eos_token_id=2,
              rope_parameters=_LONGROPE), ("EuroBertModel",), unwritten=_OLD_KEYS),
    Case("eurobert", "pooling bos, tied, heads of 10", "EuroBertConfig",
         dict(vocab_size=40, hidden_size=30, intermediate_size=20, num_hidden_layers=2, num_attention_heads=3,
              max_position_embeddings=30, pad_token_id=0, mask_token_id=6, bos_token_id=1, eos_token_id=2,
              tie_word_embeddings=True, classifier_pooling="bos", rms_norm_eps=1e-2, hidden_act="relu"),
         ("EuroBertForSequenceClassification", "EuroBertForMaskedLM"), unwritten=_OLD_KEYS),
)
# fmt: on
