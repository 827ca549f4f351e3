"""Attention with a bias per head and distance: of a table of all layers (T5, MPNet) or each (UMT5), or linear (ALiBi).

score(i, j) = q_i k_j / sqrt(H) + table[bucket(i - j)] (arXiv:1910.10683, section 2.1; arXiv:2004.09297), or
- factor |i - j| (arXiv:2108.12409; on both sides as in MosaicBERT, arXiv:2312.17482, section 2.1).
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

from bertjax.config.model import EncoderConfig
from bertjax.models.attention import Attention, Keys, Queries, Scores, dot_product_scores
from bertjax.models.attention_context import AttentionContext, DistanceBias
from bertjax.models.linear import Key, initializer
from bertjax.models.relative_shift import relative_shift


class RelativeAttentionBias(nnx.Module):
    """Table of biases [relative_attention_num_buckets, N]."""

    def __init__(self, config: EncoderConfig, rngs: nnx.Rngs):
        shape = config.relative_attention_num_buckets, config.num_heads
        self.embedding = nnx.Param(initializer(config)(rngs.params(), shape, jnp.float32))
        self.config = config

    def __call__(self, seq_len: int) -> DistanceBias:
        """Returns the biases of all pairs of a sequence, float32.

        Rows are copied by a matmul, and shifted instead of gathered: see `relative_shift.py`.
        """
        buckets = jax.nn.one_hot(_falling_buckets(self.config, seq_len), self.config.relative_attention_num_buckets)
        by_distance = jnp.matmul(buckets, self.embedding[...], precision="highest").T
        rows = jnp.broadcast_to(by_distance[:, None], (by_distance.shape[0], seq_len, by_distance.shape[1]))
        return DistanceBias(relative_shift(rows, seq_len)[None])

    def at(self, queries: Int[Array, "S"], num_keys: int) -> DistanceBias:
        """Returns the biases of queries at these positions and of all keys, float32."""
        by_distance = self.embedding[...].T[:, _falling_buckets(self.config, num_keys)]
        index = num_keys - 1 - queries[:, None] + jnp.arange(num_keys)[None]
        return DistanceBias(by_distance[:, index][None])


class LinearBias(nnx.Module):
    """Biases without parameters: the distance times a factor per head."""

    def __init__(self, config: EncoderConfig):
        self.config = config

    def __call__(self, seq_len: int) -> DistanceBias:
        """Returns the biases of all pairs of a sequence, float32."""
        return self.at(jnp.arange(seq_len), seq_len)

    def at(self, queries: Int[Array, "S"], num_keys: int) -> DistanceBias:
        """Returns the biases of queries at these positions and of all keys, float32."""
        distances = jnp.abs(queries[:, None] - jnp.arange(num_keys)[None]).astype(jnp.float32)
        return DistanceBias(distances[None, None] * -bias_factors(self.config.num_heads)[None, :, None, None])


def bias_factors(num_heads: int) -> Float[np.ndarray, "N"]:
    """Returns the factors of the heads: 2^(-8 i / N) for i from 1 to N, where N is a power of two.

    Else those of the next lower power, and then every second of twice that power
    (ofirpress/attention_with_linear_biases:fairseq/models/transformer.py).
    """
    lower = 1 << (num_heads.bit_length() - 1)
    factors = 2.0 ** (-8.0 * np.arange(1, lower + 1) / lower)
    between = 2.0 ** (-4.0 * np.arange(1, 2 * lower + 1, 2) / lower)
    return np.concatenate([factors, between[: num_heads - lower]]).astype(np.float32)


@functools.lru_cache(maxsize=64)
def _falling_buckets(config: EncoderConfig, seq_len: int) -> np.ndarray:
    return distance_bucket(np.arange(seq_len - 1, -seq_len, -1), config)


def distance_bucket(distances: Int[np.ndarray, "*d"], config: EncoderConfig) -> Int[np.ndarray, "*d"]:
    """Returns the row of the table for each distance query - key.

    Half of the buckets are for keys after the query, all of them in causal models for keys before it. Half of those on
    either side hold one distance each, the others grow to `relative_attention_max_distance` on a logarithmic scale, in
    float32 as in transformers:models/t5/modeling_t5.py: rounding decides on which side of a border a distance falls.
    """
    buckets = config.relative_attention_num_buckets // (1 if config.causal else 2)
    start = 0 if config.causal else np.where(distances < 0, buckets, 0)
    size = np.maximum(distances, 0) if config.causal else np.abs(distances)
    exact = buckets // 2
    scale = np.log(config.relative_attention_max_distance / exact)
    logarithm = np.log(np.maximum(size, 1).astype(np.float32) / np.float32(exact))
    far = exact + (logarithm / np.float32(scale) * np.float32(buckets - exact)).astype(np.int64)
    return start + np.where(size < exact, size, np.minimum(far, buckets - 1))


def make_relative_bias(config: EncoderConfig, rngs: nnx.Rngs) -> RelativeAttentionBias | LinearBias:
    """Returns what computes the biases that all layers share."""
    return RelativeAttentionBias(config, rngs) if config.relative_bias == "learned" else LinearBias(config)


class BiasedAttention(Attention):
    """Scaled dot-product attention whose scores get the bias of their distance, from the layer's own table if any."""

    incremental = True

    def init_score_parameters(self, config: EncoderConfig, rngs: nnx.Rngs) -> None:
        """Draws the table of the layer, unless all layers share one."""
        self.relative_attention_bias = None if config.relative_attention_shared else RelativeAttentionBias(config, rngs)

    def scores(self, q: Queries, k: Keys, context: AttentionContext, key: Key | None = None) -> Scores:
        """Returns q k / sqrt(H) + bias, float32. Args: as in `Attention.scores`."""
        return dot_product_scores(q, k, self.config) + self._bias(q.shape[1], k.shape[1], context).scores

    def _bias(self, num_queries: int, num_keys: int, context: AttentionContext) -> DistanceBias:
        if self.relative_attention_bias is None:
            assert isinstance(context.relative, DistanceBias)
            return context.relative
        if num_queries == num_keys:
            return self.relative_attention_bias(num_keys)
        return self.relative_attention_bias.at(context.start + jnp.arange(num_queries), num_keys)
