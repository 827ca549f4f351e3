"""The keys of an encoder: what it computes."""

from __future__ import annotations

import dataclasses
from typing import Any

from bertjax.config.extensions import ATTENTION, FAMILIES
from bertjax.config.fields import Settings, phase_setting, setting
from bertjax.config.registry import Choices

ACTIVATIONS = ("gelu", "gelu_new", "relu", "silu")  # Hugging Face's words: gelu = erf, gelu_new = tanh
HEAD_ACTIVATIONS = ("tanh", *ACTIVATIONS)


def _disentangled(config: ArchitectureConfig) -> bool:
    return config.attention_position == "disentangled"


def _relative(config: ArchitectureConfig) -> bool:
    return config.attention_position == "relative"


def _biased(config: ArchitectureConfig) -> bool:
    return config.attention_position == "relative_bias"


def _bucketed(config: ArchitectureConfig) -> bool:
    return _biased(config) and config.relative_bias == "learned"


def _learned(config: ArchitectureConfig) -> bool:
    return config.position_embedding == "learned"


def _offset(config: ArchitectureConfig) -> bool:
    return config.position_embedding in ("learned", "fairseq")


def _narrow(config: ArchitectureConfig) -> bool:
    return config.bottleneck_size is not None


def dropout_setting(default: float | None, help: str) -> float:
    """Declares a probability of dropout."""
    return phase_setting(default, at_least=0.0, below=1.0, changes_output=False, help=help)


def size_setting(default: int | None, **declaration: Any) -> Any:
    """Declares a width or a number of at least 1."""
    return setting(default, at_least=1, at_most=MAX_WIDTH, **declaration)


MAX_WIDTH = 1_000_000
MAX_LAYERS = 10_000


