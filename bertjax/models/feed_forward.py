"""The position-wise feed-forward block."""

from __future__ import annotations

import jax
from flax import nnx
from jaxtyping import Array, Float

from bertjax.config.model import EncoderConfig
from bertjax.models.dropout import dropout
from bertjax.models.linear import Key, Linear, activation, layer_norm


class FeedForward(nnx.Module):
    """dense -> activation -> dense, or the gated form act(gate(x)) * intermediate(x) -> dense (arXiv:2002.05202).

    The norm is the layer's to apply.
    """

    def __init__(self, config: EncoderConfig, rngs: nnx.Rngs):
        sizes, bias = (config.hidden_size, config.intermediate_size), config.feed_forward_bias
        if config.feed_forward == "glu":
            self.gate = Linear(*sizes, config, rngs, bias)
        self.intermediate = Linear(*sizes, config, rngs, bias)
        self.output = Linear(*sizes[::-1], config, rngs, bias, ends_block=True)
        self.norm = layer_norm(config.hidden_size, config, rngs)
        self.config = config

    @jax.named_scope("feed_forward")
    def __call__(self, x: Float[Array, "B S D"], key: Key | None = None) -> Float[Array, "B S D"]:
        act = activation(self.config.hidden_act)
        inner = self.intermediate(x)
        inner = act(self.gate(x)) * inner if self.config.feed_forward == "glu" else act(inner)
        return self.output(dropout(inner, self.config.activation_dropout, key))
