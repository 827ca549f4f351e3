"""Disentangled attention: content and relative position score apart (DeBERTa, arXiv:2006.03654, section 3.1).

score(i, j) = (q_i k_j + q_i pk[r(i - j)] + pq[r(i - j)] k_j) / sqrt(H * terms), where pk and pq are projections of one
table of distances that all layers share, and r is the table's row of a distance. The paper's equation 4 reads the last
term at j - i; the models were trained with i - j (microsoft/DeBERTa:DeBERTa/deberta/disentangled_attention.py).

Only i - j matters, so a row of queries is multiplied with the rows of its distances in order, and the scores are a
sheared view of the product: a reshape, whose gradient is a reshape. Looking the scores up bucket by bucket takes fewer
products, but its gradient adds into [B, N, S, rows] in no fixed order: the result would differ from run to run on a
GPU, and TPUs do it one by one. Forward and backward of an attention of 64 wide heads, in ms, two CPU cores, float32:

    B, S, N         no positions   look-up   sheared, blocks of 32, 64, 128, S
    2, 512, 12      61             110       138, 124, 127, 158
    8, 128, 12      15             41        42, 41, 48, 48
    16, 128, 4 (H = 32)  4.5       19        11, 17, 23, 23

Memory at 2, 512, 4: 36 MB without positions, 55 by look-up, 60 in blocks of 64, 89 unblocked.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

from bertjax.config.model import EncoderConfig
from bertjax.models.attention import average_values
from bertjax.models.attention_context import AttentionContext, visibility_mask
from bertjax.models.dropout import dropout
from bertjax.models.linear import Key, Linear, initializer, layer_norm
from bertjax.models.relative_shift import distance_scores, distance_scores_at, einsum


class DisentangledPositions(NamedTuple):
    """What disentangled layers must know of a batch.

    table     the distances that rows of this length have, normed, before dropout; one row a bucket
    queries   places of the queries in the row, where they are not the whole row
    """

    table: Float[Array, "U D"]
    queries: Int[Array, "B M"] | None = None


def restrict_queries(context: AttentionContext, positions: Int[Array, "B M"]) -> AttentionContext:
    """The context of queries that stand at these places only, for keys of the whole row."""
    ids = jnp.take_along_axis(context.segment_ids, positions, axis=1)
    places = jnp.broadcast_to(jnp.arange(context.segment_ids.shape[1])[None], context.segment_ids.shape)
    mask = visibility_mask(ids, context.segment_ids, positions, places, context.window, context.causal)
    return context._replace(mask=mask[:, None], relative=context.relative._replace(queries=positions))


class DistanceEmbeddings(nnx.Module):
    """The table of distances, [2 * span, D], that all layers share."""

    def __init__(self, config: EncoderConfig, rngs: nnx.Rngs):
        shape = 2 * attention_span(config), config.hidden_size
        self.embedding = nnx.Param(initializer(config)(rngs.params(), shape, jnp.float32))
        if config.norm_relative_embeddings:
            self.norm = layer_norm(config.hidden_size, config, rngs)
        self.config = config

    def __call__(self, seq_len: int) -> Float[Array, "U D"]:
        """The rows that a text of this length uses."""
        used, _ = used_buckets(self.config, seq_len)
        low, high = int(used[0]), int(used[-1])
        rows = self.embedding[low : high + 1]
        if len(used) < len(rows):  # coarse buckets leave rows out
            rows = rows[used - low]
        return (self.norm(rows) if self.config.norm_relative_embeddings else rows).astype(self.config.result_dtype)


def attention_span(config: EncoderConfig) -> int:
    """Rows of the table on either side of distance 0."""
    return config.position_buckets or config.max_distance


def log_bucket(distances: Int[np.ndarray, "*d"], buckets: int, max_distance: int) -> Int[np.ndarray, "*d"]:
    """The bucket of a distance: itself up to `buckets` / 2, then logarithmic, up to `buckets` - 1 at the largest.

    In float32, as transformers:models/deberta_v2/modeling_deberta_v2.py has it: rounding decides which side of a border
    a distance falls on.
    """
    middle = buckets // 2
    size = np.maximum(np.abs(distances), max(middle, 1)).astype(np.float32)
    scale = np.log(np.float32((max_distance - 1) / middle))
    far = np.ceil(np.log(size / np.float32(middle)) / scale * np.float32(middle - 1)) + middle
    return np.where(np.abs(distances) <= middle, distances, np.sign(distances) * far.astype(np.int64))


def distance_bucket(distances: Int[np.ndarray, "*d"], config: EncoderConfig) -> Int[np.ndarray, "*d"]:
    """The row of the table for distances query - key."""
    if config.position_buckets:
        distances = log_bucket(distances, config.position_buckets, config.max_distance)
    return np.clip(distances + attention_span(config), 0, 2 * attention_span(config) - 1)


@functools.lru_cache(maxsize=64)
def used_buckets(config: EncoderConfig, seq_len: int) -> tuple[np.ndarray, np.ndarray]:
    """(rows of the table in use, ascending; which of those every distance seq_len - 1, ..., 1 - seq_len has)."""
    rows = distance_bucket(np.arange(seq_len - 1, -seq_len, -1), config)
    return np.unique(rows, return_inverse=True)


class DisentangledAttention(nnx.Module):
    """Self-attention with content-to-position and position-to-content scores, each where configured.

    The positions have projections of their own, or those of the content (`share_att_key`).
    """

    def __init__(self, config: EncoderConfig, rngs: nnx.Rngs, norm: bool = True):
        inner, bias = config.num_heads * config.head_dim, config.attention_bias
        self.query = Linear(config.hidden_size, inner, config, rngs, bias != "none")
        self.key = Linear(config.hidden_size, inner, config, rngs, bias == "all")
        self.value = Linear(config.hidden_size, inner, config, rngs, bias != "none")
        self.output = Linear(inner, config.hidden_size, config, rngs, bias != "none", residual_output=True)
        self.norm = layer_norm(config.hidden_size, config, rngs) if norm else None
        self.config = config
        if not config.share_att_key and "c2p" in config.pos_att_type:
            self.position_key = Linear(config.hidden_size, inner, config, rngs, bias == "all")
        if not config.share_att_key and "p2c" in config.pos_att_type:
            self.position_query = Linear(config.hidden_size, inner, config, rngs, bias != "none")

    @jax.named_scope("attention")
    def __call__(
        self,
        x: Float[Array, "B S D"],
        context: AttentionContext,
        key: Key | None,
        source: Float[Array, "B K D"] | None = None,
    ) -> Float[Array, "B S D"]:
        """`source` is what keys and values are made of; `x` are its own tokens, or those at `relative.queries`."""
        keys = (None, None) if key is None else jax.random.split(key)
        q, k, v = self.project(x, context, source)
        scores = self.scores(q, k, context, keys[0])
        return self.output(average_values(scores, v, context, self.config, keys[1]).reshape(*x.shape[:2], -1))

    def project(
        self, x: Float[Array, "B S D"], context: AttentionContext, source: Float[Array, "B K D"] | None = None
    ) -> tuple[Float[Array, "B S N H"], Float[Array, "B K N H"], Float[Array, "B K N H"]]:
        """Queries, keys and values by head."""
        source = x if source is None else source
        return self._heads(self.query(x)), self._heads(self.key(source)), self._heads(self.value(source))

    def scores(
        self, q: Float[Array, "B S N H"], k: Float[Array, "B K N H"], context: AttentionContext, key: Key | None = None
    ) -> Float[Array, "B N S K"]:
        """The sum of all terms, float32, before anything is made invisible; `key` drops parts of the distances."""
        config, relative = self.config, context.relative
        table = dropout(relative.table, config.hidden_dropout, key, batched=False)
        scores = einsum("bqnh,bknh->bnqk", q, k, config)
        if "c2p" in config.pos_att_type:
            rows = self._distances(self.key if config.share_att_key else self.position_key, table, k.shape[1])
            scores = scores + content_to_position(q, rows, relative.queries, config)
        if "p2c" in config.pos_att_type:
            rows = self._distances(self.query if config.share_att_key else self.position_query, table, k.shape[1])
            scores = scores + position_to_content(k, rows, relative.queries, config)
        return scores / math.sqrt(config.head_dim * (1 + len(config.pos_att_type)))

    def _heads(self, x: Float[Array, "*b A"]) -> Float[Array, "*b N H"]:
        return x.reshape(*x.shape[:-1], self.config.num_heads, self.config.head_dim)

    def _distances(self, project: Linear, table: Float[Array, "U D"], seq_len: int) -> Float[Array, "W N H"]:
        """The projected row of every distance seq_len - 1, ..., 1 - seq_len: W = 2 seq_len - 1.

        Far distances share rows: then a product, for the gradient of a look-up would add in no fixed order.
        """
        rows = self._heads(project(table))
        _, places = used_buckets(self.config, seq_len)
        if len(rows) == len(places):
            return rows[::-1]
        chosen = jax.nn.one_hot(places, len(rows), dtype=rows.dtype)
        return einsum("wu,unh->wnh", chosen, rows, self.config).astype(rows.dtype)


def content_to_position(
    q: Float[Array, "B Q N H"],
    rows: Float[Array, "W N H"],
    queries: Int[Array, "B M"] | None,
    config: EncoderConfig,
) -> Float[Array, "B N Q S"]:
    """q_i rows[i - j] for every key j, `rows` by falling distance; the queries are all tokens or those at `queries`."""
    seq_len = (rows.shape[0] + 1) // 2
    if queries is None:
        return distance_scores(q, rows[None], seq_len, config)
    return distance_scores_at(q, rows[None], queries, seq_len, config)


def position_to_content(
    k: Float[Array, "B S N H"],
    rows: Float[Array, "W N H"],
    queries: Int[Array, "B M"] | None,
    config: EncoderConfig,
) -> Float[Array, "B N Q S"]:
    """k_j rows[i - j], in the same order: seen from the keys, the distances rise."""
    scores = distance_scores(k, rows[::-1][None], k.shape[1], config).swapaxes(2, 3)
    return scores if queries is None else jnp.take_along_axis(scores, queries[:, None, :, None], axis=2)
