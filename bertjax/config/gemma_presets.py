"""Gemma's published sizes as values, text only. Needs no jax."""

from __future__ import annotations

from bertjax.config.seq2seq_presets import Values, layer_sizes

# google-deepmind/gemma:gemma/gm/nn (arXiv:2403.08295, table 1; its feed-forward dimension counts both inner matrices).
_GEMMA: Values = {
    "family": "gemma",
    "causal": True,
    "head_size": 256,
    "embedding_norm": "none",
    "embedding_scale": True,
    "position_embedding": "none",
    "max_position_embeddings": 8192,
    "type_vocab_size": 0,
    "attention_position": "rotary",
    "attention_bias": "none",
    "feed_forward": "glu",
    "feed_forward_bias": False,
    "norm_placement": "pre",
    "norm_type": "rms_norm",
    "norm_bias": False,
    "norm_zero_centered": True,
    "layer_norm_eps": 1e-6,
    "hidden_dropout": 0.0,
    "attention_dropout": 0.0,
    "initializer": "normal",
    "mlm_head": "bias",
    "mlm_bias": False,
    "pooling": "last",
    "classifier_dense": "none",
}

# arXiv:2408.00118, table 1 and section 2; 27B divides scores by the root of width / heads.
_GEMMA2 = _GEMMA | {
    "family": "gemma2",
    "norm_placement": "sandwich",
    "attention_soft_cap": 50.0,
    "logit_soft_cap": 30.0,
    "local_attention": 2 * 4096 - 2,  # a token sees itself and the 4,095 before it
    "global_attn_every_n_layers": 2,
    "first_global_layer": 1,
}

# arXiv:2503.19786, table 1 and section 2; 270M: huggingface.co/google/gemma-3-270m.
_GEMMA3 = _GEMMA2 | {
    "family": "gemma3_text",
    "attention_soft_cap": None,
    "logit_soft_cap": None,
    "qk_norm": True,
    "local_attention": 2 * 512 - 2,
    "global_attn_every_n_layers": 6,
    "first_global_layer": 5,
    "global_rope_theta": 1_000_000.0,
    "local_rope_theta": 10_000.0,
    "max_position_embeddings": 32_768,
}

# arXiv:2509.20354, section 2, without the dense layers after the pooling.
_EMBEDDING = _GEMMA3 | {"causal": False, "local_attention": 512, "max_position_embeddings": 2048, "pooling": "mean"}

# arXiv:2504.06225, section 2: the encoder has the layers of Gemma 2, and sees so many tokens on either side.
_T5GEMMA = _GEMMA2 | {
    "family": "t5gemma",
    "causal": False,
    "logit_soft_cap": None,
    "local_attention": 2 * 4096,
    "mlm_bias": True,
    "pooling": "mean",
}


def _grouped(heads: int, **others: object) -> Values:
    return {"num_key_value_heads": heads, **others}


GEMMA_PRESETS: dict[str, Values] = {
    "gemma-2b": layer_sizes(18, 2048, 8, 16_384) | _GEMMA | _grouped(1),
    "gemma-7b": layer_sizes(28, 3072, 16, 24_576) | _GEMMA,
    "gemma-2-2b": layer_sizes(26, 2304, 8, 9216) | _GEMMA2 | _grouped(4),
    "gemma-2-9b": layer_sizes(42, 3584, 16, 14_336) | _GEMMA2 | _grouped(8),
    "gemma-2-27b": layer_sizes(46, 4608, 32, 36_864) | _GEMMA2 | _grouped(16, head_size=128, attention_scale_size=144),
    "t5gemma-2b": layer_sizes(26, 2304, 8, 9216) | _T5GEMMA | _grouped(4),
    "t5gemma-9b": layer_sizes(42, 3584, 16, 14_336) | _T5GEMMA | _grouped(8),
    "embeddinggemma-300m": layer_sizes(24, 768, 3, 1152) | _EMBEDDING | _grouped(1),
    "gemma-3-270m": layer_sizes(18, 640, 4, 2048) | _GEMMA3 | _grouped(1),
    "gemma-3-1b": layer_sizes(26, 1152, 4, 6912) | _GEMMA3 | _grouped(1),
}
