"""Multi-head self-attention over rows of one or several examples."""

from __future__ import annotations

import functools
import math

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from bertjax.models.config import EncoderConfig
from bertjax.models.context import Context
from bertjax.models.linear import Key, Linear, dropout, layer_norm
from bertjax.models.positions import rotate


class SelfAttention(nnx.Module):
    """Scaled dot-product attention and its output projection, with rotary positions where configured.

    Its norm is kept here, where Hugging Face's names have it; the layer applies it.
    """

    def __init__(self, config: EncoderConfig, rngs: nnx.Rngs, norm: bool = True):
        inner, bias = config.num_heads * config.head_dim, config.attention_bias
        self.query = Linear(config.hidden_size, inner, config, rngs, bias != "none")
        self.key = Linear(config.hidden_size, inner, config, rngs, bias == "all")
        self.value = Linear(config.hidden_size, inner, config, rngs, bias != "none")
        self.output = Linear(inner, config.hidden_size, config, rngs, bias != "none", ends_block=True)
        self.norm = layer_norm(config.hidden_size, config, rngs) if norm else None
        self.config = config

    def __call__(
        self, x: Float[Array, "B S D"], context: Context, key: Key | None, source: Float[Array, "B K D"] | None = None
    ) -> Float[Array, "B S D"]:
        """`source` is what keys and values are made of, where that is not `x` itself."""
        source = x if source is None else source
        heads = (self.config.num_heads, self.config.head_dim)
        q = self.query(x).reshape(*x.shape[:2], *heads)
        k, v = (project(source).reshape(*source.shape[:2], *heads) for project in (self.key, self.value))
        if context.rotation is not None:
            q, k = rotate(q, context.rotation), rotate(k, context.rotation)
        return self.output(attend(q, k, v, context, self.config, key).reshape(*x.shape[:2], -1))


def attend(
    q: Float[Array, "B S N H"],
    k: Float[Array, "B K N H"],
    v: Float[Array, "B K N H"],
    context: Context,
    config: EncoderConfig,
    key: Key | None,
) -> Float[Array, "B S N H"]:
    """softmax(q k / sqrt(H)) v with dropout on the probabilities; softmax in float32."""
    narrow = jnp.dtype(config.compute_dtype)
    scores = jnp.einsum("bqnh,bknh->bnqk", q.astype(narrow), k.astype(narrow), preferred_element_type=jnp.float32)
    return mix(scores / math.sqrt(config.head_dim), v, context, config, key)


def mix(
    scores: Float[Array, "B N S K"],
    v: Float[Array, "B K N H"],
    context: Context,
    config: EncoderConfig,
    key: Key | None,
) -> Float[Array, "B S N H"]:
    """Values averaged by the softmax (float32) of the visible scores, with dropout."""
    narrow = jnp.dtype(config.compute_dtype)
    probabilities = jax.nn.softmax(jnp.where(context.mask, scores, jnp.finfo(jnp.float32).min), axis=-1)
    probabilities = dropout(probabilities, config.attention_dropout, key)
    einsum = functools.partial(jnp.einsum, preferred_element_type=jnp.float32)
    mixed = einsum("bnqk,bknh->bqnh", probabilities.astype(narrow), v.astype(narrow))
    return mixed.astype(config.result_dtype)
