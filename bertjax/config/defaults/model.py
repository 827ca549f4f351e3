"""`model` and `generator`: the networks."""

from __future__ import annotations

from ml_collections import ConfigDict, config_dict


def model_group() -> ConfigDict:
    """A published size and what to change of it; sizes of the vocabulary come from the tokenizer."""
    model = ConfigDict()
    # A name of bertjax/config/presets.py, such as "bert-base" or "bert-6x512". Every None below takes
    # the preset's value.
    # "none" has none: every size is given below (configs of finetuning runs, which have those of `init_from`).
    model.preset = "bert-base"
    # Whose Hugging Face classes an export gets where they can hold the model: bert roberta albert distilbert electra
    # deberta deberta-v2 xlnet modernbert gpt2; "bertjax" = our own format.
    model.family = config_dict.placeholder(str)
    # Sizes: width of the residual stream, layers, heads (must divide the width), width inside the feed-forward block.
    model.hidden_size = config_dict.placeholder(int)
    model.num_layers = config_dict.placeholder(int)
    model.num_heads = config_dict.placeholder(int)
    model.intermediate_size = config_dict.placeholder(int)
    # Width of a head where it is not hidden_size / num_heads.
    model.head_size = config_dict.placeholder(int)
    # Width of the embeddings where they are projected to hidden_size (ALBERT's factorisation), the bias of that
    # projection, and where their norm stands: "before" the projection, "after" it, "none".
    model.embedding_size = config_dict.placeholder(int)
    model.embedding_projection_bias = config_dict.placeholder(bool)
    model.embedding_norm = config_dict.placeholder(str)
    # Multiply word embeddings by the root of their width; make the embeddings of padding zero.
    model.embedding_scale = config_dict.placeholder(bool)
    model.zero_pad_embeddings = config_dict.placeholder(bool)
    # Absolute positions: "learned", "sinusoidal" or "none". Positions inside attention: "none", "rotary",
    # "disentangled" (DeBERTa) or "relative" (XLNet).
    model.position_embedding = config_dict.placeholder(str)
    model.attention_position = config_dict.placeholder(str)
    # Longest example that the model can ever read, in tokens; rows of the position table before the first position.
    model.max_position_embeddings = config_dict.placeholder(int)
    model.position_offset = config_dict.placeholder(int)
    # Rows of the token type table: 2 tells the first segment from the second, 0 has no table.
    model.type_vocab_size = config_dict.placeholder(int)
    # Rotary: wave length base of layers that see the whole row, and of those with a window.
    model.global_rope_theta = config_dict.placeholder(float)
    model.local_rope_theta = config_dict.placeholder(float)
    # Disentangled: terms of the score beside content ("c2p", "p2c"); whether content projections serve positions, too;
    # rows per side of a logarithmic table (0 = a row per distance); largest distance told; a norm on the table.
    model.pos_att_type = config_dict.placeholder(tuple)
    model.share_att_key = config_dict.placeholder(bool)
    model.position_buckets = config_dict.placeholder(int)
    model.max_relative_positions = config_dict.placeholder(int)
    model.norm_relative_embeddings = config_dict.placeholder(bool)
    # Relative: scores tell same from other segment; distances are cut to this (-1 = not).
    model.relative_segments = config_dict.placeholder(bool)
    model.clamp_len = config_dict.placeholder(int)
    # Relative: most tokens of earlier rows that are remembered, and how many of a row's first tokens are (XLNet's
    # mem_len and reuse_len; objective.name=plm takes 3/4 and 1/2 of a row where they are None); whether the second half
    # of every batch is text read backwards.
    model.mem_len = config_dict.placeholder(int)
    model.reuse_len = config_dict.placeholder(int)
    model.bi_data = config_dict.placeholder(bool)
    # Width (odd) and activation of a convolution of the embeddings, added after the first layer; 0 = none.
    model.conv_kernel_size = config_dict.placeholder(int)
    model.conv_act = config_dict.placeholder(str)
    # A token sees only those before it, and itself.
    model.causal = config_dict.placeholder(bool)
    # Local layers see window // 2 tokens on either side; layers 0, n, 2n, ... see the whole row.
    model.local_attention = config_dict.placeholder(int)
    model.global_attn_every_n_layers = config_dict.placeholder(int)
    # Biases of attention: "all", "query_value" (DeBERTa v1) or "none".
    model.attention_bias = config_dict.placeholder(str)
    # "dense" (two products) or "glu" (gated: three), and whether they have biases.
    model.feed_forward = config_dict.placeholder(str)
    model.feed_forward_bias = config_dict.placeholder(bool)
    # "gelu" (erf), "gelu_new" (tanh, what Google's code computes), "relu" or "silu".
    model.hidden_act = config_dict.placeholder(str)
    # Norms "post" the residual sum or "pre" each block; their bias; whether the first layer's attention has one.
    model.norm_placement = config_dict.placeholder(str)
    model.norm_bias = config_dict.placeholder(bool)
    model.first_attention_norm = config_dict.placeholder(bool)
    # Added to the variance before its root.
    model.layer_norm_eps = config_dict.placeholder(float)
    # Layers share parameters in this many groups (ALBERT: 1), each of `inner_layers` layers run in a row.
    model.num_groups = config_dict.placeholder(int)
    model.inner_layers = config_dict.placeholder(int)
    # Share dropped of every block's output, and of the attention probabilities; [0, 1). The next three are as
    # `hidden_dropout` unless set; the last three are inside the feed-forward block, of the last hidden state, and
    # before a classifier.
    model.hidden_dropout = config_dict.placeholder(float)
    model.attention_dropout = config_dict.placeholder(float)
    model.embedding_dropout = config_dict.placeholder(float)
    model.attention_output_dropout = config_dict.placeholder(float)
    model.feed_forward_dropout = config_dict.placeholder(float)
    model.activation_dropout = config_dict.placeholder(float)
    model.output_dropout = config_dict.placeholder(float)
    model.classifier_dropout = config_dict.placeholder(float)
    # "truncated_normal" (cut at two sigma, not rescaled) or "normal", its sigma, and whether products that end a block
    # are drawn with sigma / sqrt(2 num_layers).
    model.initializer = config_dict.placeholder(str)
    model.initializer_range = config_dict.placeholder(float)
    model.scale_residual_init = config_dict.placeholder(bool)
    # Activation of the pooler.
    model.pooler_act = config_dict.placeholder(str)
    # Masked-word head: "transform" (dense, activation, norm, scores, bias), "bias" (scores, bias) or "tied" (scores);
    # its activation where not hidden_act; biases of its dense layer (and of classifiers') and of its scores.
    model.mlm_head = config_dict.placeholder(str)
    model.mlm_act = config_dict.placeholder(str)
    model.head_dense_bias = config_dict.placeholder(bool)
    model.mlm_bias = config_dict.placeholder(bool)
    # Masked words are read from the last layer run twice over absolute positions (DeBERTa).
    model.enhanced_decoder = config_dict.placeholder(bool)
    # Replaced-token head: "dense" (ELECTRA) or "summary" (DeBERTa v3).
    model.rtd_head = config_dict.placeholder(str)
    # Span-boundary head: places of a span that are told apart, and the width of their embeddings.
    model.span_positions = config_dict.placeholder(int)
    model.span_position_size = config_dict.placeholder(int)
    # Classifiers: what stands for an example ("first", "last", "mean"), the dense layer on it ("pooler", "own",
    # "none"), its activation and norm, whether token heads have it, too; names of the labels.
    model.pooling = config_dict.placeholder(str)
    model.classifier_dense = config_dict.placeholder(str)
    model.classifier_act = config_dict.placeholder(str)
    model.classifier_norm = config_dict.placeholder(bool)
    model.token_classifier_dense = config_dict.placeholder(bool)
    model.labels = config_dict.placeholder(tuple)
    # How attention is computed: "auto", "xla", "tiled" (a few heads at a time: CPU), "cudnn" (GPU), "splash" (TPU),
    # "interpret" (splash on a CPU, for tests).
    model.attention_implementation = config_dict.placeholder(str)
    # Backward pass: "none" keeps every activation, "dots" keeps the products with weights, "full" only layer inputs.
    model.remat = config_dict.placeholder(str)
    # Layers in one body of the scan: larger compiles longer and may run faster. None = all on a CPU without `remat`,
    # else 1.
    model.unroll = config_dict.placeholder(int)
    return model


def generator_group() -> ConfigDict:
    """objective.name=rtd: the network whose words `model`, the discriminator, is to find. None = as the model has it.

    Its keys are those of `model`; widths and depth that are not set are the model's times the two shares.
    """
    generator = model_group()
    # A published size to begin with, instead of the model's own values.
    generator.preset = config_dict.placeholder(str)
    # Width of the generator as a share of the model's (ELECTRA: 1/4, base 1/3); its heads are as wide as the model's.
    generator.width_ratio = 1.0
    # Layers of the generator as a share of the model's (DeBERTa v3: 1/2).
    generator.depth_ratio = 1.0
    return generator
