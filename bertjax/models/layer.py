"""One encoder layer: attention and feed-forward, each with residual and norm."""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
from flax import nnx
from jaxtyping import Array, Float

from bertjax.config.extensions import ATTENTION
from bertjax.config.model import EncoderConfig
from bertjax.models.attention import Attention, CrossAttention, Hidden, KeyValues, SelfAttention, Source
from bertjax.models.attention_context import AttentionContext, CrossInput
from bertjax.models.disentangled_attention import DisentangledAttention
from bertjax.models.dropout import dropout
from bertjax.models.linear import (
    Key,
    LayerNorm,
    Linear,
    Norm,
    Projection,
    activation,
    leave_out_bias,
    make_norm,
    norm_factors,
    recompute,
)
from bertjax.models.pallas.norm import NormWeights, add_and_normalize, choose_norm_kernel
from bertjax.models.relative_attention import RelativeAttention
from bertjax.models.relative_bias import BiasedAttention

ATTENTION_CLASSES: dict[str, type[Attention]] = {
    "none": SelfAttention,
    "rotary": SelfAttention,
    "disentangled": DisentangledAttention,
    "relative": RelativeAttention,
    "relative_bias": BiasedAttention,
}
_CROSS_KEY = 0xC2055  # separates the dropout of cross-attention from that of the other blocks
_ADAPTER_KEY = 0xADA97
ATTENTION_TENSORS = ("query", "key", "value", "scores", "probabilities")


def attention_class(config: EncoderConfig) -> type[Attention]:
    """Returns the class of `attention_class`, else that of `attention_position`."""
    if config.attention_class is None:
        return ATTENTION_CLASSES[config.attention_position]
    cls: type[Attention] = ATTENTION.load(config.attention_class)
    return cls


class FeedForward(nnx.Module):
    """dense -> activation -> dense, or the gated form act(gate(x)) * intermediate(x) -> dense (arXiv:2002.05202).

    The layer applies the norms but the one before the last matrix.
    """

    def __init__(self, config: EncoderConfig, rngs: nnx.Rngs):
        sizes, bias = (config.layer_width, config.intermediate_size), config.feed_forward_bias
        inner_bias, groups = bias and config.feed_forward_inner_bias, config.feed_forward_groups
        self.gate = Linear(*sizes, config, rngs, inner_bias, groups=groups) if config.feed_forward == "glu" else None
        self.intermediate = Linear(*sizes, config, rngs, inner_bias, groups=groups)
        self.output = Linear(*sizes[::-1], config, rngs, bias, residual_output=True, groups=groups)
        self.norm = make_norm(config.layer_width, config, rngs)
        sandwich, inner = config.norm_placement == "sandwich", config.norm_placement in ("normformer", "sub")
        self.output_norm = make_norm(config.hidden_size, config, rngs) if sandwich else None
        self.inner_norm = make_norm(config.intermediate_size, config, rngs) if inner else None
        self.config = config

    @jax.named_scope("feed_forward")
    def __call__(self, x: Float[Array, "B S D"], key: Key | None = None) -> Float[Array, "B S D"]:
        act, inner = activation(self.config.hidden_act), self.intermediate(x)
        if self.gate is None:
            inner = recompute(act)(inner)
        else:
            inner = recompute(lambda gate, inner: act(gate) * inner)(self.gate(x), inner)
        inner = inner if self.inner_norm is None else self.inner_norm(inner)
        return self.output(dropout(inner, self.config.activation_dropout, key))


class Adapter(nnx.Module):
    """dense -> activation -> dense, a bottleneck for one language (arXiv:2205.06266, section 3)."""

    def __init__(self, config: EncoderConfig, size: int, rngs: nnx.Rngs):
        self.intermediate = Linear(config.hidden_size, size, config, rngs)
        self.output = Linear(size, config.hidden_size, config, rngs, residual_output=True)
        self.norm = None if config.norm_placement == "post" else make_norm(config.hidden_size, config, rngs)
        self.act = config.hidden_act

    @jax.named_scope("adapter")
    def __call__(self, x: Float[Array, "B S D"]) -> Float[Array, "B S D"]:
        x = x if self.norm is None else self.norm(x)
        return self.output(recompute(activation(self.act))(self.intermediate(x)))


