"""Published models that are a BERT but for one part, as values. Needs no jax."""

from __future__ import annotations

from bertjax.config.seq2seq_presets import Values, layer_sizes

# transformers: models/roformer/configuration_roformer.py, whose defaults are those of junnyu/roformer_chinese_base
# (arXiv:2104.09864; vocabulary 50,000).
_ROFORMER: Values = {
    "family": "roformer",
    "position_embedding": "none",
    "max_position_embeddings": 1536,
    "attention_position": "rotary",
    "hidden_act": "gelu",
    "classifier_dense": "own",
    "classifier_act": "gelu",
    "initializer": "normal",
}

# transformers: models/rembert/configuration_rembert.py, whose defaults are those of google/rembert (arXiv:2010.12821;
# vocabulary 250,300).
_REMBERT: Values = {
    "family": "rembert",
    "embedding_size": 256,
    "output_embedding_size": 1664,
    "tie_word_embeddings": False,
    "hidden_act": "gelu",
    "hidden_dropout": 0.0,
    "attention_dropout": 0.0,
    "classifier_dropout": 0.1,
    "initializer": "normal",
}

# transformers: models/big_bird/configuration_big_bird.py, whose defaults are those of google/bigbird-roberta-base
# (arXiv:2007.14062; vocabulary 50,358). Attention is full.
_BIG_BIRD: Values = {
    "family": "big_bird",
    "max_position_embeddings": 4096,
    "classifier_dense": "own",
    "classifier_act": "gelu_new",
    "choice_dense": "pooler",
    "initializer": "normal",
}

# transformers: models/xlm/configuration_xlm.py, whose defaults are those of FacebookAI/xlm-mlm-en-2048
# (arXiv:1901.07291; vocabulary 30,145); the base size of arXiv:1912.05372 (vocabulary 68,729).
_XLM: Values = {
    "family": "xlm",
    "type_vocab_size": 0,
    "hidden_act": "gelu",
    "mlm_head": "bias",
    "classifier_dense": "none",
    "initializer": "normal",
}

# transformers: models/squeezebert/configuration_squeezebert.py, whose defaults are those of the published models
# (arXiv:2006.11316, section 3.3; BERT's vocabulary).
_SQUEEZEBERT: Values = {
    "family": "squeezebert",
    "attention_groups": 4,
    "feed_forward_groups": 4,
    "hidden_act": "gelu",
    "initializer": "normal",
}

# yitu-opensource/ConvBert:configure_pretraining.py, util/training_utils.py (arXiv:2008.02496, section 5.1; BERT's
# vocabulary); half of the heads that are named there. Its generators are as wide as ELECTRA's.
_CONVBERT: Values = {
    "family": "convbert",
    "dynamic_conv_kernel_size": 9,
    "hidden_act": "gelu",
    "mlm_act": "gelu",
    "classifier_dense": "own",
    "classifier_act": "gelu",
}
_CONVBERT_SIZES: dict[str, Values] = {
    "small": layer_sizes(12, 256, 2) | {"embedding_size": 128},
    "medium-small": layer_sizes(12, 384, 4) | {"embedding_size": 128, "feed_forward_groups": 2},
    "base": layer_sizes(12, 768, 6),
}

# ltgoslo/gpt-bert:configs (arXiv:2410.24159; vocabularies of 8,192 and 16,384). Norms but one have parameters here.
_GPT_BERT: Values = {
    "family": "gpt_bert",
    "position_embedding": "none",
    "type_vocab_size": 0,
    "attention_position": "disentangled",
    "share_att_key": True,
    "position_buckets": 32,
    "norm_relative_embeddings": True,
    "norm_placement": "sub",
    "attention_gate": "gelu",
    "depth_weighted_average": True,
    "feed_forward": "glu",
    "feed_forward_bias": False,
    "layer_norm_eps": 1e-5,
    "mlm_act": "gelu",
    "classifier_dense": "own",
    "classifier_act": "gelu",
    "classifier_norm": True,
    "token_classifier_dense": True,
}

# transformers: models/splinter/configuration_splinter.py, whose defaults are those of tau/splinter-base
# (arXiv:2101.00438; BERT's vocabulary with [QUESTION] in place of an unused token).
_SPLINTER: Values = {
    "family": "splinter",
    "answer_head": "question",
    "hidden_act": "gelu",
}

# transformers: models/mobilebert/configuration_mobilebert.py, whose defaults are those of google/mobilebert-uncased but
# for its pooler (arXiv:2004.02984, table 1; BERT's vocabulary).
_MOBILEBERT: Values = {
    "family": "mobilebert",
    "num_heads": 4,
    "intermediate_size": 512,
    "embedding_size": 128,
    "embedding_ngram": 3,
    "embedding_norm": "after",
    "bottleneck_size": 128,
    "num_feedforward_networks": 4,
    "norm_type": "affine",
    "hidden_act": "relu",
    "hidden_dropout": 0.0,
    "attention_output_dropout": 0.0,
    "feed_forward_dropout": 0.0,
    "output_embedding_size": 512,
    "initializer": "normal",
}

# transformers: models/bert_generation/configuration_bert_generation.py, whose defaults are those of
# google/bert_for_seq_generation_L-24_bbc_encoder (arXiv:1907.12461; a vocabulary of 50,358).
_BERT_GENERATION: Values = {
    "family": "bert-generation",
    "type_vocab_size": 0,
    "mlm_head": "bias",
    "hidden_act": "gelu",
    "initializer": "normal",
}

BERT_VARIANTS: dict[str, Values] = {
    "bert-generation-large": layer_sizes(24, 1024) | _BERT_GENERATION,
    "gpt-bert-small": layer_sizes(12, 384, 6, 1280) | _GPT_BERT,
    "gpt-bert-base": layer_sizes(12, 768, 12, 2560) | _GPT_BERT,
    **{f"convbert-{size}": sizes | _CONVBERT for size, sizes in _CONVBERT_SIZES.items()},
    "roformer-chinese-base": layer_sizes(12, 768) | _ROFORMER,
    "bigbird-roberta-base": layer_sizes(12, 768) | _BIG_BIRD,
    "squeezebert": layer_sizes(12, 768) | _SQUEEZEBERT,
    "splinter-base": layer_sizes(12, 768) | _SPLINTER,
    "mobilebert": layer_sizes(24, 512) | _MOBILEBERT,
    "xlm-en-2048": layer_sizes(12, 2048, 16) | _XLM,
    "flaubert-base": layer_sizes(12, 768) | _XLM | {"family": "flaubert"},
    "rembert": layer_sizes(32, 1152, 18) | _REMBERT,
}
