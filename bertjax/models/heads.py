"""Heads: what stands between the hidden states and a loss."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from bertjax.config.model import EncoderConfig
from bertjax.models.dropout import dropout
from bertjax.models.linear import Key, Linear, activation, dot, initializer, layer_norm
from bertjax.models.mesh import shard_batch, unshard_table


class Pooler(nnx.Module):
    """act(dense(summary token)); tanh in BERT."""

    def __init__(self, config: EncoderConfig, rngs: nnx.Rngs):
        self.dense = Linear(config.hidden_size, config.hidden_size, config, rngs)
        self.act = config.pooler_act

    @jax.named_scope("head")
    def __call__(self, summary: Float[Array, "*b D"]) -> Float[Array, "*b D"]:
        return activation(self.act)(self.dense(summary))


class MlmHead(nnx.Module):
    """dense -> activation -> norm -> scores against the word table (tied, owned by the encoder) + bias.

    `mlm_head="bias"` has only the scores and the bias (XLNet), "tied" only the scores (GPT-2).
    """

    def __init__(self, config: EncoderConfig, rngs: nnx.Rngs):
        if config.mlm_head == "transform":
            self.dense = Linear(config.hidden_size, config.embedding_dim, config, rngs, config.head_dense_bias)
            self.norm = layer_norm(config.embedding_dim, config, rngs)
        if config.mlm_head != "tied" and config.mlm_bias:
            self.bias = nnx.Param(jnp.zeros((config.table_size,), jnp.float32))
        self.config = config

    @jax.named_scope("head")
    def __call__(self, hidden: Float[Array, "*b D"], table: Float[Array, "V D2"]) -> Float[Array, "*b V"]:
        """Float32 logits; the padding of the vocabulary gets the lowest number there is."""
        if self.config.mlm_head == "transform":
            act = activation(self.config.mlm_act or self.config.hidden_act)
            hidden = self.norm(act(self.dense(hidden)))
        return tied_logits(hidden, table, getattr(self, "bias", None), self.config)


@jax.named_scope("head")
def tied_logits(
    hidden: Float[Array, "*b D"], table: Float[Array, "V D"], bias: nnx.Param | None, config: EncoderConfig
) -> Float[Array, "*b V"]:
    """Float32 scores against the word table; the padding of the vocabulary gets the lowest number there is."""
    logits = dot(hidden, unshard_table(table), config.compute_dtype, "float32", True)
    if bias is not None:
        logits = logits + jnp.expand_dims(bias[...], range(logits.ndim - 1))
    if config.table_size > config.vocab_size:
        real = jnp.arange(config.table_size) < config.vocab_size
        logits = jnp.where(jnp.expand_dims(real, range(logits.ndim - 1)), logits, jnp.finfo(jnp.float32).min)
    return logits


class ReplacedTokenHead(nnx.Module):
    """One score a token, high where it was replaced: dense -> activation -> score.

    `rtd_head="summary"` first adds and norms the example's summary (microsoft/DeBERTa: MaskedLanguageModel v3).
    """

    def __init__(self, config: EncoderConfig, rngs: nnx.Rngs):
        if config.rtd_head == "summary":
            self.norm = layer_norm(config.hidden_size, config, rngs)
        self.dense = Linear(config.hidden_size, config.hidden_size, config, rngs)
        self.output = Linear(config.hidden_size, 1, config, rngs)
        self.config = config

    @jax.named_scope("head")
    def __call__(self, hidden: Float[Array, "B S D"], summaries: Float[Array, "B S D"] | None) -> Float[Array, "B S"]:
        """`summaries` holds, for every token, the summary token of its example; the dense head does not read it."""
        if self.config.rtd_head == "summary":
            assert summaries is not None
            hidden = self.norm(hidden + summaries)
        return self.output(activation(self.config.hidden_act)(self.dense(hidden)))[..., 0].astype(jnp.float32)


class SpanBoundaryHead(nnx.Module):
    """Words of a span from the tokens outside its two ends and the place in it (facebookresearch/SpanBERT)."""

    def __init__(self, config: EncoderConfig, rngs: nnx.Rngs):
        size = config.hidden_size
        self.position_embeddings = nnx.Embed(
            config.span_positions, config.span_position_size, embedding_init=initializer(config), rngs=rngs
        )
        self.first = Linear(2 * size + config.span_position_size, size, config, rngs)
        self.first_norm = layer_norm(size, config, rngs)
        self.second = Linear(size, config.embedding_dim, config, rngs)
        self.second_norm = layer_norm(config.embedding_dim, config, rngs)
        self.bias = nnx.Param(jnp.zeros((config.table_size,), jnp.float32))
        self.config = config

    @jax.named_scope("head")
    def __call__(
        self,
        left: Float[Array, "B M D"],
        right: Float[Array, "B M D"],
        places: Int[Array, "B M"],
        table: Float[Array, "V D2"],
    ) -> Float[Array, "B M V"]:
        """Logits of words from the tokens before and behind their span, and their place in it (from 0)."""
        act = activation(self.config.hidden_act)
        places_in_span = self.position_embeddings(places).astype(left.dtype)
        hidden = self.first_norm(act(self.first(jnp.concatenate([left, right, places_in_span], axis=-1))))
        hidden = self.second_norm(act(self.second(hidden)))
        return tied_logits(hidden, table, self.bias, self.config)


class ScoreHead(nnx.Module):
    """Scores of labels: (dense -> activation (-> norm)) -> dropout -> linear."""

    def __init__(self, config: EncoderConfig, num_scores: int, dense: bool, rngs: nnx.Rngs):
        if dense:
            self.dense = Linear(config.hidden_size, config.hidden_size, config, rngs, config.head_dense_bias)
            if config.classifier_norm:
                self.norm = layer_norm(config.hidden_size, config, rngs)
        self.output = Linear(config.hidden_size, num_scores, config, rngs)
        self.config = config

    @jax.named_scope("head")
    def __call__(self, hidden: Float[Array, "*b D"], key: Key | None = None) -> Float[Array, "*b K"]:
        if hasattr(self, "dense"):
            hidden = activation(self.config.classifier_act)(self.dense(hidden))
        if hasattr(self, "norm"):
            hidden = self.norm(hidden)
        hidden = dropout(hidden, self.config.rate("classifier_dropout"), key)
        return self.output(hidden).astype(jnp.float32)


@jax.named_scope("head")
def gather_positions(hidden: Float[Array, "B S D"], positions: Int[Array, "B M"]) -> Float[Array, "B M D"]:
    """hidden[b, positions[b, m]]; positions must lie in [0, S): JAX clamps silently."""
    return shard_batch(jnp.take_along_axis(hidden, positions[:, :, None], axis=1))


def pool_examples(
    hidden: Float[Array, "B S D"], positions: Int[Array, "B E"], segment_ids: Int[Array, "B S"], config: EncoderConfig
) -> Float[Array, "B E D"]:
    """The vector that stands for each example: its token at `positions`, or the mean of its tokens."""
    if config.pooling != "mean":
        return gather_positions(hidden, positions)
    examples = jnp.arange(1, positions.shape[1] + 1)
    own = (segment_ids[:, None, :] == examples[None, :, None]).astype(jnp.float32)
    total = jnp.einsum("bes,bsd->bed", own, hidden.astype(jnp.float32))
    return (total / jnp.maximum(own.sum(-1, keepdims=True), 1.0)).astype(hidden.dtype)


def summary_per_token(
    hidden: Float[Array, "B S D"], positions: Int[Array, "B E"], segment_ids: Int[Array, "B S"]
) -> Float[Array, "B S D"]:
    """For every token the summary token of its own example."""
    own = jnp.clip(segment_ids - 1, 0, positions.shape[1] - 1)
    return gather_positions(hidden, jnp.take_along_axis(jax.lax.stop_gradient(positions), own, axis=1))