class Layer(nnx.Module):
    """Post-norm, as in BERT: x = norm(x + dropout(block(x))), twice; or pre-norm: x = x + dropout(block(norm(x))).

    "sandwich" is pre-norm with a norm of each block's output, "normformer" with a norm of attention's output and one in
    the feed-forward block; with "parallel" all blocks read the same x. A decoder has cross-attention as a block between
    the two. With a bottleneck (MobileBERT) the blocks have their own width, and the ends their own projections.
    `attention_norm=False` leaves out the norm before the attention, as in ModernBERT's first layer.
    """

    def __init__(self, config: EncoderConfig, rngs: nnx.Rngs, attention_norm: bool = True):
        self.attention = attention_class(config)(config, rngs, attention_norm)
        self.feed_forward = FeedForward(config, rngs)
        for number in range(1, config.num_feedforward_networks):
            setattr(self, f"feed_forward_{number}", FeedForward(config, rngs))
        ends, narrow = (config.hidden_size, config.layer_width), config.bottleneck_size is not None
        self.bottleneck = Projection(*ends, config, rngs) if narrow else None
        self.expansion = Projection(*ends[::-1], config, rngs) if narrow else None
        self.adapter = None if config.adapter_size is None else Adapter(config, config.adapter_size, rngs)
        self.cross_attention = None if config.cross_attention_hidden_size is None else CrossAttention(config, rngs)
        self.config = config

    @jax.named_scope("layer")
    def __call__(
        self,
        x: Hidden,
        context: AttentionContext,
        key: Key | None,
        source: Source | KeyValues | None = None,
        cross: CrossInput | None = None,
        average: Callable[[Hidden], Hidden] | None = None,
    ) -> Hidden:
        """Runs the layer.

        Args:
            x: hidden states [B, S, D].
            context: visibility and positions.
            key: key of the dropout; None = no dropout.
            source: hidden states of keys and values [B, K, D] if they are not `x` (memory, another stream), or keys and
                values themselves.
            cross: output of the encoder, for the layer of a decoder.
            average: returns what the residual stream is after a block, from what it would be; None = that.
        """
        keys = (None,) * 4 if key is None else jax.random.split(key, 4)
        attention_rate = self.config.rate("attention_output_dropout")
        feed_forward_rate = self.config.rate("feed_forward_dropout")
        if source is not None and not isinstance(source, KeyValues):
            source = self._pre_norm(source)
        attend = functools.partial(self.attention, self._pre_norm(x), context, keys[0], source)
        if self.config.norm_placement == "post":
            layer_input, x = x, x if self.bottleneck is None else self.bottleneck(x)
            x, _ = self._add(x, self.attention, attend, self.attention.norm, attention_rate, keys[1])
            if self.cross_attention is not None:
                assert self.cross_attention.norm is not None
                x = self.cross_attention.norm(x + self._attend_to_encoder(x, cross, key))
            for number, block in enumerate(self.feed_forwards):
                inner, outer = (_fold_in(each, number) for each in (keys[3], keys[2]))
                feed = functools.partial(block, x, inner)
                x, _ = self._add(x, block, feed, block.norm, feed_forward_rate, outer)
            if self.expansion is not None:
                last_key = _fold_in(keys[2], self.config.num_feedforward_networks)
                x = dropout(self.expansion.dense(x), self.config.hidden_dropout, last_key)
                return self.expansion.norm(layer_input + x)
            return self._adapt(x, feed_forward_rate, key)
        parallel = self.config.norm_placement == "parallel"
        if parallel or self.cross_attention is not None or average is not None:
            attended = x + dropout(_normed(self.attention, attend()), attention_rate, keys[1])
            if self.cross_attention is not None:
                attended = attended + self._attend_to_encoder(x if parallel else attended, cross, key)
            attended = attended if average is None else average(attended)
            normed = self.feed_forward.norm(x if parallel else attended)
        else:
            normed, attended = self._add(x, self.attention, attend, self.feed_forward.norm, attention_rate, keys[1])
        added = _normed(self.feed_forward, self.feed_forward(normed, keys[3]))
        x = self._adapt(attended + dropout(added, feed_forward_rate, keys[2]), feed_forward_rate, key)
        return x if average is None else average(x)

    @property
    def feed_forwards(self) -> list[FeedForward]:
        """The feed-forward blocks, in the order in which they run."""
        others = range(1, self.config.num_feedforward_networks)
        return [self.feed_forward, *(getattr(self, f"feed_forward_{number}") for number in others)]

    def _adapt(self, x: Hidden, rate: float, key: Key | None) -> Hidden:
        """Adds the adapter; with post-norm the sum has the norm of the feed-forward block. Args: as of `dropout`."""
        if self.adapter is None:
            return x
        x = x + dropout(self.adapter(x), rate, None if key is None else jax.random.fold_in(key, _ADAPTER_KEY))
        norm = self.feed_forward.norm if self.config.norm_placement == "post" else None
        return x if norm is None else norm(x)

    def _add(
        self,
        x: Hidden,
        block: Attention | FeedForward,
        run: Callable[[], Hidden],
        norm: Norm | None,
        rate: float,
        key: Key | None,
    ) -> tuple[Hidden, Hidden]:
        """Adds the output of a block to the residual stream; returns the next norm, and the stream unless post-norm.

        Args:
            x: residual stream.
            block: the block.
            run: computes its output.
            norm: norm that follows.
            rate, key: as in `dropout`.
        """
        assert norm is not None
        if not choose_norm_kernel(self.config, key if rate else None):
            total = x + dropout(_normed(block, run()), rate, key)
            return norm(total), total
        is_last = block.output_norm is None and self.config.residual_depth is None and isinstance(block.output, Linear)
        with leave_out_bias(block.output if is_last else None) as bias:
            out = _normed(block, run())
        norm_bias = norm.bias[...] if isinstance(norm, LayerNorm) and norm.bias is not None else None
        weights = NormWeights(bias, norm_factors(norm), norm_bias)
        keeps = self.config.norm_placement != "post"
        results = add_and_normalize(out, x, weights, rate, key, isinstance(norm, LayerNorm), norm.epsilon, keeps)
        return results[0], results[-1]

    def _attend_to_encoder(self, x: Hidden, cross: CrossInput | None, key: Key | None) -> Hidden:
        """Returns what cross-attention adds to the residual stream.

        Where the source has fewer sequences, so many consecutive ones of `x` attend to the same (the beams of a
        search), as queries of one sequence.
        """
        block = self.cross_attention
        if cross is None or block is None or block.norm is None:
            raise ValueError("the layer of a decoder needs the output of an encoder")
        keys = (None,) * 2 if key is None else jax.random.split(jax.random.fold_in(key, _CROSS_KEY))
        shape = x.shape
        x = x if self.config.norm_placement == "post" else block.norm(x)
        if len(cross.context.segment_ids) != shape[0]:
            x = x.reshape(len(cross.context.segment_ids), -1, shape[-1])
        out = _normed(block, block(x, cross.context, keys[0], cross.states))
        out = out if out.shape == shape else out.reshape(shape)
        return dropout(out, self.config.rate("attention_output_dropout"), keys[1])

    def key_values(self, x: Hidden, context: AttentionContext) -> KeyValues:
        """Returns the keys and values that self-attention makes of the layer's input. Args: as in `__call__`."""
        return self.attention.key_values(self._pre_norm(x), context)

    def attention_tensors(self, x: Float[Array, "B S D"], context: AttentionContext) -> dict[str, Array]:
        """Computes `ATTENTION_TENSORS` for the layer input `x`, without dropout; `jit` removes those not used.

        Returns:
            `query`, `key`, `value` [B, S, N, H], the latter two copied for all heads that share them; `scores`
            [B, N, S, S] before the softmax, float32, undefined where `context.visible()` is False; `probabilities`
            [B, N, S, S], their softmax.
        """
        x = self._pre_norm(x)
        q, k, v = self.attention.project(self.attention.query(x), x, context)
        scores = self.attention.scores(q, k, context)
        tensors = q, k, v, scores, self.attention.weights(scores, context)
        return dict(zip(ATTENTION_TENSORS, tensors, strict=True))

    def _pre_norm(self, x: Array) -> Array:
        """Returns the input of the attention block."""
        if self.bottleneck is not None:
            return self.bottleneck(x) if self.config.use_bottleneck_attention else x
        norm = None if self.config.norm_placement == "post" else self.attention.norm
        return x if norm is None else norm(x)


def _fold_in(key: Key | None, number: int) -> Key | None:
    return key if key is None or number == 0 else jax.random.fold_in(key, number)


def _normed(block: Attention | FeedForward, output: Hidden) -> Hidden:
    """Returns the output of a block, normed where the block has an `output_norm`, and divided where configured."""
    output = output if block.output_norm is None else block.output_norm(output)
    return output if block.config.residual_depth is None else output / block.config.residual_divisor
