"""Multi-head attention: the projections that all variants share, and scaled dot-product attention."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float

from bertjax.config.attention import attention_settings, make_settings
from bertjax.config.fields import Settings
from bertjax.config.model import EncoderConfig
from bertjax.models import attention_kernels
from bertjax.models.attention_context import AttentionContext
from bertjax.models.dropout import dropout
from bertjax.models.linear import Key, Linear, Norm, Projection, activation, einsum, make_norm, recompute, soft_cap
from bertjax.models.local_attention import block_size, merge_blocks, should_block, split_blocks
from bertjax.models.pallas.attention import pallas_attention
from bertjax.models.rope import rotate
from bertjax.models.span_convolution import SpanConvolution, convolution_weights
from bertjax.models.tiled_attention import tiled_attention

Hidden = Float[Array, "B S D"]
Source = Float[Array, "B K D2"]
Queries = Float[Array, "B S N H"]
Keys = Float[Array, "B K N H"]
Scores = Float[Array, "B N S K"]
ADDED_SHARDINGS: dict[str, tuple[str | None, ...]] = {}
"""Regexes of the paths of further parameters of attention classes, with the axes of the mesh."""


class KeyValues(NamedTuple):
    """Projected keys and values of K tokens, M heads each (those that query heads share are not copied)."""

    keys: Float[Array, "B K M H"]
    values: Float[Array, "B K M H"]


class Attention(nnx.Module):
    """Base of the attention classes: query, key, value and output projections, and the norm of the block.

    A subclass defines `scores`, `weights` if they are not the softmax, and `attend` for other sums of values. The norm
    is a parameter of the attention, as in Hugging Face's names; the layer applies it. One of another package names the
    group of its settings in the class statement, `group="model.NAME"`, and declares them with `setting`.

    Attributes:
        config: The model.
        settings: The values of the settings of a class of another package; None for those of bertjax.
        positions: Values of `model.attention_position` that a class of another package can compute.
        shardings: Axes of the mesh (data, fsdp, tensor, None) for further parameters, by their path below the
            attention, such as `{"gate/kernel": ("fsdp", "tensor")}`; others are replicated.
        incremental: Whether `scores` are exact for queries that are a part of the sequence, from position
            `context.start` on, with keys of all of it. Generation then caches keys and values; else it computes them
            again for every token.

    Args:
        config: sizes, biases, initializers.
        rngs: stream of the parameters. The order of the draws decides the initial weights.
        norm: False leaves out the norm.
        source_size: width of what keys and values are made of; None = the hidden size.
    """

    projects_positions = False
    incremental: ClassVar[bool] = False
    shardings: ClassVar[Mapping[str, tuple[str | None, ...]]] = {}
    positions: ClassVar[tuple[str, ...]] = ("none", "rotary")
    group: ClassVar[str] = ""
    settings_class: ClassVar[type[Settings]] = Settings

    def __init_subclass__(cls, group: str | None = None, **options: Any) -> None:
        if group is not None:
            cls.group, cls.settings_class = group, make_settings(cls, cls.settings_class, group)
        super().__init_subclass__(**options)
        ADDED_SHARDINGS.update({rf".*/attention/{path}": axes for path, axes in cls.shardings.items()})

    @classmethod
    def check_model(cls, config: EncoderConfig) -> None:
        """Raises `UserError` for a model that cannot have this attention."""

    @classmethod
    def matmul_weights(cls, config: EncoderConfig) -> int:
        """Returns the number of weights that every token is multiplied with, for counting FLOPs."""
        shared, inner = config.kv_heads * config.head_dim, config.num_heads * config.head_dim
        width, values = config.layer_width, config.hidden_size if config.attention_bottleneck else config.layer_width
        read = (width * (inner + shared) + values * shared) // config.attention_groups
        result = config.num_heads * config.head_output * (2 if config.attention_gate else 1)
        projection = config.hidden_size * width if config.attention_bottleneck else 0
        return read + width * result + projection + convolution_weights(config)

    @classmethod
    def key_matmuls(cls, config: EncoderConfig) -> int:
        """Returns the number of matmuls over all keys of a token: one of scores and one of values."""
        return 2

    def __init__(self, config: EncoderConfig, rngs: nnx.Rngs, norm: bool = True, source_size: int | None = None):
        self.settings: Any = attention_settings(config)
        width, inner, bias = config.layer_width, config.num_heads * config.head_dim, config.attention_bias
        shared = config.kv_heads * config.head_dim
        groups = config.attention_groups if source_size is None else 1  # cross-attention is dense
        self.query = Linear(width, inner, config, rngs, bias != "none", groups=groups)
        projects = source_size is None and config.attention_bottleneck
        source_size = width if source_size is None else source_size
        value_size = config.hidden_size if projects else source_size
        self.key = Linear(source_size, shared, config, rngs, bias in ("all", "query_key_value"), groups=groups)
        self.value = Linear(value_size, shared, config, rngs, bias != "none", groups=groups)
        if self.projects_positions:
            self.position = Linear(width, inner, config, rngs, bias != "none")
        output_bias = bias in ("all", "query_value")
        attended = config.num_heads * config.head_output
        self.output = Linear(attended, width, config, rngs, output_bias, residual_output=True)
        self.convolution = SpanConvolution(config, rngs) if config.dynamic_conv_kernel_size else None
        self.gate = Linear(width, attended, config, rngs, bias != "none") if config.attention_gate else None
        self.inner_norm = make_norm(attended, config, rngs) if config.norm_placement == "sub" else None
        self.init_score_parameters(config, rngs)
        self.norm = make_norm(width, config, rngs) if norm else None
        normed = config.norm_placement in ("sandwich", "normformer")
        self.output_norm = make_norm(width, config, rngs) if normed else None
        each = config.qk_norm_over == "head"
        sizes = (config.head_dim, config.head_dim) if each else (inner, shared)
        query_norm, key_norm = (make_norm(size, config, rngs, each) if config.qk_norm else None for size in sizes)
        self.query_norm, self.key_norm, self.config = query_norm, key_norm, config
        self.bottleneck = Projection(config.hidden_size, width, config, rngs) if projects else None

    def init_score_parameters(self, config: EncoderConfig, rngs: nnx.Rngs) -> None:
        """Draws further parameters, between the output projection and the norm."""

    @jax.named_scope("attention")
    def __call__(
        self, x: Hidden, context: AttentionContext, key: Key | None, source: Source | KeyValues | None = None
    ) -> Float[Array, "B S W"]:
        """Computes the attention block without norm and residual.

        Args:
            x: hidden states of the queries [B, S, D].
            context: visibility and positions.
            key: key of the dropout; None = no dropout.
            source: hidden states of keys and values [B, K, D2], or what `key_values` made of them; None = `x`.
        """
        query = self.query(self._narrow(x))
        q, k, v = self.project(query, x if source is None else source, context)
        heads = self.attend(q, k, v, context, key)
        if self.convolution is not None:
            heads = jnp.concatenate([heads, self.convolution(x, query, context.segment_ids)], axis=-1)
        heads = heads.reshape(*x.shape[:2], -1)
        if self.gate is not None:
            act = activation(self.config.attention_gate or "")
            heads = recompute(lambda gate, heads: act(gate) * heads)(self.gate(x), heads)
        return self.output(heads if self.inner_norm is None else self.inner_norm(heads))

    def project(
        self, query: Float[Array, "B S A"], source: Source | KeyValues, context: AttentionContext
    ) -> tuple[Queries, Keys, Keys]:
        """Returns queries, keys and values by head, normed and rotated where configured.

        Args:
            query: projected queries.
            source, context: as in `__call__`.
        """
        q = self.normed_heads(query, self.query_norm)
        q = q if context.rotation is None else rotate(q, context.rotation)
        if (scale := score_scale(self.config)) != 1.0:
            q = q * scale
        if not isinstance(source, KeyValues):
            source = self.key_values(source, context)
        return q, self.copy_heads(source.keys), self.copy_heads(source.values)

    def key_values(self, source: Source, context: AttentionContext) -> KeyValues:
        """Returns the keys and values of hidden states, which `__call__` takes as `source`. Args: as there."""
        k = self.normed_heads(self.key(self._narrow(source)), self.key_norm)
        k = k if context.rotation is None else rotate(k, context.rotation)
        v = self.split_heads(self.value(source))
        rotated = context.rotation is not None and self.config.rotary_value
        return KeyValues(k, rotate(v, context.rotation) if rotated else v)

    def _narrow(self, x: Source) -> Float[Array, "B K W"]:
        """Returns what queries and keys read."""
        return x if self.bottleneck is None else self.bottleneck(x)

    def normed_heads(self, x: Float[Array, "*b A"], norm: Norm | None) -> Float[Array, "*b M H"]:
        """Splits queries or keys into heads, and norms them before or after that."""
        if norm is None or self.config.qk_norm_over == "all":
            return self.split_heads(x if norm is None else norm(x))
        return norm(self.split_heads(x))

    def split_heads(self, x: Float[Array, "*b A"]) -> Float[Array, "*b M H"]:
        """Splits the last axis into M heads of size H (A = M * H)."""
        return x.reshape(*x.shape[:-1], -1, self.config.head_dim)

    def copy_heads(self, x: Float[Array, "*b M H"]) -> Float[Array, "*b N H"]:
        """Copies every head of keys and values for the query heads that share it, so that all kernels serve them."""
        copies = self.config.num_heads // x.shape[-2]
        return x if copies == 1 else jnp.repeat(x, copies, axis=-2)

    def scores(self, q: Queries, k: Keys, context: AttentionContext, key: Key | None = None) -> Scores:
        """Returns the attention scores before masking and softmax, float32.

        Args:
            q: queries [B, S, N, H].
            k: keys [B, K, N, H].
            context: positions.
            key: key of the dropout of relative positions, where they have any.
        """
        raise NotImplementedError

    def attend(self, q: Queries, k: Keys, v: Keys, context: AttentionContext, key: Key | None) -> Queries:
        """Returns the values [B, S, N, H] averaged by the softmax of the scores.

        Args:
            q: queries [B, S, N, H].
            k: keys [B, K, N, H].
            v: values [B, K, N, H].
            context: visibility and positions.
            key: key of the dropout of probabilities; None = no dropout.
        """
        weights = dropout(self.weights(self.scores(q, k, context), context), self.config.attention_dropout, key)
        return sum_values(weights, v, self.config)

    def weights(self, scores: Scores, context: AttentionContext) -> Scores:
        """Returns the weights of the values, float32: by default the softmax over visible keys.

        Args:
            scores: result of `scores`.
            context: visibility.
        """
        return masked_softmax(scores, context.visible())


class SelfAttention(Attention):
    """Scaled dot-product attention, with rotary positions where configured."""

    incremental = True

    def scores(self, q: Queries, k: Keys, context: AttentionContext, key: Key | None = None) -> Scores:
        """Returns q k / sqrt(H), float32, capped where configured. Args: as in `Attention.scores`."""
        return dot_product_scores(q, k, self.config)

    def attend(self, q: Queries, k: Keys, v: Keys, context: AttentionContext, key: Key | None) -> Queries:
        """Chooses a kernel that need not hold the scores. Args: as in `Attention.attend`."""
        return dot_product_attention(q, k, v, context, self.config, key)


class CrossAttention(SelfAttention):
    """Attention of a decoder's tokens to the output of an encoder, without positions (arXiv:1706.03762, 3.2.3)."""

    def __init__(self, config: EncoderConfig, rngs: nnx.Rngs):
        super().__init__(config, rngs, source_size=config.cross_attention_hidden_size)


