"""Embeddings, then stacked layers under few scans."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from bertjax.config.model import EncoderConfig
from bertjax.errors import UserError
from bertjax.models.attention_context import AttentionContext, make_context
from bertjax.models.convolution import Convolution
from bertjax.models.disentangled_attention import DisentangledPositions, DistanceEmbeddings
from bertjax.models.dropout import dropout
from bertjax.models.embeddings import Embeddings
from bertjax.models.layer import ATTENTION_TENSORS, Layer
from bertjax.models.layer_stack import Stacked, get_layer, init_attention_norms, init_layers, run_layers
from bertjax.models.linear import Key, initializer, layer_norm
from bertjax.models.mesh import shard_batch
from bertjax.models.relative_attention import allow_self, make_relative_positions
from bertjax.types import Params


class EncoderOutput(NamedTuple):
    """What was not asked for is None or missing.

    last_hidden_state  [B, S, D]
    hidden_states      [L + 1, B, S, D], embeddings first
    before_last        [B, S, D]
    attention_tensors  parts of the attention of single layers by the names that asked for them: see `attention_tensors`
    """

    last_hidden_state: Array
    hidden_states: Array | None = None
    before_last: Array | None = None
    attention_tensors: Mapping[str, Array] = {}


class Encoder(nnx.Module):
    """A Transformer encoder, composed as its config says, with parameters stacked over the layers."""

    def __init__(self, config: EncoderConfig, rngs: nnx.Rngs):
        self.embeddings = Embeddings(config, rngs)
        if config.num_groups is None:
            self.layers = init_layers(config, rngs)
        else:
            self.groups = Stacked(init_layers(config, rngs))
        if not config.first_attention_norm and config.num_layers > 1:
            self.attention_norms = Stacked(init_attention_norms(config, rngs))
        if config.attention_position == "disentangled":
            self.relative = DistanceEmbeddings(config, rngs)
        if config.attention_position == "relative":  # what a second stream begins with: see two_stream.py
            self.mask_embedding = nnx.Param(initializer(config)(rngs.params(), (config.hidden_size,), jnp.float32))
        if config.conv_kernel_size:
            self.convolution = Convolution(config, rngs)
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
    ) -> EncoderOutput:
        """Hidden states of every token; `key` switches dropout on.

        `collect` names what to keep besides the last: `hidden_states` of all layers; `before_last`, what the last layer
        reads; `layers/3/query` and its like, a part of `Layer.attention_tensors`. These parts are made once more from
        what the layer reads: the layers themselves run as ever, in kernels that hold no scores.
        """
        keys = (None,) * 3 if key is None else jax.random.split(key, 3)
        x = shard_batch(self.embeddings(input_ids, position_ids, token_type_ids, segment_ids, keys[0]))
        wave_key = None if key is None else jax.random.fold_in(key, len(keys) + 1)
        contexts = self.contexts(segment_ids, position_ids, token_type_ids, wave_key)

        def apply(layer: Layer, x: Array, local: bool, key: Key | None, _: None) -> Array:
            return layer(x, contexts[local], key)

        def run(x: Array, start: int, stop: int) -> tuple[Array, Array | None]:
            keep = (lambda x: x) if "hidden_states" in collect else None
            return run_layers(self.config, self.weights(), x, apply, keys[1], start=start, stop=stop, keep=keep)

        states, parts = [x], [x[None]]
        read: dict[int, Array] = {}  # what a layer reads
        for start, stop in itertools.pairwise(self._cuts(collect)):
            read[start] = states[-1]
            y, hidden = run(states[-1], start, stop)
            if start == 0 and self.config.conv_kernel_size:
                y = self.convolution(x, y, segment_ids, None if key is None else jax.random.fold_in(key, len(keys)))
                hidden = None if hidden is None else y[None]  # the convolution belongs to the layer
            states.append(y)
            if hidden is not None:
                parts.append(hidden)
        last = self.finish(states[-1], keys[2])
        before_last = states[-2] if "before_last" in collect else None
        if "hidden_states" not in collect:
            return EncoderOutput(last, None, before_last, self._attention_parts(read, contexts, collect))
        hidden = jnp.concatenate(parts)
        layers = self._attention_parts(dict(enumerate(hidden[:-1])), contexts, collect)
        return EncoderOutput(last, jnp.concatenate([hidden[:-1], last[None]]), before_last, layers)

    def _attention_parts(
        self, read: Mapping[int, Array], contexts: Mapping[bool, AttentionContext], collect: tuple[str, ...]
    ) -> dict[str, Array]:
        """What `collect` names of single layers, made from what these layers read."""
        found: dict[str, Array] = {}
        for layer, names in _parts_by_layer(self.config, collect).items():
            parts = self.layer(layer).attention_tensors(read[layer], contexts[self.config.is_local(layer)])
            found |= {f"layers/{layer}/{name}": parts[name] for name in names}
        return found

    def _cuts(self, collect: tuple[str, ...]) -> list[int]:
        """Where the run of the layers is interrupted, with both ends."""
        cuts = {0, self.config.num_layers}
        if "hidden_states" not in collect:
            cuts |= set(_parts_by_layer(self.config, collect))
        if self.config.conv_kernel_size:
            cuts.add(1)
        if "before_last" in collect:
            cuts.add(self.config.num_layers - 1)
        return sorted(cuts)

    def contexts(
        self,
        segment_ids: Int[Array, "B S"],
        position_ids: Int[Array, "B S"],
        token_type_ids: Int[Array, "B S"],
        key: Key | None = None,
    ) -> dict[bool, AttentionContext]:
        """What the layers know of the batch: those that see the whole row (False) and those with a window (True).

        `key` drops parts of relative attention's sinusoids.
        """
        kinds = {self.config.is_local(layer) for layer in range(self.config.num_layers)}
        relative: Any = None
        if self.config.attention_position == "disentangled":
            relative = DisentangledPositions(self.relative(segment_ids.shape[1]))
        if self.config.attention_position == "relative":
            relative = make_relative_positions(self.config, token_type_ids, key)
        found = {local: make_context(self.config, segment_ids, position_ids, local, relative) for local in kinds}
        if self.config.attention_position == "relative":
            return {local: each._replace(mask=allow_self(each.visible())) for local, each in found.items()}
        return found

    def finish(self, x: Float[Array, "B S D"], key: Key | None) -> Float[Array, "B S D"]:
        """The last norm and dropout, where there are any."""
        if self.config.norm_placement == "pre":
            x = self.norm(x)
        return dropout(x, self.config.output_dropout, key)

    def layer(self, index: int) -> Layer:
        """One layer, to run by itself; shared or not, it must be one in its group."""
        return get_layer(self.config, self.weights(), index)

    def weights(self) -> dict[str, Params]:
        """The stacks by name."""
        stacks: dict[str, nnx.Module] = {}
        if self.config.num_groups is None:
            stacks["layers"] = self.layers
        else:
            stacks["groups"] = self.groups.layers
        if hasattr(self, "attention_norms"):
            stacks["attention_norms"] = self.attention_norms.layers
        return {name: nnx.to_pure_dict(nnx.state(stack)) for name, stack in stacks.items()}


def _parts_by_layer(config: EncoderConfig, collect: tuple[str, ...]) -> dict[int, list[str]]:
    """Which parts of which layers `collect` names; raises `UserError` for layers that there are not."""
    wanted: dict[int, list[str]] = {}
    for name in collect:
        if not name.startswith("layers/"):
            continue
        _, layer, part = name.split("/")
        if int(layer) not in range(config.num_layers) or part not in ATTENTION_TENSORS:
            raise UserError(
                f"cannot collect {name}: there are layers 0 to {config.num_layers - 1}, each with "
                f"{', '.join(ATTENTION_TENSORS)}"
            )
        if config.inner_layers > 1:
            raise UserError(f"cannot collect {name}: each of model.num_groups has inner_layers={config.inner_layers}")
        wanted.setdefault(int(layer), []).append(part)
    return wanted
