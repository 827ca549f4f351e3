"""Multi-head self-attention over rows of one or several examples."""

from __future__ import annotations

import functools
import math

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from bertjax.models.config import EncoderConfig
from bertjax.models.linear import Key, Linear, dropout, layer_norm


def attention_mask(segment_ids: Int[Array, "B S"]) -> Bool[Array, "B 1 S S"]:
    """True where query (third axis) may look at key (fourth): real keys of the same example.

    Padding queries look at every real key, which nobody reads: it keeps their softmax finite and equal to Hugging
    Face's. A row that is all padding sees nothing; its softmax is uniform and finite.
    """
    query, key = segment_ids[:, None, :, None], segment_ids[:, None, None, :]
    return (key > 0) & ((query == key) | (query == 0))


class SelfAttention(nnx.Module):
    """Scaled dot-product attention and its output projection.

    Its norm is kept here, where Hugging Face's names have it; the layer applies it behind the residual.
    """

    def __init__(self, config: EncoderConfig, rngs: nnx.Rngs):
        size = config.hidden_size
        self.query = Linear(size, size, config, rngs)
        self.key = Linear(size, size, config, rngs)
        self.value = Linear(size, size, config, rngs)
        self.output = Linear(size, size, config, rngs)
        self.norm = layer_norm(size, config, rngs)
        self.config = config

    def __call__(
        self, x: Float[Array, "B S D"], mask: Bool[Array, "B 1 S S"], key: Key | None
    ) -> Float[Array, "B S D"]:
        heads = (*x.shape[:2], self.config.num_heads, self.config.head_dim)
        q, k, v = (project(x).reshape(heads) for project in (self.query, self.key, self.value))
        context = attend(q, k, v, mask, self.config, key)
        return self.output(context.reshape(x.shape))


def attend(
    q: Float[Array, "B S N H"],
    k: Float[Array, "B S N H"],
    v: Float[Array, "B S N H"],
    mask: Bool[Array, "B 1 S S"],
    config: EncoderConfig,
    key: Key | None,
) -> Float[Array, "B S N H"]:
    """softmax(q k / sqrt(H)) v with dropout on the probabilities; softmax in float32."""
    einsum = functools.partial(jnp.einsum, preferred_element_type=jnp.float32)
    narrow = jnp.dtype(config.compute_dtype)
    scores = einsum("bqnh,bknh->bnqk", q.astype(narrow), k.astype(narrow)) / math.sqrt(config.head_dim)
    probabilities = jax.nn.softmax(jnp.where(mask, scores, jnp.finfo(jnp.float32).min), axis=-1)
    probabilities = dropout(probabilities, config.attention_dropout, key)
    context = einsum("bnqk,bknh->bqnh", probabilities.astype(narrow), v.astype(narrow))
    return context.astype(config.result_dtype)
