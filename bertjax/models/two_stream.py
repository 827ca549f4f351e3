"""Two-stream attention over an encoder's layers: the tokens, and targets that must not see themselves (XLNet).

The content stream is the row; every token sees itself and what the order of prediction lets it see. The target stream
has a query for each of T places: it starts from one learned vector, knows its place, and sees what its token may see
without the token itself. Nothing ever sees it, so both streams are one row of S + T queries over the same keys and
values, and a layer runs once for both (arXiv:1906.08237, sections 2.3 and 2.6; zihangdai/xlnet:modeling.py,
two_stream_rel_attn).
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from bertjax.config.model import EncoderConfig
from bertjax.errors import UserError
from bertjax.models.attention_context import AttentionContext, make_context
from bertjax.models.dropout import dropout
from bertjax.models.encoder import Encoder
from bertjax.models.layer import Layer
from bertjax.models.layer_stack import run_layers
from bertjax.models.linear import Key
from bertjax.models.mesh import shard_batch
from bertjax.models.relative_attention import allow_self, make_relative_positions


class TwoStreamOutput(NamedTuple):
    """What two streams return.

    content        [B, S, D], last hidden states of the tokens
    targets        [B, T, D], those of the targets; None = there were none
    memory         [L, B, M, D], what the next rows may be given: inputs of the layers
    hidden_states  [L + 1, B, S, D], embeddings first, and target_states [L + 1, B, T, D]; None = not asked for
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
    visible: Bool[Array, "B S S"] | None = None,
    targets: Int[Array, "B T"] | None = None,
    memory: Float[Array, "L B M D"] | None = None,
    backward: Bool[Array, "B"] | None = None,
    collect: tuple[str, ...] = (),
) -> TwoStreamOutput:
    """Runs the encoder over rows that go on from a memory, with targets at places of the row.

    visible   True where token i (second axis) may look at token j, besides what the config and `segment_ids` rule; a
              token of the content stream sees itself in any case, a target only where this says so
    targets   places in [0, S); a target that sees no key averages all of them, its own token too, as the original does:
              an order must leave every target something to see
    memory    as an earlier run returned it; all queries see all of it, so a row must hold one text
    backward  rows of reversed text; None = the second half where the config says `bi_data`
    collect   `("hidden_states",)` keeps the states of all layers

    Raises `UserError` for an encoder that cannot run so.
    """
    config, length = encoder.config, input_ids.shape[1]
    check_two_streams(config, memory is not None)
    keys = (None,) * 5 if key is None else jax.random.split(key, 5)
    x = encoder.embeddings(input_ids, position_ids, token_type_ids, segment_ids, keys[0])
    if targets is not None:
        x = jnp.concatenate([x, _first_states(encoder, targets, keys[3]).astype(x.dtype)], axis=1)
    x = shard_batch(x)
    remembered = 0 if memory is None else memory.shape[2]
    relative = make_relative_positions(config, token_type_ids, keys[4], remembered, targets, backward)
    contexts = {
        local: _seen(make_context(config, segment_ids, position_ids, local, relative), visible, remembered)
        for local in {config.is_local(layer) for layer in range(config.num_layers)}
    }

    def apply(layer: Layer, x: Array, local: bool, key: Key | None, before: Array | None) -> Array:
        content = x[:, :length]
        source = content if before is None else jnp.concatenate([before.astype(x.dtype), content], axis=1)
        return layer(x, contexts[local], key, source)

    kept_length = config.reuse_len or length
    keep = (lambda x: x) if "hidden_states" in collect else (lambda x: x[:, :kept_length])
    last, states = run_layers(config, encoder.weights(), x, apply, keys[1], per_layer=memory, keep=keep)
    states = jnp.concatenate([keep(x)[None], states])
    last = encoder.finish(last, keys[2])
    new_memory = update_memory(config, states[:-1, :, : min(kept_length, length)], memory)
    behind = None if targets is None else last[:, length:]
    if "hidden_states" not in collect:
        return TwoStreamOutput(last[:, :length], behind, new_memory)
    states = jnp.concatenate([states[:-1], last[None]])
    of_targets = None if targets is None else states[:, :, length:]
    return TwoStreamOutput(last[:, :length], behind, new_memory, states[:, :, :length], of_targets)


def update_memory(
    config: EncoderConfig, inputs: Float[Array, "L B R D"], memory: Float[Array, "L B M D"] | None
) -> Float[Array, "L B M2 D"]:
    """The memory with what the layers read of the row's reusable tokens behind it, its last `mem_len` tokens.

    No gradient flows into the rows before (zihangdai/xlnet:modeling.py, _cache_mem).
    """
    joined = inputs if memory is None else jnp.concatenate([memory.astype(inputs.dtype), inputs], axis=2)
    return jax.lax.stop_gradient(joined if config.mem_len is None else joined[:, :, -config.mem_len :])


def check_two_streams(config: EncoderConfig, with_memory: bool) -> None:
    """Raises `UserError` for encoders that have no relative positions, or parts that know one stream only."""
    if config.attention_position != "relative":
        raise UserError(
            "targets, orders of prediction and memory need attention_position=relative, not "
            f"{config.attention_position}"
        )
    if config.conv_kernel_size:
        raise UserError(
            "two streams cannot run with conv_kernel_size: a convolution would show targets their own words"
        )
    if with_memory and config.inner_layers > 1:
        raise UserError("a memory holds one state a layer: inner_layers must be 1")


def _first_states(encoder: Encoder, targets: Array, key: Key | None) -> Float[Array, "B T D"]:
    vector = encoder.mask_embedding[...].astype(encoder.config.result_dtype)
    states = jnp.broadcast_to(vector[None, None], (*targets.shape, vector.shape[0]))
    return dropout(states, encoder.config.rate("embedding_dropout"), key)


def _seen(context: AttentionContext, visible: Bool[Array, "B S S"] | None, remembered: int) -> AttentionContext:
    """The context with its mask [B, 1, S + T, M + S]: tokens see themselves, targets may not, all see the memory."""
    rule = context.visible()
    if visible is not None:
        rule = rule & visible[:, None]
    mask, targets = allow_self(rule), context.relative.targets
    if targets is not None:
        mask = jnp.concatenate([mask, jnp.take_along_axis(rule, targets[:, None, :, None], axis=2)], axis=2)
    return context._replace(mask=jnp.pad(mask, ((0, 0), (0, 0), (0, 0), (remembered, 0)), constant_values=True))
