"""Relative attention: keys know how far they are, and whether they are in the same segment (Transformer-XL, XLNet).

score(i, j) = ((q_i + u) k_j + (q_i + w) r[i - j] + (q_i + z) s[same segment or not]) / sqrt(H): r is a projection of a
sinusoid of the distance, u, w and z are learned (arXiv:1901.02860, section 3.3; arXiv:1906.08237, section 2.5;
zihangdai/xlnet:modeling.py, rel_attn_core).

Keys may lie in a memory in front of the row, so K = M + S. Queries are the S tokens of the row, and behind them, where
there are two streams, T targets at any places of the row: the original scatters them over S rows that are mostly empty,
and pays a second attention of S x K for T x K (T = 85 of S = 512 when it was trained). See distances.py.

A softmax does not feel what is added to all keys alike, so the segment term is only its difference: (q_i + z)(s_1 -
s_0) where the segments differ, 0 where they do not. That needs one number a query, and no [S, K] array of segments.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from bertjax.config.model import EncoderConfig
from bertjax.models.attention import average_values
from bertjax.models.attention_context import AttentionContext
from bertjax.models.dropout import dropout
from bertjax.models.linear import Key, Linear, initializer, layer_norm
from bertjax.models.relative_shift import distance_scores, distance_scores_at, einsum
from bertjax.models.rope import sinusoids


class RelativePositions(NamedTuple):
    """What relative layers must know of a batch.

    waves     sinusoids of the distances K - 1, ..., 1 - S: W = K + S - 1 of them; a second set has the signs turned
    backward  rows that read the second set, their text being reversed; None = there is one set
    types     segments of the queries and of the keys; None = scores do not tell them apart
    targets   places of the queries behind the row's own; None = there are none
    """

    waves: Float[Array, "G W D"]
    backward: Bool[Array, "B"] | None = None
    types: tuple[Int[Array, "B Q"], Int[Array, "B K"]] | None = None
    targets: Int[Array, "B T"] | None = None


class RelativeAttention(nnx.Module):
    """Self-attention with content, distance and segment scores; the projections have no biases, the scores do."""

    def __init__(self, config: EncoderConfig, rngs: nnx.Rngs, norm: bool = True):
        inner, heads = config.num_heads * config.head_dim, (config.num_heads, config.head_dim)
        self.query = Linear(config.hidden_size, inner, config, rngs, False)
        self.key = Linear(config.hidden_size, inner, config, rngs, False)
        self.value = Linear(config.hidden_size, inner, config, rngs, False)
        self.position = Linear(config.hidden_size, inner, config, rngs, False)
        self.output = Linear(inner, config.hidden_size, config, rngs, False, residual_output=True)

        def drawn(*shape: int) -> nnx.Param:
            return nnx.Param(initializer(config)(rngs.params(), shape, jnp.float32))

        self.content_bias, self.position_bias = drawn(*heads), drawn(*heads)
        if config.relative_segments:
            self.segment_bias, self.segment_embeddings = drawn(*heads), drawn(2, *heads)
        self.norm = layer_norm(config.hidden_size, config, rngs) if norm else None
        self.config = config

    @jax.named_scope("attention")
    def __call__(
        self,
        x: Float[Array, "B Q D"],
        context: AttentionContext,
        key: Key | None,
        source: Float[Array, "B K D"] | None = None,
    ) -> Float[Array, "B Q D"]:
        """`source` is what keys and values are made of: memory, then the row; `x` is the row, then targets if any."""
        q, k, v = self.project(x, context, source)
        mixed = average_values(self.scores(q, k, context), v, context, self.config, key)
        return self.output(mixed.reshape(*x.shape[:2], -1))

    def project(
        self, x: Float[Array, "B Q D"], context: AttentionContext, source: Float[Array, "B K D"] | None = None
    ) -> tuple[Float[Array, "B Q N H"], Float[Array, "B K N H"], Float[Array, "B K N H"]]:
        """Queries (without the learned biases of the scores), keys and values by head."""
        source = x if source is None else source
        return self._heads(self.query(x)), self._heads(self.key(source)), self._heads(self.value(source))

    def scores(
        self, q: Float[Array, "B Q N H"], k: Float[Array, "B K N H"], context: AttentionContext, key: Key | None = None
    ) -> Float[Array, "B N Q K"]:
        """The sum of all terms, float32, before anything is made invisible."""
        relative = context.relative
        scores = einsum("bqnh,bknh->bnqk", _biased(q, self.content_bias), k, self.config)
        scores = scores + self._distance_scores(_biased(q, self.position_bias), relative, k.shape[1])
        if relative.types is not None:
            scores = scores + self._segment_scores(_biased(q, self.segment_bias), *relative.types)
        return scores / math.sqrt(self.config.head_dim)

    def _heads(self, x: Float[Array, "*b A"]) -> Float[Array, "*b N H"]:
        return x.reshape(*x.shape[:-1], self.config.num_heads, self.config.head_dim)

    def _distance_scores(self, q: Array, relative: RelativePositions, num_keys: int) -> Float[Array, "B N Q K"]:
        """q_i r[i - j], the tokens' own queries first."""
        rows = self._heads(self.position(relative.waves))
        rows = rows if relative.backward is None else _by_row(rows, relative.backward)
        length = relative.waves.shape[1] - num_keys + 1
        scores = distance_scores(q[:, :length], rows, num_keys, self.config)
        if relative.targets is None:
            return scores
        behind = distance_scores_at(q[:, length:], rows, relative.targets, num_keys, self.config)
        return jnp.concatenate([scores, behind], axis=2)

    def _segment_scores(self, q: Array, query_types: Array, key_types: Array) -> Float[Array, "B N Q K"]:
        same, other = self.segment_embeddings[...]
        difference = einsum("bqnh,nh->bnq", q, other - same, self.config)
        differs = query_types[:, None, :, None] != key_types[:, None, None, :]
        return jnp.where(differs, difference[..., None], 0.0)


