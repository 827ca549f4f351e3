"""The encoder: embeddings, DeBERTa's convolution over them, then stacked layers under few scans."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

from bertjax.config.model import EncoderConfig
from bertjax.errors import UserError
from bertjax.models.attention_context import (
    AttentionContext,
    CrossInput,
    DisentangledPositions,
    Relative,
    make_context,
)
from bertjax.models.disentangled_attention import DistanceEmbeddings
from bertjax.models.dropout import dropout
from bertjax.models.embeddings import Embeddings
from bertjax.models.layer import ATTENTION_TENSORS, Layer
from bertjax.models.layer_stack import Stacked, get_layer, init_attention_norms, init_layers, run_layers
from bertjax.models.linear import Key, activation, dot, initializer, make_norm
from bertjax.models.mesh import shard_batch
from bertjax.models.relative_attention import allow_self, make_relative_positions
from bertjax.models.relative_bias import make_relative_bias
from bertjax.models.span_convolution import neighbors
from bertjax.types import Params

Streams = tuple[Array, ...]
"""The residual stream [B, S, D], and with `depth_weighted_average` all that it was, from the embeddings on."""


class EncoderOutput(NamedTuple):
    """Hidden states; those not collected are None or missing.

    last_hidden_state  [B, S, D]
    hidden_states      [L + 1, B, S, D], embeddings first
    before_last        input of the last layer [B, S, D]
    attention_tensors  tensors of single layers by their name in `collect`: see `Layer.attention_tensors`
    """

    last_hidden_state: Array
    hidden_states: Array | None = None
    before_last: Array | None = None
    attention_tensors: Mapping[str, Array] = {}


class Encoder(nnx.Module):
    """A Transformer encoder, composed as its config says, with parameters stacked over the layers.

    A pure function of its inputs and parameters: `jax.jit`, `jax.grad` and `jax.vmap` take it as it is.

    Args:
        config: architecture.
        rngs: the stream `params` draws the parameters.
        words: False leaves out the word table: every call brings `inputs_embeds`.
    """

    def __init__(self, config: EncoderConfig, rngs: nnx.Rngs, words: bool = True):
        attention = config.attention_position
        split_norms = not config.first_attention_norm and config.num_layers > 1
        self.embeddings = Embeddings(config, rngs, words)
        self.layers = init_layers(config, rngs) if config.num_groups is None else None
        self.groups = None if config.num_groups is None else Stacked(init_layers(config, rngs))
        self.attention_norms = Stacked(init_attention_norms(config, rngs)) if split_norms else None
        self.relative = DistanceEmbeddings(config, rngs) if attention == "disentangled" else None
        shares_biases = attention == "relative_bias" and config.relative_attention_shared
        self.relative_attention_bias = make_relative_bias(config, rngs) if shares_biases else None
        if attention == "relative":  # initial state of the second stream: see two_stream.py
            self.mask_embedding = nnx.Param(initializer(config)(rngs.params(), (config.hidden_size,), jnp.float32))
        self.convolution = Convolution(config, rngs) if config.conv_kernel_size else None
        self.depth_weighted_average = DepthWeightedAverage(config) if config.depth_weighted_average else None
        has_norm, norm_bias = config.norm_placement != "post", config.last_norm_bias
        self.norm = make_norm(config.hidden_size, config, rngs, norm_bias) if has_norm else None
        self.config = config

    def __repr__(self) -> str:
        return describe_module(self, self.config)

    __str__ = __repr__

    def __call__(
        self,
        input_ids: Int[Array, "B S"],
        attention_mask: Int[Array, "B S"] | None = None,
        token_type_ids: Int[Array, "B S"] | None = None,
        position_ids: Int[Array, "B S"] | None = None,
        *,
        key: Key | None = None,
        collect: tuple[str, ...] = (),
        encoder_hidden_states: Float[Array, "B K D2"] | None = None,
        encoder_attention_mask: Int[Array, "B K"] | None = None,
        inputs_embeds: Float[Array, "B S E"] | None = None,
    ) -> EncoderOutput:
        """Computes the hidden states of every token.

        Args:
            input_ids: as in `types.Batch`; their range is not checked.
            attention_mask: 1 = real token, 0 = padding; or the `segment_ids` of `types.Batch`, whose examples 1, 2, ...
                attend only to themselves. None = all tokens are real.
            token_type_ids: None = zeros.
            position_ids: counted from 0; None = counted from the first token (RoBERTa: without padding).
            key: key of the dropout; None = no dropout.
            collect: what to return besides the last hidden state: `hidden_states` of all layers; `before_last`;
                `layers/3/query` and the like, one of `Layer.attention_tensors`. The latter are recomputed from the
                input of the layer: the layers themselves run in kernels that hold no scores.
            encoder_hidden_states: output of the encoder, for a decoder.
            encoder_attention_mask: mask of these, or their `segment_ids`: example i attends to example i.
            inputs_embeds: rows that replace those of the word table, E = `config.embedding_dim`; for gradients.

        Raises:
            UserError: `collect` names a layer or tensor that does not exist.
        """
        segment_ids = jnp.ones_like(input_ids) if attention_mask is None else attention_mask
        token_type_ids = jnp.zeros_like(input_ids) if token_type_ids is None else token_type_ids
        position_ids = count_positions(self.config, input_ids) if position_ids is None else position_ids
        keys = (None,) * 3 if key is None else jax.random.split(key, 3)
        x = self.embeddings(input_ids, position_ids, token_type_ids, segment_ids, keys[0], inputs_embeds)
        x = shard_batch(x)
        position_key = None if key is None else jax.random.fold_in(key, len(keys) + 1)
        contexts = self.contexts(segment_ids, position_ids, token_type_ids, position_key)

        cross = None
        if encoder_hidden_states is not None:
            if encoder_attention_mask is None:
                encoder_attention_mask = jnp.ones(encoder_hidden_states.shape[:2], jnp.int32)
            max_examples = self.config.max_examples
            context = AttentionContext(segment_ids, key_segment_ids=encoder_attention_mask, max_examples=max_examples)
            cross = CrossInput(encoder_hidden_states, context)

        averages = self.depth_weighted_average
        weights = None if averages is None else averages.weights[...]

        def apply(layer: Layer, x: Streams, local: bool, key: Key | None, row: Any) -> Streams:
            hidden, *past = x
            average = None if averages is None else functools.partial(averages.average, row, past)
            return layer(hidden, contexts[local], key, cross=cross, average=average), *past

        def run(x: Streams, start: int, stop: int) -> tuple[Streams, Array | None]:
            keep = (lambda x: x[0]) if "hidden_states" in collect else None
            part: dict[str, Any] = {"start": start, "stop": stop, "per_layer": weights, "collect": keep}
            return run_layers(self.config, self.weights(), x, apply, keys[1], **part)

        states, all_states, past = [x], [x[None]], [] if averages is None else [x]
        layer_inputs: dict[int, Array] = {}
        for start, stop in itertools.pairwise(self._cuts(collect)):
            layer_inputs[start] = states[-1]
            (y, *past), collected = run((states[-1], *past), start, stop)
            if start == 0 and self.convolution is not None:
                y = self.convolution(x, y, segment_ids, None if key is None else jax.random.fold_in(key, len(keys)))
                collected = None if collected is None else y[None]  # the convolution belongs to the layer
            states.append(y)
            if collected is not None:
                all_states.append(collected)
        last = self.finish(states[-1], keys[2])
        before_last = states[-2] if "before_last" in collect else None
        if "hidden_states" not in collect:
            return EncoderOutput(last, None, before_last, self._attention_tensors(layer_inputs, contexts, collect))
        hidden = jnp.concatenate(all_states)
        tensors = self._attention_tensors(dict(enumerate(hidden[:-1])), contexts, collect)
        return EncoderOutput(last, jnp.concatenate([hidden[:-1], last[None]]), before_last, tensors)

    def _attention_tensors(
        self, inputs: Mapping[int, Array], contexts: Mapping[bool, AttentionContext], collect: tuple[str, ...]
    ) -> dict[str, Array]:
        """Computes the tensors of single layers that `collect` names, from the inputs of these layers."""
        result: dict[str, Array] = {}
        for layer, names in _tensors_by_layer(self.config, collect).items():
            tensors = self.layer(layer).attention_tensors(inputs[layer], contexts[self.config.is_local(layer)])
            result |= {f"layers/{layer}/{name}": tensors[name] for name in names}
        return result

    def _cuts(self, collect: tuple[str, ...]) -> list[int]:
        """Returns the layers before which the run of layers is interrupted, with both ends."""
        cuts = {0, self.config.num_layers}
        if self.depth_weighted_average is not None:  # every layer adds to what the next ones read
            cuts |= {*range(self.config.num_layers)}
        if "hidden_states" not in collect:
            cuts |= set(_tensors_by_layer(self.config, collect))
        if self.convolution is not None:
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
        """Returns the attention contexts of global (False) and of local layers (True), where there are any.

        Args:
            segment_ids: as in `types.Batch`.
            position_ids: as there.
            token_type_ids: as there.
            key: key of the dropout of relative attention's sinusoids; None = no dropout.
        """
        kinds = {self.config.is_local(layer) for layer in range(self.config.num_layers)}
        relative: Relative | None = None
        if self.relative is not None:
            relative = DisentangledPositions(self.relative(segment_ids.shape[1]))
        if self.relative_attention_bias is not None:
            relative = self.relative_attention_bias(segment_ids.shape[1])
        if self.config.attention_position == "relative":
            relative = make_relative_positions(self.config, token_type_ids, key)
        contexts = {local: make_context(self.config, segment_ids, position_ids, local, relative) for local in kinds}
        if self.config.attention_position != "relative" or self.config.attention_implementation == "pallas":
            return contexts
        return {local: each._replace(mask=allow_self(each.visible())) for local, each in contexts.items()}

    def finish(self, x: Float[Array, "B S D"], key: Key | None) -> Float[Array, "B S D"]:
        """Applies the final norm and dropout, where configured."""
        return dropout(x if self.norm is None else self.norm(x), self.config.output_dropout, key)

    def layer(self, index: int) -> Layer:
        """Returns one layer to run by itself; with shared layers, the first of its group."""
        return get_layer(self.config, self.weights(), index)

    def weights(self) -> dict[str, Params]:
        """Returns the parameters of the stacks by name."""
        stacks = {
            "layers": self.layers,
            "groups": None if self.groups is None else self.groups.layers,
            "attention_norms": None if self.attention_norms is None else self.attention_norms.layers,
        }
        return {name: nnx.to_pure_dict(nnx.state(stack)) for name, stack in stacks.items() if stack is not None}


def count_positions(config: EncoderConfig, input_ids: Int[Array | np.ndarray, "B S"]) -> Any:
    """Returns positions from 0 [B, S], an array of the same library; where the table has an offset, padding has -1.

    There it is not counted: so RoBERTa was trained (transformers: create_position_ids_from_input_ids). Encoders with a
    decoder count it (BART).
    """
    numpy = np if isinstance(input_ids, np.ndarray) else jnp  # NumPy compiles no program
    skips = config.position_offset > 0 and config.decoder_layers is None
    real = input_ids != config.pad_token_id if skips else numpy.ones_like(input_ids, bool)
    return (numpy.cumsum(real, axis=1) * real - 1).astype(np.int32)


def describe_module(module: nnx.Module, config: EncoderConfig) -> str:
    """Returns the class, architecture and parameters of a module in a few lines, one per direct part.

    Args:
        module: an encoder, or a model with heads.
        config: its architecture.
    """
    params = nnx.to_pure_dict(nnx.state(module))
    sizes = {name: sum(leaf.size for leaf in jax.tree.leaves(part)) for name, part in params.items()}
    lines = [
        f"{type(module).__name__}({config.family}: {config.num_layers} layers of {config.hidden_size}, "
        f"{config.num_heads} heads, {config.vocab_size:,} tokens; {sum(sizes.values()):,} parameters)"
    ]
    return "\n".join(lines + [f"  {name}: {size:,}" for name, size in sizes.items()])


def _tensors_by_layer(config: EncoderConfig, collect: tuple[str, ...]) -> dict[int, list[str]]:
    """Returns the names of attention tensors in `collect` by layer; raises `UserError` for unknown ones."""
    names: dict[int, list[str]] = {}
    for path in collect:
        if not path.startswith("layers/"):
            continue
        _, layer, name = path.split("/")
        if int(layer) not in range(config.num_layers) or name not in ATTENTION_TENSORS:
            raise UserError(
                f"cannot collect {path}: layers are 0 to {config.num_layers - 1}, "
                f"tensors {', '.join(ATTENTION_TENSORS)}"
            )
        if config.inner_layers > 1:
            raise UserError(f"cannot collect {path}: each of model.num_groups has inner_layers={config.inner_layers}")
        names.setdefault(int(layer), []).append(name)
    return names


class DepthWeightedAverage(nnx.Module):
    """Weights [L, 2, 2 L + 1] of the embeddings and of the stream after each block, for the stream after either block.

    At first every stream is itself; weights of later ones are not read.
    """

    def __init__(self, config: EncoderConfig):
        first = jnp.eye(2 * config.num_layers, 2 * config.num_layers + 1, k=1)
        self.weights = nnx.Param(first.reshape(config.num_layers, 2, -1))

    @staticmethod
    def average(weights: Float[Array, "2 M"], past: list[Array], x: Float[Array, "B S D"]) -> Float[Array, "B S D"]:
        """Returns the weighted sum of `past` and x, which it appends to `past`.

        Args:
            weights: those of the layer.
            past: the stream before, from the embeddings on.
            x: the stream after the next block, which is the first of a layer where `past` has an odd length.
        """
        row = weights[(len(past) + 1) % 2]
        past.append(x)
        total = sum((row[index] * each.astype(jnp.float32) for index, each in enumerate(past)), jnp.zeros(()))
        return total.astype(x.dtype)


class Convolution(nnx.Module):
    """norm(layer output + act(dropout(conv(embeddings)))), zero at padding (microsoft/DeBERTa: deberta/bert.py).

    In packed sequences, n-grams do not reach into another example: each sees zeros around it. kernel [width, D, D].
    """

    def __init__(self, config: EncoderConfig, rngs: nnx.Rngs):
        shape = config.conv_kernel_size, config.hidden_size, config.hidden_size
        self.kernel = nnx.Param(initializer(config)(rngs.params(), shape, jnp.float32))
        self.bias = nnx.Param(jnp.zeros((config.hidden_size,), jnp.float32))
        self.norm = make_norm(config.hidden_size, config, rngs)
        self.config = config

    @jax.named_scope("convolution")
    def __call__(
        self,
        embeddings: Float[Array, "B S D"],
        layer_output: Float[Array, "B S D"],
        segment_ids: Int[Array, "B S"],
        key: Key | None,
    ) -> Float[Array, "B S D"]:
        """Returns the output of the first layer with the convolution added [B, S, D].

        Args:
            embeddings, layer_output: input and output of the first layer [B, S, D].
            segment_ids: as in `types.Batch`.
            key: key of the dropout; None = no dropout.
        """
        config = self.config
        ngrams = jnp.concatenate([*neighbors(embeddings, segment_ids, config.conv_kernel_size)], axis=-1)
        kernel = self.kernel[...].reshape(-1, config.hidden_size)
        out = dot(ngrams, kernel, config.compute_dtype, config.result_dtype)
        out = out + self.bias[...][None, None].astype(out.dtype)
        real = (segment_ids > 0)[:, :, None]
        out = jnp.where(real, out, jnp.zeros((), out.dtype))
        out = activation(config.conv_act)(dropout(out, config.hidden_dropout, key))
        return jnp.where(real, self.norm(layer_output + out), jnp.zeros((), out.dtype))
