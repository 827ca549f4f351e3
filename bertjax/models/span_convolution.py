"""Span-based dynamic convolution, which ConvBERT has next to attention (arXiv:2008.02496, section 4.2).

Every token makes the kernel of each head of its query and of a span of keys, and sums its neighbors' values by it.
"""

from __future__ import annotations

from collections.abc import Iterator

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from bertjax.config.model import EncoderConfig
from bertjax.models.linear import Linear, initializer, recompute


class SpanConvolution(nnx.Module):
    """softmax(dense(span key * query)) of every head, as weights of the values around a token.

    The span key is a depthwise convolution of the layer's input, then a dense layer. Neighbors are zero outside the
    example of a token: other examples of the sequence, and padding. depthwise [W, 1, D] for W neighbors.
    """

    def __init__(self, config: EncoderConfig, rngs: nnx.Rngs):
        width, inner, bias = config.hidden_size, config.num_heads * config.head_dim, config.attention_bias != "none"
        shape = config.dynamic_conv_kernel_size, 1, width
        self.depthwise = nnx.Param(initializer(config)(rngs.params(), shape, jnp.float32))
        self.key = Linear(width, inner, config, rngs, bias)
        self.weights = Linear(inner, config.num_heads * config.dynamic_conv_kernel_size, config, rngs, bias)
        self.value = Linear(width, inner, config, rngs, bias)
        self.config = config

    @jax.named_scope("span_convolution")
    def __call__(
        self, x: Float[Array, "B S D"], query: Float[Array, "B S A"], segment_ids: Int[Array, "B S"]
    ) -> Float[Array, "B S N H"]:
        """Returns the sums of all heads.

        Args:
            x: input of the attention block.
            query: its projection to queries, of which attention makes its scores.
            segment_ids: as in `types.Batch`.
        """
        heads = (*x.shape[:2], self.config.num_heads, -1)
        span = recompute(_sum_neighbors)(x, self.depthwise[...][:, None], segment_ids)
        kernels = self.weights(self.key(span) * query).reshape(heads)
        kernels = jnp.moveaxis(jax.nn.softmax(kernels.astype(jnp.float32), axis=-1), -1, 0)
        return recompute(_sum_neighbors)(self.value(x).reshape(heads), kernels[..., None], segment_ids)


def convolution_weights(config: EncoderConfig) -> int:
    """Returns the number of products per token of the convolution of a layer, for counting FLOPs; 0 without one."""
    width, inner, size = config.hidden_size, config.num_heads * config.head_dim, config.dynamic_conv_kernel_size
    return 2 * width * inner + size * (width + inner * (config.num_heads + 1)) if size else 0


def _sum_neighbors(
    x: Float[Array, "B S *h"], weights: Float[Array, "W #B #S *#h"], segment_ids: Int[Array, "B S"]
) -> Float[Array, "B S *h"]:
    """Returns the sum of each token's W neighbors by their weights, which is computed in float32."""
    pairs = zip(neighbors(x, segment_ids, len(weights)), weights, strict=True)
    return sum((each.astype(jnp.float32) * weight for each, weight in pairs), jnp.zeros(())).astype(x.dtype)


def neighbors(x: Float[Array, "B S *h"], segment_ids: Int[Array, "B S"], width: int) -> Iterator[Array]:
    """Yields the neighbors of every token, from width // 2 before it on, each [B, S, ...]; zero outside its example."""
    reach, length = width // 2, x.shape[1]
    tokens = jnp.pad(x, [(0, 0), (reach, reach)] + [(0, 0)] * (x.ndim - 2))
    ids = jnp.pad(segment_ids, ((0, 0), (reach, reach)))
    for shift in range(width):
        same = jnp.expand_dims(ids[:, shift : shift + length] == segment_ids, range(2, x.ndim))
        yield jnp.where(same, tokens[:, shift : shift + length], jnp.zeros((), x.dtype))
