"""Incremental decoding: the next tokens of sequences whose earlier keys and values are cached.

A sequence has T positions from the start, as many as it may get tokens, so that every step is the same program: it
writes keys and values of its tokens into the cache and attends to all T positions, of which causality excludes those
not yet written. Prompts end at the same position; shorter ones have padding before them.

Axes: R sequences that grow, Q tokens of a step, M heads of keys and values.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from bertjax.config.model import EncoderConfig
from bertjax.models.attention import KeyValues
from bertjax.models.attention_context import (
    AttentionContext,
    CrossInput,
    DisentangledPositions,
    Relative,
    make_context,
    visibility_mask,
)
from bertjax.models.encoder import Encoder
from bertjax.models.layer import Layer, attention_class
from bertjax.models.layer_stack import run_layers
from bertjax.models.linear import Key
from bertjax.models.model import Model
from bertjax.models.relative_attention import relative_positions_at


class Target(NamedTuple):
    """Inputs that do not change while sequences grow.

    segment_ids, position_ids
              of all positions [R, T]; 0 = padding before a prompt
    cross     output of the encoder; with a cache, its keys and values for every layer [L, B, K, M, H]
    """

    segment_ids: Int[Array, "R T"]
    position_ids: Int[Array, "R T"]
    cross: CrossInput | None = None


def can_cache(config: EncoderConfig) -> bool:
    """Returns whether decoding with a cache is exact: the attention says so, and each layer has one cache."""
    exact = attention_class(config).incremental and not config.depth_weighted_average
    return exact and config.inner_layers == 1


def empty_cache(config: EncoderConfig, count: int, length: int) -> KeyValues:
    """Returns a cache [L, R, T, M, H] for R sequences of T positions.

    Args:
        config: the decoder.
        count: R.
        length: T.
    """
    keys = jnp.zeros((config.num_layers, count, length, config.kv_heads, config.head_dim), config.result_dtype)
    return KeyValues(keys, keys)


def project_source(decoder: Encoder, source: Float[Array, "B K D"], context: AttentionContext) -> KeyValues:
    """Returns the keys and values that the layers of a decoder make of the encoder's output.

    Args:
        decoder: the decoder.
        source: last hidden state of the encoder.
        context: context of cross-attention.
    """
    config = decoder.config
    empty = jnp.zeros((*source.shape[:2], config.kv_heads, config.head_dim), config.result_dtype)

    def apply(layer: Layer, _: KeyValues, local: bool, key: Key | None, inputs: None) -> KeyValues:
        assert layer.cross_attention is not None
        return layer.cross_attention.key_values(source, context)

    start = KeyValues(empty, empty)
    result: KeyValues = run_layers(config, decoder.weights(), start, apply, None, collect=lambda each: each)[1]
    return result


def decode_cached(
    decoder: Encoder, tokens: Int[Array, "R Q"], start: Int[Array, ""], target: Target, cache: KeyValues
) -> tuple[Float[Array, "R Q D"], KeyValues]:
    """Runs tokens at positions `start`, `start` + 1, ... and adds their keys and values to the cache.

    Args:
        decoder: a causal model, whose earlier tokens are in the cache.
        tokens: the tokens.
        start: position of the first.
        target: segments, positions, and the encoder's output.
        cache: keys and values of the earlier tokens.
    """
    config, length = decoder.config, tokens.shape[1]
    segment_ids, position_ids = (jax.lax.dynamic_slice_in_dim(each, start, length, 1) for each in target[:2])
    x = decoder.embeddings(tokens, position_ids, jnp.zeros_like(tokens), segment_ids, None)
    contexts = _contexts(decoder, segment_ids, position_ids, start, target.segment_ids)

    def apply(
        layer: Layer,
        x: tuple[Array, KeyValues],
        local: bool,
        key: Key | None,
        inputs: tuple[KeyValues, KeyValues | None],
    ) -> tuple[Array, KeyValues]:
        new = layer.key_values(x[0], contexts[local])
        known = KeyValues(
            *(jax.lax.dynamic_update_slice_in_dim(*each, start, 1) for each in zip(inputs[0], new, strict=True))
        )
        cross = None
        if target.cross is not None:
            batch = len(target.cross.states.keys[0])
            queries = segment_ids.reshape(batch, -1)
            cross = CrossInput(inputs[1], target.cross.context._replace(segment_ids=queries))
        return layer(x[0], contexts[local], None, known, cross), new

    empty = jnp.zeros((*tokens.shape, config.kv_heads, config.head_dim), config.result_dtype)
    per_layer = cache, None if target.cross is None else target.cross.states
    (x, _), new = run_layers(
        config,
        decoder.weights(),
        (x, KeyValues(empty, empty)),
        apply,
        None,
        per_layer=per_layer,
        collect=lambda state: state[1],
    )
    cache = KeyValues(*(jax.lax.dynamic_update_slice_in_dim(*each, start, 2) for each in zip(cache, new, strict=True)))
    return decoder.finish(x, None), cache


def decode_all(model: Model, tokens: Int[Array, "R T"], target: Target) -> Float[Array, "R T D"]:
    """Runs all positions without a cache; those not yet written change none before them.

    Args:
        model: the decoder with its heads.
        tokens: tokens of all positions.
        target: segments, positions, and the encoder's output as hidden states.
    """
    segment_ids, position_ids, cross = target
    source: dict[str, Any] = {}
    if cross is not None and cross.context.key_segment_ids is not None:
        copies = len(tokens) // len(cross.states)
        source["encoder_hidden_states"] = jnp.repeat(cross.states, copies, axis=0)
        source["encoder_attention_mask"] = jnp.repeat(cross.context.key_segment_ids, copies, axis=0)
    return model.encode(tokens, segment_ids, position_ids, jnp.zeros_like(tokens), **source).last_hidden_state


def _contexts(
    decoder: Encoder, segment_ids: Array, position_ids: Array, start: Array, key_segment_ids: Array
) -> dict[bool, AttentionContext]:
    """Returns the contexts of queries at position `start` and after, with all keys, for global and local layers."""
    config, num_keys = decoder.config, key_segment_ids.shape[1]
    queries = start + jnp.arange(segment_ids.shape[1])
    relative: Relative | None = None
    if decoder.relative is not None:
        positions = jnp.broadcast_to(queries[None], segment_ids.shape)
        relative = DisentangledPositions(decoder.relative(num_keys), positions)
    if decoder.relative_attention_bias is not None:
        relative = decoder.relative_attention_bias.at(queries, num_keys)
    if config.attention_position == "relative":
        relative = relative_positions_at(config, start, jnp.zeros_like(segment_ids), num_keys)
    contexts = {}
    for local in {config.is_local(layer) for layer in range(config.num_layers)}:
        context = make_context(config, segment_ids, position_ids, local, relative)
        keys = jnp.arange(num_keys)[None]
        mask = visibility_mask(segment_ids, key_segment_ids, queries[None], keys, context.window, config.causal)
        contexts[local] = context._replace(mask=mask[:, None], start=start)
    return contexts
