"""Multi-head self-attention over rows of one or several examples."""

from __future__ import annotations

import functools
import math

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float

from bertjax.config.model import EncoderConfig
from bertjax.models import attention_kernels
from bertjax.models.attention_context import AttentionContext, has_visible_key
from bertjax.models.dropout import dropout
from bertjax.models.linear import Key, Linear, layer_norm
from bertjax.models.local_attention import block_size, merge_blocks, should_block, split_blocks
from bertjax.models.rope import rotate
from bertjax.models.tiled_attention import tiled_attention


class SelfAttention(nnx.Module):
    """Scaled dot-product attention and its output projection, with rotary positions where configured.

    Its norm is kept here, where Hugging Face's names have it; the layer applies it.
    """

    def __init__(self, config: EncoderConfig, rngs: nnx.Rngs, norm: bool = True):
        inner, bias = config.num_heads * config.head_dim, config.attention_bias
        self.query = Linear(config.hidden_size, inner, config, rngs, bias != "none")
        self.key = Linear(config.hidden_size, inner, config, rngs, bias == "all")
        self.value = Linear(config.hidden_size, inner, config, rngs, bias != "none")
        self.output = Linear(inner, config.hidden_size, config, rngs, bias != "none", residual_output=True)
        self.norm = layer_norm(config.hidden_size, config, rngs) if norm else None
        self.config = config

    @jax.named_scope("attention")
    def __call__(
        self,
        x: Float[Array, "B S D"],
        context: AttentionContext,
        key: Key | None,
        source: Float[Array, "B K D"] | None = None,
    ) -> Float[Array, "B S D"]:
        """`source` is what keys and values are made of, where that is not `x` itself."""
        q, k, v = self.project(x, context, source)
        return self.output(attend(q, k, v, context, self.config, key).reshape(*x.shape[:2], -1))

    def project(
        self, x: Float[Array, "B S D"], context: AttentionContext, source: Float[Array, "B K D"] | None = None
    ) -> tuple[Float[Array, "B S N H"], Float[Array, "B K N H"], Float[Array, "B K N H"]]:
        """Queries, keys and values by head, turned where positions are rotary."""
        source = x if source is None else source
        heads = (self.config.num_heads, self.config.head_dim)
        q = self.query(x).reshape(*x.shape[:2], *heads)
        k, v = (project(source).reshape(*source.shape[:2], *heads) for project in (self.key, self.value))
        if context.rotation is not None:
            q, k = rotate(q, context.rotation), rotate(k, context.rotation)
        return q, k, v

    def scores(
        self, q: Float[Array, "B S N H"], k: Float[Array, "B K N H"], context: AttentionContext, key: Key | None = None
    ) -> Float[Array, "B N S K"]:
        """What the softmax is taken of, float32, before anything is made invisible; `attend` may never hold it."""
        return dot_product_scores(q, k, self.config)


def attend(
    q: Float[Array, "B S N H"],
    k: Float[Array, "B K N H"],
    v: Float[Array, "B K N H"],
    context: AttentionContext,
    config: EncoderConfig,
    key: Key | None,
) -> Float[Array, "B S N H"]:
    """softmax(q k / sqrt(H)) v by the implementation that config and platform call for; softmax in float32.

    Zero for queries that see no key (padding out of reach), as torch has it. Padding in reach of real tokens is not
    the same under splash, and is never to be read.
    """
    dropping = key is not None and config.attention_dropout > 0.0
    implementation = attention_kernels.choose_kernel(config, context, q, k, dropping)
    average = tiled_attention if implementation == "tiled" else _softmax_average
    if implementation == "cudnn":
        out = attention_kernels.cudnn_attention(q, k, v, context)
    elif implementation in ("splash", "interpret"):
        out = attention_kernels.splash_attention(q, k, v, context, config.compute_dtype, implementation == "interpret")
    elif context.mask is None and should_block(q.shape[1], context.window):
        blocks = split_blocks(q, k, v, context, block_size(context.window))
        out = merge_blocks(average(*blocks, config, key), *q.shape[:2])
    else:
        out = average(q, k, v, context.visible(), config, key)
    if context.mask is None:
        seeing = has_visible_key(context.segment_ids, context.window, context.causal)
        out = jnp.where(seeing[:, :, None, None], out, jnp.zeros((), out.dtype))
    return out.astype(config.result_dtype)


def average_values(
    scores: Float[Array, "B N S K"],
    v: Float[Array, "B K N H"],
    context: AttentionContext,
    config: EncoderConfig,
    key: Key | None,
) -> Float[Array, "B S N H"]:
    """Values averaged by the softmax (float32) of the visible scores, with dropout."""
    return _average(scores, v, context.visible(), config, key)


def dot_product_scores(
    q: Float[Array, "C Q N H"], k: Float[Array, "C K N H"], config: EncoderConfig
) -> Float[Array, "C N Q K"]:
    """q k / sqrt(H), float32."""
    narrow = jnp.dtype(config.compute_dtype)
    scores = jnp.einsum("bqnh,bknh->bnqk", q.astype(narrow), k.astype(narrow), preferred_element_type=jnp.float32)
    return scores / math.sqrt(config.head_dim)


@jax.named_scope("softmax")
def masked_softmax(scores: Float[Array, "C N Q K"], mask: Bool[Array, "C 1 Q K"]) -> Float[Array, "C N Q K"]:
    """Shares of the keys that a query sees, float32; equal shares of all where it sees none."""
    return jax.nn.softmax(jnp.where(mask, scores, jnp.finfo(jnp.float32).min), axis=-1)


def _softmax_average(q: Array, k: Array, v: Array, mask: Array, config: EncoderConfig, key: Key | None) -> Array:
    return _average(dot_product_scores(q, k, config), v, mask, config, key)


def _average(scores: Array, v: Array, mask: Array, config: EncoderConfig, key: Key | None) -> Array:
    narrow = jnp.dtype(config.compute_dtype)
    probabilities = dropout(masked_softmax(scores, mask), config.attention_dropout, key)
    einsum = functools.partial(jnp.einsum, preferred_element_type=jnp.float32)
    mixed = einsum("bnqk,bknh->bqnh", probabilities.astype(narrow), v.astype(narrow))
    return mixed.astype(config.result_dtype)
