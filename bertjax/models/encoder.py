"""Embeddings, then stacked layers under one `lax.scan`."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import PartitionSpec
from jaxtyping import Array, Int

from bertjax.models.attention import attention_mask
from bertjax.models.config import EncoderConfig
from bertjax.models.embeddings import Embeddings
from bertjax.models.layer import Layer
from bertjax.models.linear import Key


class EncoderOutput(NamedTuple):
    """`hidden_states` [L + 1, B, S, D] (embeddings first) only when it was asked for."""

    last_hidden_state: Array
    hidden_states: Array | None = None


class Encoder(nnx.Module):
    """A bidirectional Transformer encoder with parameters stacked over the layers."""

    def __init__(self, config: EncoderConfig, rngs: nnx.Rngs):
        self.embeddings = Embeddings(config, rngs)
        self.layers = _stacked_layers(config, rngs)
        self.config = config

    def __call__(
        self,
        input_ids: Int[Array, "B S"],
        segment_ids: Int[Array, "B S"],
        position_ids: Int[Array, "B S"],
        token_type_ids: Int[Array, "B S"],
        key: Key | None = None,
        collect: tuple[str, ...] = (),
    ) -> EncoderOutput:
        """Hidden states of every token; `key` switches dropout on, `collect=("hidden_states",)` keeps all layers."""
        embedding_key, layers_key = (None, None) if key is None else jax.random.split(key)
        x = shard_batch(self.embeddings(input_ids, position_ids, token_type_ids, embedding_key))
        keep_all = "hidden_states" in collect
        last, hidden = self._scan(x, attention_mask(segment_ids), layers_key, keep_all)
        return EncoderOutput(last, None if hidden is None else jnp.concatenate([x[None], hidden]))

    def _scan(self, x: Array, mask: Array, key: Key | None, keep_all: bool) -> tuple[Array, Array | None]:
        graph, stacked = nnx.split(self.layers)
        keys = None if key is None else jax.random.split(key, self.config.num_layers)

        def body(x: Array, layer: tuple) -> tuple[Array, Array | None]:
            params, layer_key = layer
            x = shard_batch(nnx.merge(graph, params)(x, mask, layer_key))
            return x, x if keep_all else None

        return jax.lax.scan(_remat(body, self.config.remat), x, (stacked, keys), unroll=self.config.unroll)


def _remat(body, policy: str):
    if policy == "none":
        return body
    saved = jax.checkpoint_policies.dots_with_no_batch_dims_saveable if policy == "dots" else None
    return jax.checkpoint(body, policy=saved, prevent_cse=False)


def _stacked_layers(config: EncoderConfig, rngs: nnx.Rngs) -> Layer:
    """One `Layer` whose every parameter carries a leading [L] axis, each layer drawn from its own key."""
    graph = nnx.graphdef(nnx.eval_shape(lambda: Layer(config, nnx.Rngs(0))))
    keys = jax.random.split(rngs.params(), config.num_layers)
    return nnx.merge(graph, jax.vmap(lambda key: nnx.to_pure_dict(nnx.state(Layer(config, nnx.Rngs(key)))))(keys))


def shard_batch(x: Array) -> Array:
    """Keeps activations split by rows over the mesh in use: without it, the compiler may follow the weights instead."""
    mesh = jax.sharding.get_abstract_mesh()
    axes = tuple(name for name in ("data", "fsdp") if name in mesh.axis_names)
    return jax.lax.with_sharding_constraint(x, PartitionSpec(axes)) if axes else x
