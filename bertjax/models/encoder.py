"""Embeddings, then stacked layers under few scans."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from bertjax.models.config import EncoderConfig
from bertjax.models.context import Context, make_context
from bertjax.models.embeddings import Embeddings
from bertjax.models.layer import Layer
from bertjax.models.linear import Key, dropout, layer_norm
from bertjax.models.stack import Stacked, layer_at, run_layers, shard_batch, stacked_layers, stacked_norms
from bertjax.types import Params


class EncoderOutput(NamedTuple):
    """`hidden_states` [L + 1, B, S, D] (embeddings first) only when it was asked for."""

    last_hidden_state: Array
    hidden_states: Array | None = None


class Encoder(nnx.Module):
    """A Transformer encoder, composed as its config says, with parameters stacked over the layers."""

    def __init__(self, config: EncoderConfig, rngs: nnx.Rngs):
        self.embeddings = Embeddings(config, rngs)
        if config.num_groups is None:
            self.layers = stacked_layers(config, rngs)
        else:
            self.groups = Stacked(stacked_layers(config, rngs))
        if not config.first_attention_norm and config.num_layers > 1:
            self.attention_norms = Stacked(stacked_norms(config, rngs))
        if config.norm_placement == "pre":
            self.norm = layer_norm(config.hidden_size, config, rngs)
        self.config = config

    def __call__(
        self,
        input_ids: Int[Array, "B S"],
        segment_ids: Int[Array, "B S"],
        position_ids: Int[Array, "B S"],
        token_type_ids: Int[Array, "B S"],
        key: Key | None = None,
        collect: tuple[str, ...] = (),
        stop: int | None = None,
    ) -> EncoderOutput:
        """Hidden states of every token; `key` switches dropout on, `collect=("hidden_states",)` keeps all layers.

        `stop` ends before that layer, without the last norm: what a decoder of its own goes on from.
        """
        keys = (None,) * 3 if key is None else jax.random.split(key, 3)
        x = shard_batch(self.embeddings(input_ids, position_ids, token_type_ids, segment_ids, keys[0]))
        contexts = self.contexts(segment_ids, position_ids, token_type_ids)

        def apply(layer: Layer, x: Array, local: bool, key: Key | None, _: None) -> Array:
            return layer(x, contexts[local], key)

        keep = (lambda x: x) if "hidden_states" in collect else None
        last, hidden = run_layers(self.config, self.weights(), x, apply, keys[1], stop=stop, keep=keep)
        if stop is None:
            last = self.finish(last, keys[2])
        if hidden is None:
            return EncoderOutput(last)
        return EncoderOutput(last, jnp.concatenate([x[None], hidden[:-1], last[None]]))

    def contexts(
        self, segment_ids: Int[Array, "B S"], position_ids: Int[Array, "B S"], token_type_ids: Int[Array, "B S"]
    ) -> dict[bool, Context]:
        """What the layers know of the batch: those that see the whole row (False) and those with a window (True)."""
        kinds = {self.config.is_local(layer) for layer in range(self.config.num_layers)}
        return {local: make_context(self.config, segment_ids, position_ids, local) for local in kinds}

    def finish(self, x: Float[Array, "B S D"], key: Key | None) -> Float[Array, "B S D"]:
        """The last norm and dropout, where there are any."""
        if self.config.norm_placement == "pre":
            x = self.norm(x)
        return dropout(x, self.config.output_dropout, key)

    def layer(self, index: int) -> Layer:
        """One layer, to run by itself; the layers must have parameters of their own."""
        return layer_at(self.config, self.weights(), index)

    def weights(self) -> dict[str, Params]:
        """The stacks by name."""
        stacks = {"layers": self.layers} if self.config.num_groups is None else {"groups": self.groups.layers}
        if hasattr(self, "attention_norms"):
            stacks["attention_norms"] = self.attention_norms.layers
        return {name: nnx.to_pure_dict(nnx.state(stack)) for name, stack in stacks.items()}
