"""Two-stream attention over an encoder's layers: the tokens, and targets that must not see themselves (XLNet).

The content stream is the sequence; every token sees itself and what the order of prediction allows. The target stream
has one query per target: it starts from a learned vector, knows its position, and sees what its token may see except
the token itself. Nothing sees a target, so both streams are one sequence of S + T queries over the same keys and
values, and a layer runs once for both (arXiv:1906.08237, sections 2.3 and 2.6; zihangdai/xlnet:modeling.py,
two_stream_rel_attn).

Axes: T targets, M tokens of memory, K = M + S keys.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from bertjax.config.model import EncoderConfig
from bertjax.errors import UserError
from bertjax.models.attention_context import AttentionContext, PredictionRanks, make_context
from bertjax.models.dropout import dropout
from bertjax.models.encoder import Encoder
from bertjax.models.layer import Layer
from bertjax.models.layer_stack import run_layers
from bertjax.models.linear import Key
from bertjax.models.mesh import shard_batch
from bertjax.models.relative_attention import allow_self, make_relative_positions


class TwoStreamOutput(NamedTuple):
    """Outputs of both streams; None = not collected, or without targets.

    content        last hidden states of the tokens [B, S, D]
    targets        last hidden states of the targets [B, T, D]
    memory         layer inputs that the next sequences may see [L, B, M, D]
    hidden_states  [L + 1, B, S, D], embeddings first
    target_states  [L + 1, B, T, D]
    """

    content: Array
    targets: Array | None
    memory: Array
    hidden_states: Array | None = None
    target_states: Array | None = None


def run_two_streams(
    encoder: Encoder,
    input_ids: Int[Array, "B S"],
    segment_ids: Int[Array, "B S"],
    position_ids: Int[Array, "B S"],
    token_type_ids: Int[Array, "B S"],
    key: Key | None = None,
    *,
    visible: Bool[Array, "B S S"] | PredictionRanks | None = None,
    targets: Int[Array, "B T"] | None = None,
    memory: Float[Array, "L B M D"] | None = None,
    backward: Bool[Array, "B"] | None = None,
    collect: tuple[str, ...] = (),
    inputs_embeds: Float[Array, "B S E"] | None = None,
) -> TwoStreamOutput:
    """Runs the encoder over sequences that may continue a memory, with targets at positions of the sequence.

    Args:
        encoder: with `attention_position="relative"`.
        input_ids, segment_ids, position_ids, token_type_ids: as in `types.Batch`.
        key: key of the dropout; None = no dropout.
        visible: True where token i (axis 1) may see token j, in addition to the rules of the config and
            `segment_ids`. Tokens of the content stream always see themselves, targets only where this is True. Fused
            kernels take ranks, no matrix.
        targets: positions in [0, S) [B, T]. As in the original, a target that sees no key averages all of them, its own
            token included: an order of prediction must let every target see something.
        memory: `memory` of an earlier output [L, B, M, D]. All queries see all of it, so a sequence must be one text.
        backward: sequences of reversed text [B]; None = with `bi_data` the second half of the batch.
        collect: `("hidden_states",)` returns the states of all layers.
        inputs_embeds: rows that replace those of the word table [B, S, E].

    Raises:
        UserError: the encoder cannot run two streams.
    """
    config, length = encoder.config, input_ids.shape[1]
    check_two_streams(config, memory is not None)
    keys = (None,) * 5 if key is None else jax.random.split(key, 5)
    x = encoder.embeddings(input_ids, position_ids, token_type_ids, segment_ids, keys[0], inputs_embeds)
    if targets is not None:
        x = jnp.concatenate([x, _target_embeddings(encoder, targets, keys[3]).astype(x.dtype)], axis=1)
    x = shard_batch(x)
    memory_length = 0 if memory is None else memory.shape[2]
    relative = make_relative_positions(config, token_type_ids, keys[4], memory_length, targets, backward)
    contexts = {
        local: _mask_streams(
            config,
            make_context(config, segment_ids, position_ids, local, relative),
            visible,
            targets,
            memory_length,
        )
        for local in {config.is_local(layer) for layer in range(config.num_layers)}
    }

    def apply(layer: Layer, x: Array, local: bool, key: Key | None, before: Array | None) -> Array:
        content = x[:, :length]
        source = content if before is None else jnp.concatenate([before.astype(x.dtype), content], axis=1)
        return layer(x, contexts[local], key, source)

    reuse_length = config.reuse_len or length
    keep = (lambda x: x) if "hidden_states" in collect else (lambda x: x[:, :reuse_length])
    last, states = run_layers(config, encoder.weights(), x, apply, keys[1], per_layer=memory, collect=keep)
    assert states is not None
    states = jnp.concatenate([keep(x)[None], states])
    last = encoder.finish(last, keys[2])
    new_memory = update_memory(config, states[:-1, :, : min(reuse_length, length)], memory)
    target_output = None if targets is None else last[:, length:]
    if "hidden_states" not in collect:
        return TwoStreamOutput(last[:, :length], target_output, new_memory)
    states = jnp.concatenate([states[:-1], last[None]])
    target_states = None if targets is None else states[:, :, length:]
    return TwoStreamOutput(last[:, :length], target_output, new_memory, states[:, :, :length], target_states)


def update_memory(
    config: EncoderConfig, inputs: Float[Array, "L B R D"], memory: Float[Array, "L B M D"] | None
) -> Float[Array, "L B M2 D"]:
    """Appends layer inputs to the memory and keeps its last `mem_len` tokens, without a gradient.

    As in zihangdai/xlnet:modeling.py, _cache_mem.

    Args:
        config: `mem_len`; None = no limit.
        inputs: inputs of the layers at the R reusable tokens of the sequence [L, B, R, D].
        memory: [L, B, M, D]; None = empty.
    """
    joined = inputs if memory is None else jnp.concatenate([memory.astype(inputs.dtype), inputs], axis=2)
    return jax.lax.stop_gradient(joined if config.mem_len is None else joined[:, :, -config.mem_len :])


def check_two_streams(config: EncoderConfig, with_memory: bool) -> None:
    """Checks the encoder; raises `UserError` if it has no relative positions, or parts that know one stream only."""
    if config.attention_position != "relative":
        raise UserError(
            "targets, orders of prediction and memory need attention_position=relative, not "
            f"{config.attention_position}"
        )
    if config.conv_kernel_size:
        raise UserError("two streams cannot run with conv_kernel_size: it would show targets their token")
    if with_memory and config.inner_layers > 1:
        raise UserError("a memory holds one state per layer: inner_layers must be 1")


def _target_embeddings(encoder: Encoder, targets: Array, key: Key | None) -> Float[Array, "B T D"]:
    vector = encoder.mask_embedding[...].astype(encoder.config.result_dtype)
    states = jnp.broadcast_to(vector[None, None], (*targets.shape, vector.shape[0]))
    return dropout(states, encoder.config.rate("embedding_dropout"), key)


def _mask_streams(
    config: EncoderConfig,
    context: AttentionContext,
    visible: Bool[Array, "B S S"] | PredictionRanks | None,
    targets: Array | None,
    memory_length: int,
) -> AttentionContext:
    """Adds visibility [B, 1, S + T, M + S] to a context: tokens see themselves, targets may not, all see the memory.

    As ranks if a kernel is configured that takes them, else as a mask.
    """
    takes_ranks = config.attention_implementation == "pallas" and not (context.window or context.causal)
    if takes_ranks and (visible is None or isinstance(visible, PredictionRanks)):
        return _rank_streams(context, visible, targets, memory_length)
    rule = context.visible()
    if visible is not None:
        rule = rule & (visible.visible() if isinstance(visible, PredictionRanks) else visible)[:, None]
    mask = allow_self(rule)
    if targets is not None:
        mask = jnp.concatenate([mask, jnp.take_along_axis(rule, targets[:, None, :, None], axis=2)], axis=2)
    padding = ((0, 0), (0, 0), (0, 0), (memory_length, 0))
    return context._replace(mask=jnp.pad(mask, padding, constant_values=True))


def _rank_streams(
    context: AttentionContext, ranks: PredictionRanks | None, targets: Array | None, memory_length: int
) -> AttentionContext:
    """Sets segment ids and ranks of the queries [B, S + T] and of the keys [B, M + S]."""
    ids = (context.segment_ids > 0).astype(jnp.int32) if memory_length else context.segment_ids

    def with_targets(tokens: Array, of_targets: Array) -> Array:
        if targets is None:
            return tokens
        return jnp.concatenate([tokens, jnp.take_along_axis(of_targets, targets, axis=1)], axis=1)

    def with_memory(x: Array, value: Any) -> Array:
        return jnp.pad(x, ((0, 0), (memory_length, 0)), constant_values=value)

    if ranks is not None:
        itself = jnp.maximum(ranks.queries, ranks.keys + 1)
        lowest = np.iinfo(np.int32).min
        ranks = PredictionRanks(with_targets(itself, ranks.queries), with_memory(ranks.keys, lowest))
    return context._replace(segment_ids=with_targets(ids, ids), key_segment_ids=with_memory(ids, 1), ranks=ranks)
