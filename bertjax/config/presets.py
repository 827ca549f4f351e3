"""Published models as values, each family citing where its sizes come from. Needs no jax.

A preset holds what its authors' code computes (Google's BERT has the tanh GELU although its files on the hub say
"gelu", for example); what a Hugging Face folder says is read from the folder, not from here.
"""

from __future__ import annotations

from bertjax.config.bert_variants import BERT_VARIANTS
from bertjax.config.rotary_presets import GEMMA_PRESETS, MODERNBERT, NO_DROPOUT, ROTARY_PRESETS
from bertjax.config.seq2seq_presets import SEQ2SEQ_PRESETS, Values, layer_sizes
from bertjax.errors import UserError

# google-research/bert:README.md, "Smaller BERT Models" table (arXiv:1908.08962): L in {2..12} x H in {128..768},
# A = H / 64, F = 4 H; base and large: arXiv:1810.04805, section 3.
_BERT: dict[str, Values] = {
    "bert-tiny": layer_sizes(2, 128),
    "bert-mini": layer_sizes(4, 256),
    "bert-small": layer_sizes(4, 512),
    "bert-medium": layer_sizes(8, 512),
    "bert-base": layer_sizes(12, 768),
    "bert-large": layer_sizes(24, 1024),
    **{
        f"bert-{layers}x{hidden}": layer_sizes(layers, hidden)
        for layers in (2, 4, 6, 8, 10, 12)
        for hidden in (128, 256, 512, 768)
    },
}

# SpanBERT is BERT with the erf GELU and plain normal draws (facebookresearch/SpanBERT:pretraining/fairseq/models).
_SPANBERT = {"hidden_act": "gelu", "initializer": "normal"}

# facebookresearch/fairseq:fairseq/models/roberta/model.py; sizes: arXiv:1907.11692, table 9. Two rows of the position
# table come before the first position; DistilRoBERTa: huggingface/transformers-research-projects:distillation.
_ROBERTA = {
    "family": "roberta",
    "position_offset": 2,
    "pad_token_id": 1,
    "type_vocab_size": 1,
    "layer_norm_eps": 1e-5,
    "hidden_act": "gelu",
    "mlm_act": "gelu",
    "initializer": "normal",
    "classifier_dense": "own",
    "choice_dense": "pooler",
}

# facebookresearch/fairseq:fairseq/models/xmod/model.py (arXiv:2205.06266; vocabulary 250,002): XLM-R with an adapter
# for every language; a preset has that of one language.
_XMOD = {"family": "xmod", "adapter_size": 384, "adapter_language": "en_XX"}
_XMOD_LARGE = {"adapter_size": 256, "norm_placement": "pre"}

# Models with RoBERTa's tensors. XLM-R: arXiv:1911.02116 (vocabulary 250,002); XL and XXL, with norms before the blocks:
# arXiv:2105.00572 (250,880). CamemBERT: arXiv:1911.03894 (32,005). data2vec: arXiv:2202.03555.
_XLMR_XL = {"family": "xlm-roberta-xl", "norm_placement": "pre", "embedding_norm": "none"}
_LIKE_ROBERTA = {
    f"{family}-{size}": sizes | _ROBERTA | {"family": family}
    for family in ("xlm-roberta", "camembert", "data2vec-text")
    for size, sizes in {"base": layer_sizes(12, 768), "large": layer_sizes(24, 1024)}.items()
}

# PaddlePaddle/PaddleNLP:paddlenlp/transformers/ernie/configuration.py (vocabulary 40,000), without the table of tasks.
_ERNIE = {"family": "ernie", "max_position_embeddings": 2048, "type_vocab_size": 4, "hidden_act": "gelu"}
_ERNIE_SIZES = {
    "xbase": layer_sizes(20, 1024),
    "base": layer_sizes(12, 768),
    "medium": layer_sizes(6, 768),
    "mini": layer_sizes(6, 384, 12),
    "micro": layer_sizes(4, 384, 12),
    "nano": layer_sizes(4, 312, 12),
}

