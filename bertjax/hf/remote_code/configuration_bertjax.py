"""Configs of models that were trained with bertjax: sizes, and a choice for every part. Needs transformers."""

from __future__ import annotations

import copy
from typing import Any

from transformers import PretrainedConfig


class BertjaxConfig(PretrainedConfig):
    """One Transformer encoder with its heads.

    `bertjax config` explains every field. None means that a part is absent, or that the value follows from others:
    `head_size` from the hidden size, `embedding_dropout` and its like from `hidden_dropout`.
    """

    model_type = "bertjax"
    attribute_map = {"num_hidden_layers": "num_layers", "num_attention_heads": "num_heads"}

    heads: tuple[str, ...] = ()  # those that the model was trained with
    vocab_size: int = 30522
    hidden_size: int = 768
    num_layers: int = 12
    num_heads: int = 12
    num_key_value_heads: int | None = None
    head_size: int | None = None
    intermediate_size: int = 3072
    bottleneck_size: int | None = None
    use_bottleneck_attention: bool = False
    adapter_size: int | None = None
    adapter_language: str | None = None
    # embeddings
    embedding_size: int | None = None
    embedding_projection_bias: bool = True
    embedding_ngram: int | None = None
    embedding_norm: str = "before"
    embedding_scale: bool = False
    zero_pad_embeddings: bool = False
    token_dropout: bool = False
    position_embedding: str = "learned"
    max_position_embeddings: int = 512
    position_offset: int = 0
    type_vocab_size: int = 2
    pad_token_id: int = 0
    mask_token_id: int = 0
    eos_token_id: int = 0
    question_token_id: int | None = None
    # positions inside attention
    attention_position: str = "none"
    global_rope_theta: float = 10_000.0
    local_rope_theta: float = 10_000.0
    rope_type: str = "default"
    rope_layers: str = "all"
    rope_factor: float = 1.0
    rope_original_length: int = 2048
    rope_slow_turns: float = 1.0
    rope_fast_turns: float = 32.0
    rope_truncate: bool = True
    rope_attention_factor: float = 1.0
    rope_short_factors: tuple[float, ...] = ()
    rope_long_factors: tuple[float, ...] = ()
    rope_rounding: str = "float32"
    rotary_value: bool = False
    pos_att_type: tuple[str, ...] = ("c2p", "p2c")
    share_att_key: bool = False
    position_buckets: int = 0
    max_relative_positions: int | None = None
    norm_relative_embeddings: bool = False
    relative_segments: bool = False
    clamp_len: int = -1
    mem_len: int | None = None
    reuse_len: int | None = None
    bi_data: bool = False
    relative_bias: str = "learned"
    relative_attention_num_buckets: int = 32
    relative_attention_max_distance: int = 128
    relative_attention_shared: bool = True
    # layers
    conv_kernel_size: int = 0
    conv_act: str = "gelu"
    dynamic_conv_kernel_size: int = 0
    depth_weighted_average: bool = False
    attention_gate: str | None = None
    causal: bool = False
    cross_attention_hidden_size: int | None = None
    decoder_layers: int | None = None
    decoder_start: str = "eos"
    local_attention: int = 0
    global_attn_every_n_layers: int = 1
    first_global_layer: int = 0
    attention_bias: str = "all"
    attention_groups: int = 1
    attention_scale: bool = True
    attention_scale_size: int | None = None
    attention_soft_cap: float | None = None
    qk_norm: bool = False
    qk_norm_over: str = "head"
    feed_forward: str = "dense"
    num_feedforward_networks: int = 1
    feed_forward_bias: bool = True
    feed_forward_inner_bias: bool = True
    feed_forward_groups: int = 1
    hidden_act: str = "gelu_new"
    norm_placement: str = "post"
    norm_type: str = "layer_norm"
    norm_bias: bool = True
    last_norm_bias: bool = True
    norm_zero_centered: bool = False
    first_attention_norm: bool = True
    residual_depth: int | None = None
    layer_norm_eps: float = 1e-12
    num_groups: int | None = None
    inner_layers: int = 1
    # training
    hidden_dropout: float = 0.1
    attention_dropout: float = 0.1
    embedding_dropout: float | None = None
    attention_output_dropout: float | None = None
    feed_forward_dropout: float | None = None
    activation_dropout: float = 0.0
    output_dropout: float = 0.0
    classifier_bias: bool = True
    classifier_dropout: float | None = None
    initializer: str = "truncated_normal"
    initializer_range: float = 0.02
    scale_residual_init: bool = False
    # heads
    pooler_act: str = "tanh"
    mlm_head: str = "transform"
    prediction_head_size: int | None = None
    mlm_act: str | None = None
    head_dense_bias: bool = True
    mlm_bias: bool = True
    tie_word_embeddings: bool = True
    output_embedding_size: int | None = None
    scale_logits: bool = False
    logit_soft_cap: float | None = None
    enhanced_decoder: bool = False
    masked_next_token: bool = False
    rtd_head: str = "dense"
    span_positions: int = 20
    span_position_size: int = 200
    pooling: str = "first"
    classifier_dense: str = "pooler"
    choice_dense: str = "as_classifier"
    classifier_act: str = "tanh"
    classifier_norm: bool = False
    token_classifier_dense: bool = False
    answer_head: str = "tokens"

    @property
    def head_dim(self) -> int:
        """Width of a head."""
        return self.head_size or self.layer_width // (self.num_heads * (2 if self.dynamic_conv_kernel_size else 1))

    @property
    def layer_width(self) -> int:
        """Width of the blocks of a layer."""
        return self.bottleneck_size or self.hidden_size

    @property
    def attention_bottleneck(self) -> bool:
        """True where queries and keys read a projection of the input of a layer, and values that input."""
        return self.bottleneck_size is not None and not self.use_bottleneck_attention

    @property
    def max_distance(self) -> int:
        """Disentangled attention: the largest distance that is distinguished."""
        return self.max_relative_positions or self.max_position_embeddings

    @property
    def attention_span(self) -> int:
        """Disentangled attention: rows of the table on either side of distance 0."""
        return self.position_buckets or self.max_distance

    def decoder_config(self) -> BertjaxConfig:
        """Returns the decoder that reads the tokens again."""
        config = copy.deepcopy(self)
        config.num_layers, config.decoder_layers, config.causal = self.decoder_layers, None, True  # type: ignore[assignment]
        config.cross_attention_hidden_size = self.hidden_size
        return config

    def is_local(self, layer: int) -> bool:
        """Returns whether a layer has local attention."""
        period, first = self.global_attn_every_n_layers, self.first_global_layer
        return self.local_attention > 0 and (period == 0 or (layer - first) % period != 0)

    def rate(self, name: str) -> float:
        """Returns a dropout rate, `hidden_dropout` if it is None."""
        value = getattr(self, name)
        return self.hidden_dropout if value is None else value


class BertjaxEncoderDecoderConfig(PretrainedConfig):
    """An encoder and a decoder.

    Attributes:
        encoder, decoder: the two networks; `cross_attention_hidden_size` of the decoder is the width of the encoder.
        sharing: parameters of the encoder that the decoder uses: embeddings (the word table), all or none.
        pad_token_id, decoder_start_token_id: ids of targets.
    """

    model_type = "bertjax-encoder-decoder"
    sub_configs = {"encoder": BertjaxConfig, "decoder": BertjaxConfig}

    encoder: Any = None
    decoder: Any = None
    sharing: str = "none"
    pad_token_id: int | None = None
    decoder_start_token_id: int | None = None
    is_encoder_decoder: bool = True
    tie_word_embeddings: bool = True

    def __post_init__(self, **kwargs: Any) -> None:
        for name, kind in self.sub_configs.items():
            if not isinstance(network := getattr(self, name), kind):
                setattr(self, name, kind(**(network or {})))
        super().__post_init__(**kwargs)

    @property
    def vocab_size(self) -> int:
        """Number of tokens of the targets."""
        return self.decoder.vocab_size
