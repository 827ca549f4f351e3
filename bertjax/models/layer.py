"""One encoder layer: attention and feed-forward, each with residual and norm."""

from __future__ import annotations

import jax
from flax import nnx
from jaxtyping import Array, Float

from bertjax.config.model import EncoderConfig
from bertjax.models.attention import SelfAttention, masked_softmax
from bertjax.models.attention_context import AttentionContext
from bertjax.models.disentangled_attention import DisentangledAttention
from bertjax.models.dropout import dropout
from bertjax.models.linear import Key, Linear, activation, layer_norm
from bertjax.models.relative_attention import RelativeAttention

ATTENTION_CLASSES: dict[str, type[SelfAttention | DisentangledAttention | RelativeAttention]] = {
    "none": SelfAttention,
    "rotary": SelfAttention,
    "disentangled": DisentangledAttention,
    "relative": RelativeAttention,
}
ATTENTION_TENSORS = ("query", "key", "value", "scores", "probabilities")


class FeedForward(nnx.Module):
    """dense -> activation -> dense, or the gated form act(gate(x)) * intermediate(x) -> dense (arXiv:2002.05202).

    The norm is the layer's to apply.
    """

    def __init__(self, config: EncoderConfig, rngs: nnx.Rngs):
        sizes, bias = (config.hidden_size, config.intermediate_size), config.feed_forward_bias
        if config.feed_forward == "glu":
            self.gate = Linear(*sizes, config, rngs, bias)
        self.intermediate = Linear(*sizes, config, rngs, bias)
        self.output = Linear(*sizes[::-1], config, rngs, bias, residual_output=True)
        self.norm = layer_norm(config.hidden_size, config, rngs)
        self.config = config

    @jax.named_scope("feed_forward")
    def __call__(self, x: Float[Array, "B S D"], key: Key | None = None) -> Float[Array, "B S D"]:
        act = activation(self.config.hidden_act)
        inner = self.intermediate(x)
        inner = act(self.gate(x)) * inner if self.config.feed_forward == "glu" else act(inner)
        return self.output(dropout(inner, self.config.activation_dropout, key))


class Layer(nnx.Module):
    """Post-norm, as in BERT: x = norm(x + dropout(block(x))), twice; or pre-norm: x = x + dropout(block(norm(x))).

    `attention_norm=False` leaves out the norm before the attention: what ModernBERT's first layer does.
    """

    def __init__(self, config: EncoderConfig, rngs: nnx.Rngs, attention_norm: bool = True):
        self.attention = ATTENTION_CLASSES[config.attention_position](config, rngs, attention_norm)
        self.feed_forward = FeedForward(config, rngs)
        self.config = config

    @jax.named_scope("layer")
    def __call__(
        self,
        x: Float[Array, "B S D"],
        context: AttentionContext,
        key: Key | None,
        source: Float[Array, "B K D"] | None = None,
    ) -> Float[Array, "B S D"]:
        """`source` is what keys and values are made of, where that is not `x` itself (memory, another stream)."""
        keys = (None,) * 4 if key is None else jax.random.split(key, 4)
        after_attention = self.config.rate("attention_output_dropout")
        after_feed_forward = self.config.rate("feed_forward_dropout")
        if self.config.norm_placement == "post":
            mixed = self.attention(x, context, keys[0], source)
            assert self.attention.norm is not None
            x = self.attention.norm(x + dropout(mixed, after_attention, keys[1]))
            return self.feed_forward.norm(x + dropout(self.feed_forward(x, keys[3]), after_feed_forward, keys[2]))
        norm = self.attention.norm or _identity
        mixed = self.attention(norm(x), context, keys[0], None if source is None else norm(source))
        x = x + dropout(mixed, after_attention, keys[1])
        fed = self.feed_forward(self.feed_forward.norm(x), keys[3])
        return x + dropout(fed, after_feed_forward, keys[2])

    def attention_tensors(self, x: Float[Array, "B S D"], context: AttentionContext) -> dict[str, Array]:
        """`ATTENTION_TENSORS` of the attention that reads `x`, nothing dropped; under `jit` only what is used is made.

        `query`, `key`, `value` [B, S, N, H]; `scores` [B, N, S, S] before the softmax, float32, of which those of keys
        that are not `context.visible()` mean nothing; `probabilities` [B, N, S, S], their softmax.
        """
        norm = self.attention.norm if self.config.norm_placement == "pre" else None
        q, k, v = self.attention.project(x if norm is None else norm(x), context)
        scores = self.attention.scores(q, k, context)
        found = q, k, v, scores, masked_softmax(scores, context.visible())
        return dict(zip(ATTENTION_TENSORS, found, strict=True))


def _identity(x: Array) -> Array:
    return x
