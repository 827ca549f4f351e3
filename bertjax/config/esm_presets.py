"""Published models of proteins as values. Needs no jax."""

from __future__ import annotations

from bertjax.config.seq2seq_presets import Values, layer_sizes

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

ESM_PRESETS: dict[str, Values] = {
    **{f"esm2-{size}": sizes | _ESM for size, sizes in _ESM_SIZES.items()},
    "esm1b": layer_sizes(33, 1280, 20) | _ESM_1B,
    "esmc-300m": layer_sizes(30, 960, 15, 2560) | _ESMC,
    "esmc-600m": layer_sizes(36, 1152, 18, 3072) | _ESMC,
    "esmc-6b": layer_sizes(80, 2560, 40, 6912) | _ESMC,
}