def allow_self(mask: Bool[Array, "B 1 S S"]) -> Bool[Array, "B 1 S S"]:
    """Every token of the row sees itself, padding too: that makes its outputs equal to Hugging Face's."""
    return mask | jnp.eye(mask.shape[-1], dtype=bool)[None, None]


def make_relative_positions(
    config: EncoderConfig,
    token_type_ids: Int[Array, "B S"],
    key: Key | None,
    memory_length: int = 0,
    targets: Int[Array, "B T"] | None = None,
    backward: Bool[Array, "B"] | None = None,
) -> RelativePositions:
    """What all layers know of rows with a memory of this length in front of them.

    `backward` = None: no row, or the second half of the batch where the config says `bi_data`.

    Dropout on the sinusoids is the same for all rows of a batch, whose distances are projected once, not row by row.
    """
    rows, length = token_type_ids.shape
    if backward is None and config.bi_data:
        backward = jnp.arange(rows) >= rows // 2
    distances = jnp.arange(memory_length + length - 1, -length, -1)
    if config.clamp_len > 0:
        distances = jnp.clip(distances, -config.clamp_len, config.clamp_len)
    both = distances[None] if backward is None else jnp.stack([distances, -distances])
    waves = sinusoids(both, config.hidden_size).astype(config.result_dtype)
    waves = dropout(waves, config.rate("embedding_dropout"), key, batched=False)
    types = _types(token_type_ids, memory_length, targets) if config.relative_segments else None
    return RelativePositions(waves, backward, types, targets)


def _types(token_type_ids: Array, memory_length: int, targets: Array | None) -> tuple[Array, Array]:
    """Segments of queries and keys; the memory's is 0."""
    queries = token_type_ids
    if targets is not None:
        queries = jnp.concatenate([queries, jnp.take_along_axis(queries, targets, axis=1)], axis=1)
    return queries, jnp.pad(token_type_ids, ((0, 0), (memory_length, 0)))


def _by_row(rows: Float[Array, "2 W N H"], backward: Bool[Array, "B"]) -> Float[Array, "B W N H"]:
    return jnp.where(backward[:, None, None, None], rows[1][None], rows[0][None])


def _biased(q: Float[Array, "B Q N H"], bias: nnx.Param) -> Float[Array, "B Q N H"]:
    return q + bias[...][None, None].astype(q.dtype)
