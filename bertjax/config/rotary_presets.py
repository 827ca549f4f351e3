"""Published models with rotary positions as values: ModernBERT and its successors, ESM, Gemma without images.

Needs no jax.
"""

from __future__ import annotations

from bertjax.config.seq2seq_presets import Values, layer_sizes

NO_DROPOUT: Values = {"hidden_dropout": 0.0, "attention_dropout": 0.0}

# What ModernBERT and its successors share.
_ROTARY_GLU: Values = {
    "position_embedding": "none",
    "max_position_embeddings": 8192,
    "type_vocab_size": 0,
    "attention_position": "rotary",
    "attention_bias": "none",
    "feed_forward": "glu",
    "feed_forward_bias": False,
    "norm_placement": "pre",
    "norm_bias": False,
    "layer_norm_eps": 1e-5,
    **NO_DROPOUT,
    "classifier_dense": "own",
    "classifier_act": "gelu",
}

# AnswerDotAI/ModernBERT:yamls/modernbert (arXiv:2412.13663, table 4), as released: after the extension to 8192 tokens.
MODERNBERT = _ROTARY_GLU | {
    "family": "modernbert",
    "global_rope_theta": 160_000.0,
    "local_rope_theta": 10_000.0,
    "local_attention": 128,
    "global_attn_every_n_layers": 3,
    "hidden_act": "gelu",
    "first_attention_norm": False,
    "attention_output_dropout": 0.1,
    "scale_residual_init": True,
    "pad_token_id": 50283,
    "head_dense_bias": False,
    "pooling": "mean",
    "classifier_norm": True,
    "token_classifier_dense": True,
}

# JHU-CLSP/ettin-encoder-vs-decoder:pretraining/README.md, "Architecture Scaling" (arXiv:2507.11412); as released, after
# the extension. A token of transformers' decoder sees the 63 before it in local layers.
_ETTIN_SIZES = {
    "17m": layer_sizes(7, 256, 4, 384),
    "32m": layer_sizes(10, 384, 6, 576),
    "68m": layer_sizes(19, 512, 8, 768),
    "150m": layer_sizes(22, 768, 12, 1152),
    "400m": layer_sizes(28, 1024, 16, 2624),
    "1b": layer_sizes(28, 1792, 28, 3840),
}
_ETTIN = MODERNBERT | {"local_rope_theta": 160_000.0, "max_position_embeddings": 7999}
_ETTIN_DECODER = _ETTIN | {
    "family": "modernbert-decoder",
    "causal": True,
    "local_attention": 126,
    "pooling": "last",
    "classifier_bias": False,
}

# JHU-CLSP/mmBERT:configs/mmBERT-{small,base}.yaml (arXiv:2509.06888, section 2), vocabulary of Gemma 2.
_MMBERT = MODERNBERT | {"local_rope_theta": 160_000.0, "pad_token_id": 0}

# transformers: models/eurobert; sizes, bases, epsilon: arXiv:2503.05500, tables 3 and 4; as released, after annealing.
_EUROBERT = _ROTARY_GLU | {
    "family": "eurobert",
    "embedding_norm": "none",
    "global_rope_theta": 250_000.0,
    "hidden_act": "silu",
    "norm_type": "rms_norm",
    "initializer": "normal",
    "pad_token_id": 128001,
    "mlm_head": "bias",
    "mlm_bias": False,
    "tie_word_embeddings": False,
    "pooling": "late",
}

# huggingface.co/chandar-lab/NeoBERT: config.json, model.py (arXiv:2502.19587, table 2): 2,048 is two thirds of 3,072.
# NeoBERT draws weights uniformly within 0.02; this normal distribution has the same standard deviation.
_NEOBERT = _EUROBERT | {
    "family": "neobert",
    "max_position_embeddings": 4096,
    "global_rope_theta": 10_000.0,
    "initializer_range": 0.02 / 3**0.5,
    "pad_token_id": 0,
    "mlm_bias": True,
    "pooling": "first",
    "classifier_act": "tanh",
    "classifier_dropout": 0.1,
}

