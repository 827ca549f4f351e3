"""Per-batch inputs of the attention layers: which tokens see each other, and their positions."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from bertjax.config.model import EncoderConfig
from bertjax.models.rope import Rotation, batch_rotation


class DisentangledPositions(NamedTuple):
    """Inputs of disentangled attention; U = number of table entries in use.

    table    embeddings of the distances that sequences of this length have, normed, before dropout
    queries  positions of the queries, if they are not the whole sequence
    """

    table: Float[Array, "U D"]
    queries: Int[Array, "B M"] | None = None


class RelativePositions(NamedTuple):
    """Inputs of Transformer-XL's and XLNet's relative attention; K = keys, R = K + S - 1 distances, T = targets.

    sinusoids  of the distances K - 1, ..., 1 - S; [2, R, D] if some text is reversed: [1] is for negated distances
    backward   sequences of reversed text, which use sinusoids[1]; None = there is one set of sinusoids
    types      token types of queries [B, S + T] and keys [B, K]; None = scores ignore them
    targets    positions of the queries that follow the sequence's own; None = no targets
    """

    sinusoids: Float[Array, "G R D"]
    backward: Bool[Array, "B"] | None = None
    types: tuple[Int[Array, "B Q"], Int[Array, "B K"]] | None = None
    targets: Int[Array, "B T"] | None = None


class DistanceBias(NamedTuple):
    """Terms that attention with relative biases adds to the scores of every sequence."""

    scores: Float[Array, "1 N S K"]


Relative = DisentangledPositions | RelativePositions | DistanceBias


class PredictionRanks(NamedTuple):
    """Visibility by an order of prediction: a query sees keys of a lower rank.

    `queries` is one higher than the token's rank where tokens of equal rank see each other.
    """

    queries: Int[Array, "B S"]
    keys: Int[Array, "B K"]

    def visible(self) -> Bool[Array, "B S K"]:
        """True where a query sees a key."""
        return self.keys[:, None, :] < self.queries[:, :, None]


class AttentionContext(NamedTuple):
    """Masks and positions of a batch, computed once for the global layers and once for the local ones.

    segment_ids, window, causal
              visibility as a rule: see `attention_mask`; window 0 = none
    mask      visibility as a matrix, where the rule is not enough; None = use the rule
    rotation  rotation of every token, for rotary attention
    relative  inputs of attention that knows distances
    key_segment_ids
              example of each key where these are of other sequences, the output of an encoder; `segment_ids` are then
              those of the queries. Window and causal do not apply
    start     position of the first query in the sequence of the keys, where queries are a part of it
    ranks     visibility by an order of prediction, in addition to the rule
    max_examples
              most examples per sequence, where each is contiguous and padding follows them; None = unknown
    """

    segment_ids: Int[Array, "B S"]
    window: int = 0
    causal: bool = False
    mask: Bool[Array, "B 1 S K"] | None = None
    rotation: Rotation | None = None
    relative: Relative | None = None
    key_segment_ids: Int[Array, "B K"] | None = None
    start: int | Int[Array, ""] = 0
    ranks: PredictionRanks | None = None
    max_examples: int | None = None

    def visible(self) -> Bool[Array, "B 1 S K"]:
        """Returns True where a query (axis 2) may attend to a key (axis 3).

        Computed on demand: kernels that implement the rule never hold the matrix, and a compiler that fuses it into
        the softmax reads two ids instead of one bit.
        """
        if self.mask is not None:
            return self.mask
        if self.key_segment_ids is not None:
            mask = same_example(self.segment_ids, self.key_segment_ids)[:, None]
        else:
            mask = attention_mask(self.segment_ids, self.window, self.causal)
        return mask if self.ranks is None else mask & self.ranks.visible()[:, None]

    def sees_key(self) -> Bool[Array, "B S"]:
        """Returns False for queries that the rule leaves without a key."""
        if self.key_segment_ids is not None:
            return self.visible()[:, 0].any(axis=-1)
        return has_visible_key(self.segment_ids, self.window, self.causal)


class CrossInput(NamedTuple):
    """Output of an encoder, to which the layers of a decoder attend, or keys and values made of it, and visibility."""

    states: Any
    context: AttentionContext


def make_context(
    config: EncoderConfig,
    segment_ids: Int[Array, "B S"],
    position_ids: Int[Array, "B S"],
    local: bool,
    relative: Relative | None = None,
) -> AttentionContext:
    """Returns the context of the local or of the global layers.

    Args:
        config: positions, window and causality.
        segment_ids, position_ids: as in `types.Batch`.
        local: True for layers with a window.
        relative: inputs of attention that knows distances.
    """
    angles = None
    if config.attention_position == "rotary":
        angles = batch_rotation(config, segment_ids, position_ids, local)
    return AttentionContext(
        segment_ids,
        config.local_attention if local else 0,
        config.causal,
        rotation=angles,
        relative=relative,
        max_examples=config.max_examples,
    )


def attention_mask(segment_ids: Int[Array, "B S"], window: int = 0, causal: bool = False) -> Bool[Array, "B 1 S S"]:
    """Returns True where a query (axis 2) sees a key (axis 3): real keys of the same example, within the window.

    Padding queries see every real key in the window. Their outputs are not used; they equal Hugging Face's this way.

    Args:
        segment_ids: example of each token [B, S]; 0 = padding.
        window: tokens see window // 2 tokens on either side and themselves (AnswerDotAI/ModernBERT: 128 means 129
            keys); 0 = the whole sequence.
        causal: tokens see themselves and earlier tokens, of the window those before them only.
    """
    position = jnp.arange(segment_ids.shape[1])
    return visibility_mask(segment_ids, segment_ids, position[None], position[None], window, causal)[:, None]


def visibility_mask(
    query_ids: Int[Array, "*b Q"],
    key_ids: Int[Array, "*b K"],
    query_positions: Int[Array, "*c Q"],
    key_positions: Int[Array, "*c K"],
    window: int,
    causal: bool,
) -> Bool[Array, "*b Q K"]:
    """Applies the rule of `attention_mask` to Q queries and K keys anywhere in the sequence.

    Args:
        query_ids, key_ids: segment ids [..., Q] and [..., K].
        query_positions, key_positions: positions in the sequence [..., Q] and [..., K].
        window, causal: as in `attention_mask`.
    """
    mask = same_example(query_ids, key_ids)
    if not window and not causal:
        return mask
    distance = query_positions[..., :, None] - key_positions[..., None, :]
    mask = mask & (distance >= 0) if causal else mask
    return mask & (jnp.abs(distance) <= window // 2) if window else mask


def same_example(query_ids: Int[Array, "*b Q"], key_ids: Int[Array, "*b K"]) -> Bool[Array, "*b Q K"]:
    """Returns True for real keys of the query's example, and for all real keys where the query is padding."""
    query, key = query_ids[..., :, None], key_ids[..., None, :]
    return (key > 0) & ((query == key) | (query == 0))


def has_visible_key(segment_ids: Int[Array, "B S"], window: int = 0, causal: bool = False) -> Bool[Array, "B S"]:
    """Returns False for queries without a key: padding with no real token within the window.

    Args: as in `attention_mask`.
    """
    length = segment_ids.shape[1]
    real = jnp.cumsum(segment_ids > 0, axis=1)
    real_before = jnp.pad(real, ((0, 0), (1, 0)))  # real tokens before position i, for i = 0 to S
    position = jnp.arange(length)
    reach = window // 2 if window else length
    first = jnp.maximum(position - reach, 0)
    last = position if causal else jnp.minimum(position + reach, length - 1)
    return (segment_ids > 0) | (real_before[:, last + 1] > real_before[:, first])
