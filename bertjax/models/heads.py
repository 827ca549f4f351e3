"""Heads on the encoder, and the model that joins them: the networks of masked-LM pretraining."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from bertjax.models.config import EncoderConfig
from bertjax.models.encoder import Encoder, EncoderOutput
from bertjax.models.linear import Key, Linear, activation, dot, layer_norm
from bertjax.types import Params, UserError

HEADS = ("pooler", "mlm", "pair")


class Pooler(nnx.Module):
    """tanh(dense(summary token))."""

    def __init__(self, config: EncoderConfig, rngs: nnx.Rngs):
        self.dense = Linear(config.hidden_size, config.hidden_size, config, rngs)

    def __call__(self, summary: Float[Array, "*b D"]) -> Float[Array, "*b D"]:
        return jnp.tanh(self.dense(summary))


class MlmHead(nnx.Module):
    """dense -> activation -> norm -> scores against the word table (tied, owned by the encoder) + bias."""

    def __init__(self, config: EncoderConfig, rngs: nnx.Rngs):
        self.dense = Linear(config.hidden_size, config.hidden_size, config, rngs)
        self.norm = layer_norm(config.hidden_size, config, rngs)
        self.bias = nnx.Param(jnp.zeros((config.table_size,), jnp.float32))
        self.config = config

    def __call__(self, hidden: Float[Array, "*b D"], table: Float[Array, "V D"]) -> Float[Array, "*b V"]:
        """Float32 logits; the padding of the vocabulary gets the lowest number there is."""
        hidden = self.norm(activation(self.config.hidden_act)(self.dense(hidden)))
        logits = dot(hidden, table, self.config.compute_dtype, "float32", True)
        bias = self.bias[...]
        if self.config.table_size > self.config.vocab_size:
            real = jnp.arange(self.config.table_size) < self.config.vocab_size
            bias = jnp.where(real, bias, jnp.finfo(jnp.float32).min)
        return logits + jnp.expand_dims(bias, range(logits.ndim - 1))


class PretrainingModel(nnx.Module):
    """An encoder with any of the heads `pooler`, `mlm`, `pair` (which reads the pooler)."""

    def __init__(self, config: EncoderConfig, heads: tuple[str, ...], rngs: nnx.Rngs):
        unknown = set(heads) - set(HEADS)
        if unknown or ("pair" in heads and "pooler" not in heads):
            raise UserError(f"heads must be of {HEADS}, and pair needs pooler; not {heads}")
        self.encoder = Encoder(config, rngs)
        if "pooler" in heads:
            self.pooler = Pooler(config, rngs)
        if "mlm" in heads:
            self.mlm_head = MlmHead(config, rngs)
        if "pair" in heads:
            self.pair_head = Linear(config.hidden_size, 2, config, rngs)

    def encode(
        self,
        input_ids: Int[Array, "B S"],
        segment_ids: Int[Array, "B S"],
        position_ids: Int[Array, "B S"],
        token_type_ids: Int[Array, "B S"],
        key: Key | None = None,
        collect: tuple[str, ...] = (),
    ) -> EncoderOutput:
        return self.encoder(input_ids, segment_ids, position_ids, token_type_ids, key, collect)

    def mlm_logits(self, hidden: Float[Array, "*b D"]) -> Float[Array, "*b V"]:
        """Vocabulary logits of the given hidden states (gather the positions first: this is the dear product)."""
        return self.mlm_head(hidden, self.encoder.embeddings.word_embeddings.embedding[...])

    def pooled(self, hidden: Float[Array, "B S D"], positions: Int[Array, "B E"]) -> Float[Array, "B E D"]:
        """Pooler output of the summary token of every example."""
        return self.pooler(gather_positions(hidden, positions))

    def pair_logits(self, pooled: Float[Array, "*b D"]) -> Float[Array, "*b 2"]:
        return self.pair_head(pooled).astype(jnp.float32)


def gather_positions(hidden: Float[Array, "B S D"], positions: Int[Array, "B M"]) -> Float[Array, "B M D"]:
    """hidden[b, positions[b, m]]; positions must lie in [0, S): JAX clamps silently."""
    return jnp.take_along_axis(hidden, positions[:, :, None], axis=1)


@functools.lru_cache(maxsize=32)
def graph(config: EncoderConfig, heads: tuple[str, ...]) -> nnx.GraphDef:
    """The structure of a model without its numbers: `nnx.merge(graph(...), params)` is the model."""
    return nnx.graphdef(nnx.eval_shape(lambda: PretrainingModel(config, heads, nnx.Rngs(0))))


def bind(config: EncoderConfig, heads: tuple[str, ...], params: Params) -> PretrainingModel:
    """The model with these parameters."""
    return nnx.merge(graph(config, heads), params)


def init_params(config: EncoderConfig, heads: tuple[str, ...], key: Key) -> Params:
    """Freshly drawn parameters, a nested dict of float32 arrays."""
    return nnx.to_pure_dict(nnx.state(PretrainingModel(config, heads, nnx.Rngs(key))))


def abstract_params(config: EncoderConfig, heads: tuple[str, ...]) -> Params:
    """Shapes and types of `init_params`, without allocating any."""
    return jax.eval_shape(lambda: init_params(config, heads, jax.random.key(0)))


def count_params(config: EncoderConfig, heads: tuple[str, ...]) -> int:
    """Number of parameters at the true vocabulary size, tied weights counted once."""
    true = dataclasses.replace(config, padded_vocab_size=None)
    return sum(leaf.size for leaf in jax.tree.leaves(abstract_params(true, heads)))
