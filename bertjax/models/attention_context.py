"""What the layers must know of a batch besides its hidden states: who may look at whom, and where everybody stands."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from bertjax.config.model import EncoderConfig
from bertjax.models.rope import Rotation, rotation


class AttentionContext(NamedTuple):
    """Made once a batch for the layers that see the whole row, and once for those with a window.

    segment_ids, window, causal
              who may look at whom, as a rule: see `attention_mask`; window 0 = none
    mask      the same as a matrix, for visibility that the rule cannot say; None = the rule
    rotation  of every token, for rotary attention
    relative  what disentangled or relative attention wants: see the files of these names
    """

    segment_ids: Int[Array, "B S"]
    window: int = 0
    causal: bool = False
    mask: Bool[Array, "B 1 S K"] | None = None
    rotation: Rotation | None = None
    relative: Any = None

    def visible(self) -> Bool[Array, "B 1 S K"]:
        """True where a query (third axis) may look at a key (fourth).

        Made on demand: kernels that know the rule never hold the matrix, and a compiler that fuses it into the softmax
        reads two ids instead of one bit.
        """
        if self.mask is not None:
            return self.mask
        return attention_mask(self.segment_ids, self.window, self.causal)


def make_context(
    config: EncoderConfig,
    segment_ids: Int[Array, "B S"],
    position_ids: Int[Array, "B S"],
    local: bool,
    relative: Any = None,
) -> AttentionContext:
    """The context of the layers that are `local`, or of those that are not."""
    turn = None
    if config.attention_position == "rotary":
        turn = rotation(position_ids, config.head_dim, config.local_rope_theta if local else config.global_rope_theta)
    return AttentionContext(segment_ids, config.local_attention if local else 0, config.causal, None, turn, relative)


def attention_mask(segment_ids: Int[Array, "B S"], window: int = 0, causal: bool = False) -> Bool[Array, "B 1 S S"]:
    """True where query (third axis) may look at key (fourth): real keys of the same example, within the window.

    A window of w is w // 2 tokens on either side and the token itself (AnswerDotAI/ModernBERT: 128 -> 129 keys).
    Padding queries look at every real key in reach, which nobody reads: it makes them equal to Hugging Face's.
    """
    place = jnp.arange(segment_ids.shape[1])
    rule = visibility_mask(segment_ids, segment_ids, place[None], place[None], window, causal)
    return rule[:, None]


def visibility_mask(
    query_ids: Int[Array, "*b Q"],
    key_ids: Int[Array, "*b K"],
    query_places: Int[Array, "*c Q"],
    key_places: Int[Array, "*c K"],
    window: int,
    causal: bool,
) -> Bool[Array, "*b Q K"]:
    """The rule of `attention_mask`, for tokens with these segment ids at these places of the row."""
    query, key = query_ids[..., :, None], key_ids[..., None, :]
    mask = (key > 0) & ((query == key) | (query == 0))
    if not window and not causal:
        return mask
    distance = query_places[..., :, None] - key_places[..., None, :]
    return mask & ((jnp.abs(distance) <= window // 2) if window else distance >= 0)


def has_visible_key(segment_ids: Int[Array, "B S"], window: int = 0, causal: bool = False) -> Bool[Array, "B S"]:
    """False for queries to which `attention_mask` shows no key: padding out of reach of every real token."""
    length = segment_ids.shape[1]
    real = jnp.cumsum(segment_ids > 0, axis=1)
    before = jnp.pad(real, ((0, 0), (1, 0)))  # real tokens in front of place i, for i = 0 to S
    place = jnp.arange(length)
    first = jnp.maximum(place - window // 2, 0) if window else jnp.zeros_like(place)
    last = (
        place
        if causal
        else jnp.minimum(place + window // 2, length - 1)
        if window
        else jnp.full_like(place, length - 1)
    )
    return (segment_ids > 0) | (before[:, last + 1] > before[:, first])