# huggingface/transformers:models/megatron_bert (arXiv:1909.08053), vocabulary 29,056.
_MEGATRON = {
    "family": "megatron-bert",
    "norm_placement": "pre",
    "embedding_norm": "none",
    "hidden_act": "gelu",
    "initializer": "normal",
    "scale_residual_init": True,
}

# princeton-nlp/DinkyTrain, arXiv:2202.08005: a large RoBERTa with norms before the blocks.
_PRE_NORM = {"family": "roberta-prelayernorm", "norm_placement": "pre"}

# google-research/albert:modeling.py and README.md (arXiv:1909.11942, table 1); xlarge was released with 16 heads.
# The second versions were trained without dropout (google-research/albert issue 23), as was the first xxlarge.
_ALBERT = {"family": "albert", "embedding_size": 128, "num_groups": 1, "classifier_dropout": 0.1}
_ALBERT_SIZES = {
    "base": layer_sizes(12, 768),
    "large": layer_sizes(24, 1024),
    "xlarge": layer_sizes(24, 2048, 16),
    "xxlarge": layer_sizes(12, 4096),
}

# huggingface/transformers:models/distilbert/modeling_distilbert.py; no dropout after the attention's output.
_DISTILBERT = {
    "family": "distilbert",
    "type_vocab_size": 0,
    "hidden_act": "gelu",
    "mlm_act": "gelu",
    "attention_output_dropout": 0.0,
    "classifier_dropout": 0.2,
    "classifier_dense": "own",
    "classifier_act": "relu",
    "initializer": "normal",
}

# google-research/electra:configure_pretraining.py, util/training_utils.py (arXiv:2003.10555, table 6). The generators
# keep the depth and the embeddings of their discriminators; the released small one is as wide, too.
_ELECTRA = {
    "family": "electra",
    "hidden_act": "gelu",
    "mlm_act": "gelu",
    "classifier_dense": "own",
    "classifier_act": "gelu",
}

# microsoft/DeBERTa:DeBERTa/deberta/{bert,disentangled_attention}.py and README.md (arXiv:2006.03654, 2111.09543).
_DEBERTA = {
    "family": "deberta",
    "position_embedding": "none",
    "type_vocab_size": 0,
    "attention_position": "disentangled",
    "attention_bias": "query_value",
    "embedding_norm": "after",
    "zero_pad_embeddings": True,
    "embedding_projection_bias": False,
    "enhanced_decoder": True,
    "layer_norm_eps": 1e-7,
    "hidden_act": "gelu",
    "initializer": "normal",
    "classifier_dense": "own",
    "classifier_act": "gelu",
}
_DEBERTA_V2 = _DEBERTA | {
    "family": "deberta-v2",
    "attention_bias": "all",
    "share_att_key": True,
    "position_buckets": 256,
    "max_relative_positions": 512,
    "norm_relative_embeddings": True,
    "head_size": 64,
}
_DEBERTA_V2_CONV = _DEBERTA_V2 | {"conv_kernel_size": 3, "conv_act": "gelu"}
_DEBERTA_V3 = _DEBERTA_V2 | {"rtd_head": "summary"}

# zihangdai/xlnet:modeling.py, README.md (arXiv:1906.08237, appendix A.4.1).
_XLNET = {
    "family": "xlnet",
    "position_embedding": "none",
    "type_vocab_size": 0,
    "attention_position": "relative",
    "relative_segments": True,
    "attention_bias": "none",
    "embedding_norm": "none",
    "activation_dropout": 0.1,
    "output_dropout": 0.1,
    "mlm_head": "bias",
    "pooling": "last",
    "classifier_dense": "own",
    "initializer": "normal",
    "pad_token_id": 5,
}

# openai/gpt-2:src/model.py, model_card.md; the decoder that encoders are compared with.
_GPT2 = {
    "family": "gpt2",
    "causal": True,
    "max_position_embeddings": 1024,
    "type_vocab_size": 0,
    "embedding_norm": "none",
    "norm_placement": "pre",
    "layer_norm_eps": 1e-5,
    "mlm_head": "tied",
    "initializer": "normal",
    "scale_residual_init": True,
    "pad_token_id": 50256,
    "pooling": "last",
    "classifier_dense": "none",
    "classifier_bias": False,
}