def dot_product_attention(
    q: Queries, k: Keys, v: Keys, context: AttentionContext, config: EncoderConfig, key: Key | None
) -> Queries:
    """Computes softmax(q k / sqrt(H)) v with the kernel that config and platform call for; softmax in float32.

    Scores are capped before the softmax where the config says so. Queries that see no key (padding out of reach) get
    zero, as in torch. Other padding differs between the kernels: outputs at padding must not be used.

    Args:
        q, k, v: queries [B, S, N, H], keys and values [B, K, N, H].
        context: visibility.
        config: kernel, dtypes and dropout rate.
        key: key of the dropout of probabilities; None = no dropout.
    """
    dropping = key is not None and config.attention_dropout > 0.0
    implementation = attention_kernels.choose_kernel(config, context, q, k, dropping)
    attend = tiled_attention if implementation == "tiled" else _softmax_attention
    if implementation == "cudnn":
        out = attention_kernels.cudnn_attention(q, k, v, context)
    elif implementation == "pallas":
        rate, cap = config.attention_dropout, config.attention_soft_cap
        out = pallas_attention(q, k, v, context, config.compute_dtype, rate, key, soft_cap=cap)
    elif implementation in ("splash", "interpret"):
        out = attention_kernels.splash_attention(q, k, v, context, config, implementation == "interpret")
    elif context.mask is None and should_block(q.shape[1], context.window):
        blocks = split_blocks(q, k, v, context, block_size(context.window))
        out = merge_blocks(attend(*blocks, config, key), *q.shape[:2])
    else:
        out = attend(q, k, v, context.visible(), config, key)
    finite = implementation in ("cudnn", "pallas", "splash")  # padding sees padding of its own sequence
    if context.mask is None and not (finite and context.key_segment_ids is None):
        out = jnp.where(context.sees_key()[:, :, None, None], out, jnp.zeros((), out.dtype))
    return out.astype(config.result_dtype)


