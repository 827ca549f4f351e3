"""One encoder layer: attention and feed-forward, each with residual and norm."""

from __future__ import annotations

import jax
from flax import nnx
from jaxtyping import Array, Bool, Float

from bertjax.models.attention import SelfAttention
from bertjax.models.config import EncoderConfig
from bertjax.models.feed_forward import FeedForward
from bertjax.models.linear import Key, dropout


class Layer(nnx.Module):
    """Post-norm, as in BERT: x = norm(x + dropout(block(x))), twice."""

    def __init__(self, config: EncoderConfig, rngs: nnx.Rngs):
        self.attention = SelfAttention(config, rngs)
        self.feed_forward = FeedForward(config, rngs)
        self.rate = config.hidden_dropout

    def __call__(
        self, x: Float[Array, "B S D"], mask: Bool[Array, "B 1 S S"], key: Key | None
    ) -> Float[Array, "B S D"]:
        inner, after_attention, after_feed_forward = (None,) * 3 if key is None else jax.random.split(key, 3)
        x = self.attention.norm(x + dropout(self.attention(x, mask, inner), self.rate, after_attention))
        return self.feed_forward.norm(x + dropout(self.feed_forward(x), self.rate, after_feed_forward))