# facebookresearch/esm:README.md, esm/model/esm2.py (doi:10.1126/science.ade2574), vocabulary 33; no dropout anywhere.
# ESM-1b has absolute positions and a norm of the embeddings (doi:10.1073/pnas.2016239118).
_ESM: Values = {
    "family": "esm",
    "type_vocab_size": 0,
    "embedding_norm": "none",
    "zero_pad_embeddings": True,
    "token_dropout": True,
    "position_embedding": "none",
    "max_position_embeddings": 1026,
    "attention_position": "rotary",
    "norm_placement": "pre",
    "layer_norm_eps": 1e-5,
    "hidden_act": "gelu",
    "mlm_act": "gelu",
    "hidden_dropout": 0.0,
    "attention_dropout": 0.0,
    "embedding_dropout": 0.0,
    "classifier_dense": "own",
    "initializer": "normal",
    "pad_token_id": 1,
    "mask_token_id": 32,
}
_ESM_SIZES: dict[str, Values] = {
    "8m": layer_sizes(6, 320, 20),
    "35m": layer_sizes(12, 480, 20),
    "150m": layer_sizes(30, 640, 20),
    "650m": layer_sizes(33, 1280, 20),
    "3b": layer_sizes(36, 2560, 40),
    "15b": layer_sizes(48, 5120, 40),
}
_ESM_1B: Values = _ESM | {
    "embedding_norm": "before",
    "position_embedding": "learned",
    "position_offset": 2,
    "max_position_embeddings": 1024,
    "attention_position": "none",
}

# ESM C: transformers: models/esmc/configuration_esmc.py, whose defaults are those of biohub/ESMC-6B; smaller sizes:
# evolutionaryscale/esm:esm/pretrained.py, esm/layers/blocks.py (vocabulary 64).
_ESMC: Values = {
    "family": "esmc",
    "type_vocab_size": 0,
    "embedding_norm": "none",
    "position_embedding": "none",
    "max_position_embeddings": 2048,
    "attention_position": "rotary",
    "attention_bias": "none",
    "qk_norm": True,
    "qk_norm_over": "all",
    "feed_forward": "glu",
    "feed_forward_bias": False,
    "hidden_act": "silu",
    "norm_placement": "pre",
    "last_norm_bias": False,
    "residual_depth": 36,
    "layer_norm_eps": 1e-5,
    "mlm_act": "gelu",
    "tie_word_embeddings": False,
    "hidden_dropout": 0.0,
    "attention_dropout": 0.0,
    "classifier_dense": "own",
    "classifier_dropout": 0.1,
    "initializer": "normal",
    "pad_token_id": 1,
}

ROTARY_PRESETS: dict[str, Values] = {
    **{f"ettin-encoder-{size}": sizes | _ETTIN for size, sizes in _ETTIN_SIZES.items()},
    **{f"ettin-decoder-{size}": sizes | _ETTIN_DECODER for size, sizes in _ETTIN_SIZES.items()},
    "mmbert-small": layer_sizes(22, 384, 6, 1152) | _MMBERT,
    "mmbert-base": layer_sizes(22, 768, 12, 1152) | _MMBERT,
    "eurobert-210m": layer_sizes(12, 768) | _EUROBERT,
    "eurobert-610m": layer_sizes(26, 1152, 18, 4096) | _EUROBERT | {"num_key_value_heads": 6},
    "eurobert-2.1b": layer_sizes(32, 2304, 18, 6144) | _EUROBERT | {"num_key_value_heads": 6},
    "neobert": layer_sizes(28, 768, 12, 2048) | _NEOBERT,
    **{f"esm2-{size}": sizes | _ESM for size, sizes in _ESM_SIZES.items()},
    "esm1b": layer_sizes(33, 1280, 20) | _ESM_1B,
    "esmc-300m": layer_sizes(30, 960, 15, 2560) | _ESMC,
    "esmc-600m": layer_sizes(36, 1152, 18, 3072) | _ESMC,
    "esmc-6b": layer_sizes(80, 2560, 40, 6912) | _ESMC,
}

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