def dot_product_scores(
    q: Float[Array, "C Q N H"], k: Float[Array, "C K N H"], config: EncoderConfig
) -> Float[Array, "C N Q K"]:
    """Computes q k / sqrt(H), float32, capped where configured. Args: as in `dot_product_attention`."""
    scores = einsum("bqnh,bknh->bnqk", q, k, config) / math.sqrt(config.head_dim)
    return soft_cap(scores, config.attention_soft_cap)


def score_scale(config: EncoderConfig) -> float:
    """Returns the factor of queries that makes up for what the kernels divide scores by, the root of the head size."""
    size = config.attention_scale_size if config.attention_scale else 1
    return 1.0 if size is None else math.sqrt(config.head_dim / size)


@jax.named_scope("softmax")
def masked_softmax(scores: Float[Array, "C N Q K"], mask: Bool[Array, "C 1 Q K"]) -> Float[Array, "C N Q K"]:
    """Computes the softmax over visible keys, float32; uniform over all keys for a query that sees none."""
    return jax.nn.softmax(jnp.where(mask, scores, jnp.finfo(jnp.float32).min), axis=-1)


def _softmax_attention(q: Array, k: Array, v: Array, mask: Array, config: EncoderConfig, key: Key | None) -> Array:
    return average_values(dot_product_scores(q, k, config), v, mask, config, key)


def average_values(
    scores: Float[Array, "C N Q K"],
    v: Float[Array, "C K N H"],
    mask: Bool[Array, "C 1 Q K"],
    config: EncoderConfig,
    key: Key | None,
) -> Float[Array, "C Q N H"]:
    """Averages values by the softmax (float32) of the scores. Args: as in `dot_product_attention`."""
    return sum_values(dropout(masked_softmax(scores, mask), config.attention_dropout, key), v, config)


def sum_values(
    weights: Float[Array, "C N Q K"], v: Float[Array, "C K N H"], config: EncoderConfig
) -> Float[Array, "C Q N H"]:
    """Sums values by their weights.

    Args:
        weights: weights of the keys, float32.
        v: values.
        config: dtypes.
    """
    return einsum("bnqk,bknh->bqnh", weights, v, config).astype(config.result_dtype)