# microsoft/MPNet:pretraining/fairseq/models/masked_permutation_net.py, mpnet_rel_base (arXiv:2004.09297).
_MPNET = _ROBERTA | {"family": "mpnet", "attention_position": "relative_bias", "type_vocab_size": 0}

# XLM-R with rotary positions (arXiv:2409.10173; huggingface/transformers:models/jina_embeddings_v3), without adapters.
_JINA_V3 = _ROBERTA | {
    "family": "jina_embeddings_v3",
    "position_embedding": "none",
    "position_offset": 0,
    "max_position_embeddings": 8194,
    "attention_position": "rotary",
    "global_rope_theta": 20_000.0,
}

# huggingface/transformers:models/gte (arXiv:2407.19669); the English ones are those of Alibaba-NLP/gte-*-en-v1.5.
_GTE = {
    "family": "gte",
    "position_embedding": "none",
    "max_position_embeddings": 8192,
    "attention_position": "rotary",
    "global_rope_theta": 160_000.0,
    "type_vocab_size": 1,
    "feed_forward": "glu",
    "feed_forward_inner_bias": False,
    "hidden_act": "gelu",
    "mlm_act": "gelu",
    "initializer": "normal",
    "attention_dropout": 0.0,
    "activation_dropout": 0.1,
    "pad_token_id": 1,
}

# nomic-ai/contrastors:src/contrastors/models (arXiv:2402.01613).
_NOMIC = {
    "family": "nomic_bert",
    "position_embedding": "none",
    "max_position_embeddings": 2048,
    "attention_position": "rotary",
    "global_rope_theta": 1_000.0,
    "attention_bias": "none",
    "feed_forward": "glu",
    "feed_forward_bias": False,
    "hidden_act": "silu",
    "initializer": "normal",
    **NO_DROPOUT,
}

# mosaicml/examples:examples/benchmarks/bert (arXiv:2312.17482), also MAGICS-LAB/DNABERT_2 (arXiv:2306.15006,
# vocabulary 4,096); arXiv:2310.19923, section 4 for Jina v2.
_MOSAIC = {
    "family": "mosaic_bert",
    "position_embedding": "none",
    "attention_position": "relative_bias",
    "relative_bias": "linear",
    "feed_forward": "glu",
    "feed_forward_inner_bias": False,
    "hidden_act": "gelu",
    "mlm_act": "gelu",
    "initializer": "normal",
    "attention_dropout": 0.0,
    "activation_dropout": 0.1,
    "feed_forward_dropout": 0.0,
}
_JINA_V2 = _MOSAIC | {"family": "jina_bert", "max_position_embeddings": 8192}


