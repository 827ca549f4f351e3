"""The networks of published encoder-decoders as values, and the sizes that all presets are made of."""

from __future__ import annotations

from typing import Any

Values = dict[str, Any]


def layer_sizes(layers: int, hidden: int, heads: int | None = None, intermediate: int | None = None) -> Values:
    """Returns the sizes of a model; by default heads of 64 and a feed-forward block of four times the width.

    Args:
        layers: number of layers.
        hidden: width.
        heads: number of heads.
        intermediate: width of the feed-forward block.
    """
    return {
        "num_layers": layers,
        "hidden_size": hidden,
        "num_heads": hidden // 64 if heads is None else heads,
        "intermediate_size": 4 * hidden if intermediate is None else intermediate,
    }


# The encoder of arXiv:1706.03762, table 3 (tensorflow/tensor2tensor:models/transformer.py, transformer_base_v1 and
# transformer_big), its output table tied as there.
_TRANSFORMER = {
    "family": "bertjax",
    "position_embedding": "sinusoidal",
    "type_vocab_size": 0,
    "embedding_norm": "none",
    "embedding_scale": True,
    "hidden_act": "relu",
    "layer_norm_eps": 1e-6,
    "mlm_head": "bias",
    "classifier_dense": "none",
}

# google-research/text-to-text-transfer-transformer (arXiv:1910.10683, section 2.1, table 14; released_checkpoints.md):
# one network; of T5 v1.1 the output table is its own and hidden states are not scaled. 3B and 11B have 32 and 128 heads
# of 128. Vocabulary 32,128.
_T5 = {
    "family": "bertjax",
    "position_embedding": "none",
    "type_vocab_size": 0,
    "embedding_norm": "none",
    "attention_position": "relative_bias",
    "attention_bias": "none",
    "attention_scale": False,
    "feed_forward_bias": False,
    "hidden_act": "relu",
    "norm_placement": "pre",
    "norm_type": "rms_norm",
    "norm_bias": False,
    "layer_norm_eps": 1e-6,
    "activation_dropout": 0.1,
    "output_dropout": 0.1,
    "mlm_head": "tied",
    "scale_logits": True,
    "head_size": 64,
}
_T5_V11 = _T5 | {
    "feed_forward": "glu",
    "hidden_act": "gelu_new",
    "scale_logits": False,
    "tie_word_embeddings": False,
}
# facebookresearch/fairseq:fairseq/models/bart/model.py (arXiv:1910.13461, section 2): one network. Vocabulary 50,265.
_BART = {
    "family": "bertjax",
    "max_position_embeddings": 1024,
    "position_offset": 2,
    "pad_token_id": 1,
    "type_vocab_size": 0,
    "layer_norm_eps": 1e-5,
    "hidden_act": "gelu",
    "attention_dropout": 0.0,
    "mlm_head": "bias",
    "initializer": "normal",
    "classifier_dense": "own",
}

# arXiv:2010.11125 (vocabulary 128,112) and 2207.04672 (256,206): pre-norm, one network (facebookresearch/fairseq:
# fairseq/modules/sinusoidal_positional_embedding.py; transformers: models/m2m_100). The distilled NLLB of 1.3B has the
# sizes of the other one.
_M2M_100 = {
    "family": "bertjax",
    "position_embedding": "fairseq",
    "max_position_embeddings": 1024,
    "position_offset": 2,
    "pad_token_id": 1,
    "type_vocab_size": 0,
    "embedding_norm": "none",
    "embedding_scale": True,
    "hidden_act": "relu",
    "norm_placement": "pre",
    "layer_norm_eps": 1e-5,
    "mlm_head": "tied",
    "initializer": "normal",
    "classifier_dense": "own",
}

SEQ2SEQ_PRESETS: dict[str, Values] = {
    "t5-small": layer_sizes(6, 512) | _T5,
    "t5-base": layer_sizes(12, 768) | _T5,
    "t5-large": layer_sizes(24, 1024) | _T5,
    "t5-3b": layer_sizes(24, 1024, 32, 16384) | _T5 | {"head_size": 128},
    "t5-11b": layer_sizes(24, 1024, 128, 65536) | _T5 | {"head_size": 128},
    "t5-v1.1-small": layer_sizes(8, 512, 6, 1024) | _T5_V11,
    "t5-v1.1-base": layer_sizes(12, 768, 12, 2048) | _T5_V11,
    "t5-v1.1-large": layer_sizes(24, 1024, 16, 2816) | _T5_V11,
    "t5-v1.1-xl": layer_sizes(24, 2048, 32, 5120) | _T5_V11,
    "t5-v1.1-xxl": layer_sizes(24, 4096, 64, 10240) | _T5_V11,
    "bart-base": layer_sizes(6, 768) | _BART | {"attention_dropout": 0.1},
    "bart-large": layer_sizes(12, 1024) | _BART,
    "m2m100-418m": layer_sizes(12, 1024) | _M2M_100,
    "m2m100-1.2b": layer_sizes(24, 1024, 16, 8192) | _M2M_100,
    "nllb-200-600m": layer_sizes(12, 1024) | _M2M_100,
    "nllb-200-1.3b": layer_sizes(24, 1024, 16, 8192) | _M2M_100,
    "nllb-200-3.3b": layer_sizes(24, 2048, 16, 8192) | _M2M_100,
    "transformer-base": layer_sizes(6, 512) | _TRANSFORMER,
    "transformer-big": layer_sizes(6, 1024) | _TRANSFORMER | {"hidden_dropout": 0.3},
}