@dataclasses.dataclass(frozen=True)
class ArchitectureConfig(Settings, group="model"):
    """The encoder itself: sizes, embeddings, positions, attention, feed-forward block, sharing, dropout, initial draw.

    `vocab_size` is the tokenizer's true size.
    """

    family: str = setting(
        "bert",
        choices=Choices(FAMILIES, "bertjax"),
        changes_output=False,
        help="Hugging Face family whose classes an export gets if they can hold the model; bertjax: our own format.",
    )
    vocab_size: int = setting(30522, at_least=1, key=False, may_differ_from_init=True, help="Tokens of the tokenizer.")
    hidden_size: int = size_setting(768, help="Width of the residual stream.")
    num_layers: int = setting(12, at_least=1, at_most=MAX_LAYERS, help="Layers.")
    num_heads: int = size_setting(12, help="Attention heads; must divide hidden_size unless head_size is set.")
    num_key_value_heads: int | None = size_setting(
        None,
        help="Heads of keys and values, each read by num_heads / num_key_value_heads query heads (grouped-query "
        "attention, arXiv:2305.13245); None: num_heads.",
    )
    head_size: int | None = size_setting(
        None, help="Width of a head; None: hidden_size / num_heads, half of it with `dynamic_conv_kernel_size`."
    )
    intermediate_size: int = size_setting(3072, help="Width inside the feed-forward block.")
    bottleneck_size: int | None = size_setting(
        None,
        help="Width inside a layer, which begins with a projection of its input and a norm, and ends with a projection "
        "to hidden_size, whose sum with the input is normed (MobileBERT, arXiv:2004.02984: 128 of 512); None: "
        "hidden_size, without projections.",
    )
    use_bottleneck_attention: bool = setting(
        False,
        read_if=_narrow,
        help="Attention reads the narrow input; false: its values read the input of the layer, and its queries and "
        "keys a projection of their own, as narrow.",
    )
    adapter_size: int | None = size_setting(
        None,
        help="Width inside an adapter after the feed-forward block (X-MOD, arXiv:2205.06266); its sum has the norm of "
        "that block with norm_placement=post, elsewhere a norm of its own precedes it. None: no adapter.",
    )
    adapter_language: str | None = setting(
        None,
        changes_output=False,
        may_differ_from_init=True,
        read_if=lambda config: config.adapter_size is not None,
        help="Language of the adapter, its name in exports as X-MOD; None: without a name, which no X-MOD has.",
    )

    embedding_size: int | None = size_setting(
        None,
        help="Width of the word table, which is projected to hidden_size (ALBERT's factorisation); None: hidden_size, "
        "not factorised.",
    )
    embedding_projection_bias: bool = setting(
        True, read_if=lambda config: config.embedding_size is not None, help="Bias of that projection."
    )
    embedding_ngram: int | None = setting(
        None,
        at_least=1,
        help="Tokens (odd) whose word embeddings the projection of a token reads: 3 for the one before and the one "
        "after as well, zeros outside the example (MobileBERT). Positions and types are added after it, hidden_size "
        "wide. None: the projection reads the sum of all embeddings of a token.",
    )
    embedding_norm: str = setting(
        "before",
        choices=("before", "after", "words", "none"),
        help="Norm of the embeddings: before the projection (ALBERT, ELECTRA), after it (DeBERTa), words (of the word "
        "embeddings alone, before positions and types are added: the decoder of the small Blenderbot), none (GPT-2).",
    )
    embedding_scale: bool = setting(
        False, help="Multiply word embeddings by the root of their width (arXiv:1706.03762, section 3.4)."
    )
    zero_pad_embeddings: bool = setting(False, help="Padding embeds as zero (DeBERTa, ESM).")
    token_dropout: bool = setting(
        False,
        help="Mask tokens embed as zero, and the other tokens of an example are scaled by 0.88 / (their share), as by "
        "a dropout of the 12 % that are replaced by the mask token in pretraining (ESM-2).",
    )
    position_embedding: str = setting(
        "learned",
        choices=("learned", "sinusoidal", "fairseq", "none"),
        help="Absolute positions, added to the embeddings; fairseq: sinusoids whose longest wave has exactly the base "
        "10000, where padding has none (fairseq, M2M-100).",
    )
    max_position_embeddings: int = setting(
        512,
        at_least=1,
        may_differ_from_init=True,
        read_if=lambda config: _learned(config) or config.enhanced_decoder,
        help="Longest example that the model can read, in tokens.",
    )
    position_offset: int = setting(
        0,
        at_least=0,
        read_if=_offset,
        help="Rows of the position table before the first position (RoBERTa, M2M-100: pad id + 1).",
    )
    type_vocab_size: int = setting(
        2, at_least=0, may_differ_from_init=True, help="Rows of the token type table: 2 for two segments; 0: no table."
    )

    attention_position: str = setting(
        "none",
        choices=("none", "rotary", "disentangled", "relative", "relative_bias"),
        help="Positions inside attention: none, rotary, disentangled (DeBERTa), relative (XLNet), relative_bias (per "
        "head and distance: T5, MPNet, ALiBi).",
    )
    pos_att_type: tuple[str, ...] = setting(
        ("c2p", "p2c"),
        choices=("c2p", "p2c"),
        read_if=_disentangled,
        help="Disentangled: terms of the score besides content to content: c2p (content to position), p2c.",
    )
    share_att_key: bool = setting(
        False, read_if=_disentangled, help="Disentangled: the projections of content serve positions as well."
    )
    position_buckets: int = setting(
        0,
        at_least=0,
        may_differ_from_init=True,
        read_if=_disentangled,
        help="Disentangled: rows per side of a logarithmic table; 0: a row per distance.",
    )
    max_relative_positions: int | None = setting(
        None,
        at_least=1,
        may_differ_from_init=True,
        read_if=_disentangled,
        help="Disentangled: largest distance that is distinguished; None: max_position_embeddings.",
    )
    norm_relative_embeddings: bool = setting(
        False, read_if=_disentangled, help="Disentangled: norm on the table of relative embeddings."
    )
    relative_segments: bool = setting(
        False, read_if=_relative, help="Relative: scores depend on whether two tokens are of one segment (XLNet)."
    )
    clamp_len: int = setting(
        -1,
        at_least=-1,
        may_differ_from_init=True,
        read_if=_relative,
        help="Relative: distances are clamped to this; -1: not clamped.",
    )
    mem_len: int | None = setting(
        None,
        at_least=1,
        may_differ_from_init=True,
        read_if=_relative,
        help="Relative: upper limit of tokens of earlier sequences that a layer remembers; None: all it is passed, "
        "with objective.name=plm 3/4 of a sequence.",
    )
    reuse_len: int | None = setting(
        None,
        at_least=1,
        may_differ_from_init=True,
        read_if=_relative,
        help="Relative: the first tokens of a sequence, which are remembered; None: all, in the format segments half.",
    )
    bi_data: bool = setting(
        False,
        may_differ_from_init=True,
        read_if=_relative,
        help="Relative: the second half of a batch is text in reverse, with reversed distances (XLNet).",
    )
    relative_bias: str = setting(
        "learned",
        choices=("learned", "linear"),
        read_if=_biased,
        help="Relative bias: learned (a table by buckets of distances), linear (the distance on either side times a "
        "number per head, without parameters: ALiBi, arXiv:2108.12409).",
    )
    relative_attention_num_buckets: int = setting(
        32, at_least=4, read_if=_bucketed, help="Relative bias: buckets of distances, both sides together."
    )
    relative_attention_max_distance: int = setting(
        128,
        at_least=1,
        may_differ_from_init=True,
        read_if=_bucketed,
        help="Relative bias: distances from here on share a bucket.",
    )
    relative_attention_shared: bool = setting(
        True,
        read_if=_bucketed,
        help="Relative bias: one table for all layers (T5, MPNet); false: a table for each (UMT5, arXiv:2304.09151).",
    )
    conv_kernel_size: int = setting(
        0,
        at_least=0,
        help="Width (odd) of a convolution of the embeddings, added after the first layer (DeBERTa v2 xlarge); "
        "0: none.",
    )
    conv_act: str = setting(
        "gelu",
        choices=HEAD_ACTIVATIONS,
        read_if=lambda config: config.conv_kernel_size > 0,
        help="Activation of that convolution.",
    )

    dynamic_conv_kernel_size: int = setting(
        0,
        at_least=0,
        at_most=MAX_WIDTH,
        help="Neighbors (odd) of a convolution in every head, of whose result and attention's the output is made; its "
        "kernel follows from the span of tokens that it covers (ConvBERT, arXiv:2008.02496: 9). Heads are half as wide "
        "unless head_size is set; 0: none.",
    )

    attention_class: str | None = setting(
        None,
        choices=Choices(ATTENTION),
        help="Attention of another package: the name of its entry point, or package.module:Name; its settings are in "
        "model.NAME. None: the attention that `attention_position` needs.",
    )
    attention_settings: tuple[str, ...] = setting(
        (), key=False, help="Settings of `attention_class`, NAME=VALUE; in a config they are the keys of model.NAME."
    )
    causal: bool = setting(False, may_differ_from_init=True, help="A token attends only to itself and those before it.")
    cross_attention_hidden_size: int | None = size_setting(
        None,
        key=False,
        help="Width of the encoder whose output every layer attends to, after its self-attention; None: not a decoder.",
    )
    local_attention: int = phase_setting(
        0,
        at_least=0,
        may_differ_from_init=True,
        help="Window of local layers: local_attention // 2 tokens on either side (causal: before); 0: every layer is "
        "global.",
    )
    global_attn_every_n_layers: int = setting(
        1,
        at_least=0,
        may_differ_from_init=True,
        read_if=lambda config: config.local_attention > 0,
        help="With local_attention: every n-th layer is global, from `first_global_layer` on; 0: none is (Mistral).",
    )
    first_global_layer: int = setting(
        0,
        at_least=0,
        may_differ_from_init=True,
        read_if=lambda config: config.local_attention > 0 and config.global_attn_every_n_layers > 0,
        help="With local_attention: the first global layer; 0: ModernBERT, n - 1: Gemma 2 and 3.",
    )
    attention_bias: str = setting(
        "all",
        choices=("all", "query_value", "query_key_value", "none"),
        help="Biases of attention: all, query_value (and output; DeBERTa v1), query_key_value (not output; Qwen2), "
        "none.",
    )
    attention_groups: int = setting(
        1,
        at_least=1,
        at_most=MAX_WIDTH,
        help="Groups of channels in the projections of queries, keys and values, each of which reads its own share of "
        "the input (SqueezeBERT, arXiv:2006.11316: 4); 1: dense.",
    )
    attention_scale: bool = setting(
        True, help="Divide scores by the root of the head size; false: T5, whose initial weights make up for it."
    )
    attention_scale_size: int | None = size_setting(
        None,
        read_if=lambda config: config.attention_scale,
        help="Divide scores by the root of this (Gemma 2's query_pre_attn_scalar); None: the head size.",
    )
    attention_soft_cap: float | None = setting(
        None, above=0.0, help="Scores x become c tanh(x / c), below c in size (Gemma 2, arXiv:2408.00118); None: not."
    )
    qk_norm: bool = setting(
        False, help="Norms of every head's queries and keys, before the rotation (Qwen3; arXiv:2302.05442)."
    )
    qk_norm_over: str = setting(
        "head",
        choices=("head", "all"),
        read_if=lambda config: config.qk_norm,
        help="Axis of these norms: head (each by itself), all (all heads together, without a bias: ESM C).",
    )
    attention_gate: str | None = setting(
        None,
        choices=HEAD_ACTIVATIONS,
        help="Multiply what attention sums by this activation of another projection of its input (GPT-BERT, "
        "arXiv:2410.24159: gelu); None: not.",
    )
    feed_forward: str = setting(
        "dense", choices=("dense", "glu"), help="dense: two matrices; glu: gated, three matrices."
    )
    num_feedforward_networks: int = setting(
        1,
        at_least=1,
        at_most=MAX_LAYERS,
        help="Feed-forward blocks of a layer, one after the other, each with residual and norm (MobileBERT: 4).",
    )
    feed_forward_bias: bool = setting(True, help="Biases of the feed-forward block.")
    feed_forward_inner_bias: bool = setting(
        True, read_if=lambda config: config.feed_forward_bias, help="false: only its last layer has a bias (GTE)."
    )
    feed_forward_groups: int = setting(
        1,
        at_least=1,
        at_most=MAX_WIDTH,
        help="Groups of channels in the matrices of the feed-forward block, as `attention_groups`; 1: dense.",
    )
    hidden_act: str = setting(
        "gelu_new",
        choices=ACTIVATIONS,
        help="Activation of the feed-forward block: gelu (erf), gelu_new (tanh, as in Google's code), relu, silu.",
    )
    norm_placement: str = setting(
        "post",
        choices=("post", "pre", "sandwich", "parallel", "normformer", "sub"),
        help="post: norm of the residual sum; pre: before each block and at the end; sandwich: pre, and of each "
        "block's output (arXiv:2502.02732); parallel: pre, where both blocks of a layer read its input (GPT-NeoX); "
        "normformer: pre, of attention's output, and before the last layer of the feed-forward block "
        "(arXiv:2110.09456); sub: pre, and before the last layer of either block (arXiv:2210.06423).",
    )
    norm_type: str = setting(
        "layer_norm",
        choices=("layer_norm", "rms_norm", "affine"),
        help="All norms; rms_norm: neither centered nor biased; affine: scale and bias alone, without statistics, but "
        "in the masked-token head, which has a layer_norm (MobileBERT's NoNorm).",
    )
    norm_bias: bool = setting(True, read_if=lambda config: config.norm_type != "rms_norm", help="Biases of the norms.")
    last_norm_bias: bool = setting(
        True,
        read_if=lambda config: config.norm_type != "rms_norm" and config.norm_bias and config.norm_placement != "post",
        help="false: the norm after the last layer alone has no bias (ESM C).",
    )
    norm_zero_centered: bool = setting(
        False, help="Norms multiply by 1 + scale, and scales start at 0 (Gemma), so that weight decay draws them to 1."
    )
    first_attention_norm: bool = setting(
        True, help="false: the attention of the first layer reads its input without a norm (ModernBERT)."
    )
    residual_depth: int | None = setting(
        None,
        at_least=1,
        help="Divide what a block adds to the residual stream by sqrt(num_layers / this) (ESM C: 36); None: not.",
    )
    depth_weighted_average: bool = setting(
        False,
        help="The residual stream after every block is a weighted sum of all that it was before, the embeddings "
        "included, with a trained weight for each (DenseFormer, arXiv:2402.02622; GPT-BERT).",
    )
    layer_norm_eps: float = setting(
        1e-12, at_least=0.0, may_differ_from_init=True, help="Added to the variance in norms."
    )

    num_groups: int | None = setting(
        None,
        at_least=1,
        help="Groups of layers that share parameters (ALBERT: 1); None: every layer has its own parameters.",
    )
    inner_layers: int = setting(
        1,
        at_least=1,
        at_most=MAX_LAYERS,
        read_if=lambda config: config.num_groups is not None,
        help="Layers per group, run one after the other.",
    )

    hidden_dropout: float = dropout_setting(0.1, "Dropout of every block's output.")
    attention_dropout: float = dropout_setting(0.1, "Dropout of the attention probabilities.")
    embedding_dropout: float | None = dropout_setting(None, "Dropout of the embeddings; None: hidden_dropout.")
    attention_output_dropout: float | None = dropout_setting(
        None, "Dropout of attention's output; None: hidden_dropout."
    )
    feed_forward_dropout: float | None = dropout_setting(
        None, "Dropout of the feed-forward block's output; None: hidden_dropout."
    )
    activation_dropout: float = dropout_setting(0.0, "Dropout inside the feed-forward block, after the activation.")
    output_dropout: float = dropout_setting(0.0, "Dropout of the last hidden state (XLNet).")

    initializer: str = setting(
        "truncated_normal",
        choices=("truncated_normal", "normal"),
        changes_output=False,
        help="Initial weights: truncated_normal (cut at two sigma, not rescaled) or normal.",
    )
    initializer_range: float = setting(0.02, at_least=0.0, changes_output=False, help="Their standard deviation.")
    scale_residual_init: bool = setting(
        False, changes_output=False, help="Divide it by sqrt(2 num_layers) for the matrices that end a block."
    )
    pad_token_id: int = setting(
        0,
        key=False,
        may_differ_from_init=True,
        read_if=lambda config: _offset(config) and config.position_offset > 0,
        help="Id of the padding token.",
    )
    mask_token_id: int = setting(
        0,
        key=False,
        may_differ_from_init=True,
        read_if=lambda config: config.token_dropout,
        help="Id of the mask token, for `token_dropout`.",
    )
