"""What the layers must know of a batch besides its hidden states: who may look at whom, and where everybody stands."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from bertjax.models.config import EncoderConfig
from bertjax.models.positions import Rotation, rotation


class Context(NamedTuple):
    """Made once a batch for the layers that see the whole row, and once for those with a window.

    mask      True where a query (third axis) may look at a key (fourth)
    segment_ids, window, causal
              the same rule for implementations that do not want it as a matrix; window 0 = none
    rotation  of every token, for rotary attention
    relative  what disentangled or relative attention wants: see the files of these names
    """

    mask: Bool[Array, "B 1 S K"]
    segment_ids: Int[Array, "B S"]
    window: int = 0
    causal: bool = False
    rotation: Rotation | None = None
    relative: Any = None


def make_context(
    config: EncoderConfig,
    segment_ids: Int[Array, "B S"],
    position_ids: Int[Array, "B S"],
    local: bool,
    relative: Any = None,
) -> Context:
    """The context of the layers that are `local`, or of those that are not."""
    window = config.window if local else 0
    turn = None
    if config.attention_position == "rotary":
        turn = rotation(position_ids, config.head_dim, config.rotary_local_base if local else config.rotary_base)
    mask = attention_mask(segment_ids, window, config.causal)
    return Context(mask, segment_ids, window, config.causal, turn, relative)


def attention_mask(segment_ids: Int[Array, "B S"], window: int = 0, causal: bool = False) -> Bool[Array, "B 1 S S"]:
    """True where query (third axis) may look at key (fourth): real keys of the same example, within the window.

    A window of w is w // 2 tokens on either side and the token itself (AnswerDotAI/ModernBERT: 128 -> 129 keys).
    Padding queries look at every real key, which nobody reads: it keeps their softmax finite and equal to Hugging
    Face's. A row that is all padding sees nothing; its softmax is uniform and finite.
    """
    query, key = segment_ids[:, None, :, None], segment_ids[:, None, None, :]
    mask = (key > 0) & ((query == key) | (query == 0))
    if not window and not causal:
        return mask
    place = jnp.arange(segment_ids.shape[1])
    distance = place[:, None] - place[None, :]
    near = (jnp.abs(distance) <= window // 2) if window else distance >= 0
    return mask & near[None, None]
