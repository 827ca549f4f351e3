"""The position-wise feed-forward block."""

from __future__ import annotations

from flax import nnx
from jaxtyping import Array, Float

from bertjax.models.config import EncoderConfig
from bertjax.models.linear import Linear, activation, layer_norm


class FeedForward(nnx.Module):
    """dense -> activation -> dense; BERT has no dropout after the activation. The norm is the layer's to apply."""

    def __init__(self, config: EncoderConfig, rngs: nnx.Rngs):
        self.intermediate = Linear(config.hidden_size, config.intermediate_size, config, rngs)
        self.output = Linear(config.intermediate_size, config.hidden_size, config, rngs)
        self.norm = layer_norm(config.hidden_size, config, rngs)
        self.hidden_act = config.hidden_act

    def __call__(self, x: Float[Array, "B S D"]) -> Float[Array, "B S D"]:
        return self.output(activation(self.hidden_act)(self.intermediate(x)))