PRESETS: dict[str, Values] = {
    **_BERT,
    "spanbert-base": layer_sizes(12, 768) | _SPANBERT,
    "spanbert-large": layer_sizes(24, 1024) | _SPANBERT,
    "roberta-base": layer_sizes(12, 768) | _ROBERTA,
    "roberta-large": layer_sizes(24, 1024) | _ROBERTA,
    "distilroberta": layer_sizes(6, 768) | _ROBERTA,
    "roberta-prelayernorm": layer_sizes(24, 1024) | _ROBERTA | _PRE_NORM,
    **_LIKE_ROBERTA,
    "xmod-base": layer_sizes(12, 768) | _ROBERTA | _XMOD,
    "xmod-large-prenorm": layer_sizes(24, 1024) | _ROBERTA | _XMOD | _XMOD_LARGE,
    "xlm-roberta-xl": layer_sizes(36, 2560, 32) | _ROBERTA | _XLMR_XL,
    "xlm-roberta-xxl": layer_sizes(48, 4096, 32) | _ROBERTA | _XLMR_XL,
    **{f"ernie-3.0-{size}": sizes | _ERNIE for size, sizes in _ERNIE_SIZES.items()},
    "megatron-bert-345m": layer_sizes(24, 1024) | _MEGATRON,
    **{
        f"albert-{size}-v1": sizes | _ALBERT | (NO_DROPOUT if size == "xxlarge" else {})
        for size, sizes in _ALBERT_SIZES.items()
    },
    **{f"albert-{size}-v2": sizes | _ALBERT | NO_DROPOUT for size, sizes in _ALBERT_SIZES.items()},
    "distilbert": layer_sizes(6, 768) | _DISTILBERT,
    "electra-small": layer_sizes(12, 256) | {"embedding_size": 128} | _ELECTRA,
    "electra-base": layer_sizes(12, 768) | _ELECTRA,
    "electra-large": layer_sizes(24, 1024) | _ELECTRA,
    "electra-small-generator": layer_sizes(12, 64) | {"embedding_size": 128} | _ELECTRA,
    "electra-small-generator-released": layer_sizes(12, 256) | {"embedding_size": 128} | _ELECTRA,
    "electra-base-generator": layer_sizes(12, 256) | {"embedding_size": 768} | _ELECTRA,
    "electra-large-generator": layer_sizes(24, 256) | {"embedding_size": 1024} | _ELECTRA,
    "deberta-base": layer_sizes(12, 768) | _DEBERTA,
    "deberta-large": layer_sizes(24, 1024) | _DEBERTA,
    "deberta-xlarge": layer_sizes(48, 1024) | _DEBERTA,
    "deberta-v2-xlarge": layer_sizes(24, 1536) | _DEBERTA_V2_CONV,
    "deberta-v2-xxlarge": layer_sizes(48, 1536) | _DEBERTA_V2_CONV,
    "deberta-v3-xsmall": layer_sizes(12, 384) | _DEBERTA_V3,
    "deberta-v3-small": layer_sizes(6, 768) | _DEBERTA_V3,
    "deberta-v3-base": layer_sizes(12, 768) | _DEBERTA_V3,
    "deberta-v3-large": layer_sizes(24, 1024) | _DEBERTA_V3,
    "xlnet-base": layer_sizes(12, 768) | _XLNET,
    "xlnet-large": layer_sizes(24, 1024) | _XLNET,
    "modernbert-base": layer_sizes(22, 768, 12, 1152) | MODERNBERT,
    "modernbert-large": layer_sizes(28, 1024, 16, 2624) | MODERNBERT,
    "mpnet-base": layer_sizes(12, 768) | _MPNET,
    "nomic-bert-2048": layer_sizes(12, 768) | _NOMIC,
    "gte-multilingual-base": layer_sizes(12, 768) | _GTE,
    "mosaic-bert-base": layer_sizes(12, 768) | _MOSAIC,
    "dnabert-2-117m": layer_sizes(12, 768) | _MOSAIC,
    "jina-embeddings-v2-small": layer_sizes(4, 512) | _JINA_V2,
    "jina-embeddings-v2-base": layer_sizes(12, 768) | _JINA_V2,
    "jina-embeddings-v3": layer_sizes(24, 1024) | _JINA_V3,
    **ROTARY_PRESETS,
    "gpt2": layer_sizes(12, 768) | _GPT2,
    "gpt2-medium": layer_sizes(24, 1024) | _GPT2,
    "gpt2-large": layer_sizes(36, 1280) | _GPT2,
    "gpt2-xl": layer_sizes(48, 1600) | _GPT2,
    **BERT_VARIANTS,
    **GEMMA_PRESETS,
    **SEQ2SEQ_PRESETS,
}


def preset(name: str) -> Values:
    """Returns the values of a published model, {} for "none"; raises `UserError` for an unknown name."""
    if name == "none":
        return {}
    if name not in PRESETS:
        named = [key for key in PRESETS if not key.startswith("bert-") or "x" not in key]
        raise UserError(
            f"unknown model preset {name!r}; there are {', '.join(named)} and bert-LxH for L in 2..12, H in 128..768"
        )
    return dict(PRESETS[name])
