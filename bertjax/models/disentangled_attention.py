"""Disentangled attention: separate scores for content and relative position (DeBERTa, arXiv:2006.03654, section 3.1).

score(i, j) = (q_i k_j + q_i pk[b(i - j)] + pq[b(i - j)] k_j) / sqrt(H * terms), where pk and pq are projections of one
table of distance embeddings that all layers share, and b is the bucket of a distance. The paper's equation 4 reads the
last term at j - i; the models were trained with i - j (microsoft/DeBERTa:DeBERTa/deberta/disentangled_attention.py).

The position scores use the relative shift (`relative_shift.py`). Gathering scores by bucket takes less arithmetic, but
the gradient of the gather is summed in no fixed order on GPUs and one element at a time on TPUs. Forward and
backward of attention with heads of 64, in ms on two CPU cores, float32:

    B, S, N                no positions   gather   shift, blocks of 32, 64, 128, S
    2, 512, 12             61             110      138, 124, 127, 158
    8, 128, 12             15             41       42, 41, 48, 48
    16, 128, 4 (H = 32)    4.5            19       11, 17, 23, 23

Memory at 2, 512, 4: 36 MB without positions, 55 with a gather, 60 in blocks of 64, 89 without blocks.

Axes: K keys, M queries at given positions, R = 2S - 1 distances, U table entries in use.
"""

from __future__ import annotations

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

from bertjax.config.model import EncoderConfig
from bertjax.models.attention import Attention, Keys, Queries, Scores, average_values
from bertjax.models.attention_context import AttentionContext, DisentangledPositions, visibility_mask
from bertjax.models.attention_kernels import choose_kernel
from bertjax.models.dropout import dropout
from bertjax.models.linear import Key, Linear, einsum, initializer, make_norm
from bertjax.models.pallas.attention import ScoreTerms, pallas_attention
from bertjax.models.relative_shift import distance_scores, distance_scores_at


def restrict_queries(context: AttentionContext, positions: Int[Array, "B M"]) -> AttentionContext:
    """Returns the context of queries at these positions only, with keys of the whole sequence."""
    assert isinstance(context.relative, DisentangledPositions)
    ids = jnp.take_along_axis(context.segment_ids, positions, axis=1)
    keys = jnp.broadcast_to(jnp.arange(context.segment_ids.shape[1])[None], context.segment_ids.shape)
    mask = visibility_mask(ids, context.segment_ids, positions, keys, context.window, context.causal)
    return context._replace(mask=mask[:, None], relative=context.relative._replace(queries=positions))


class DistanceEmbeddings(nnx.Module):
    """Table of distance embeddings [2 * attention_span, D], shared by all layers."""

    def __init__(self, config: EncoderConfig, rngs: nnx.Rngs):
        shape = 2 * attention_span(config), config.hidden_size
        self.embedding = nnx.Param(initializer(config)(rngs.params(), shape, jnp.float32))
        self.norm = make_norm(config.hidden_size, config, rngs) if config.norm_relative_embeddings else None
        self.config = config

    def __call__(self, seq_len: int) -> Float[Array, "U D"]:
        """Returns the embeddings of the buckets that a sequence of this length uses."""
        used, _ = used_buckets(self.config, seq_len)
        low, high = int(used[0]), int(used[-1])
        table = self.embedding[low : high + 1]
        if len(used) < len(table):  # coarse buckets skip rows
            table = table[used - low]
        return (table if self.norm is None else self.norm(table)).astype(self.config.result_dtype)


def attention_span(config: EncoderConfig) -> int:
    """Returns the rows of the table on either side of distance 0."""
    return config.position_buckets or config.max_distance


def log_bucket(distances: Int[np.ndarray, "*d"], buckets: int, max_distance: int) -> Int[np.ndarray, "*d"]:
    """Returns the signed bucket of each distance: itself up to `buckets` / 2, then on a logarithmic scale.

    In float32, as transformers:models/deberta_v2/modeling_deberta_v2.py computes it: rounding decides on which side of
    a border a distance falls.

    Args:
        distances: query - key.
        buckets: number of buckets on either side.
        max_distance: distance whose bucket is the last, `buckets` - 1.
    """
    middle = buckets // 2
    size = np.maximum(np.abs(distances), max(middle, 1)).astype(np.float32)
    scale = np.log(np.float32((max_distance - 1) / middle))
    far = np.ceil(np.log(size / np.float32(middle)) / scale * np.float32(middle - 1)) + middle
    return np.where(np.abs(distances) <= middle, distances, np.sign(distances) * far.astype(np.int64))


def distance_bucket(distances: Int[np.ndarray, "*d"], config: EncoderConfig) -> Int[np.ndarray, "*d"]:
    """Returns the row of the table for each distance query - key."""
    if config.position_buckets:
        distances = log_bucket(distances, config.position_buckets, config.max_distance)
    return np.clip(distances + attention_span(config), 0, 2 * attention_span(config) - 1)


@functools.lru_cache(maxsize=64)
def used_buckets(config: EncoderConfig, seq_len: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the rows in use, ascending [U], and for each distance seq_len - 1, ..., 1 - seq_len its index [R]."""
    rows = distance_bucket(np.arange(seq_len - 1, -seq_len, -1), config)
    return np.unique(rows, return_inverse=True)


class DisentangledAttention(Attention):
    """Self-attention with content-to-position and position-to-content scores, each where configured.

    Positions have projections of their own, or share those of the content (`share_att_key`).
    """

    incremental = True

    def __init__(self, config: EncoderConfig, rngs: nnx.Rngs, norm: bool = True):
        super().__init__(config, rngs, norm)
        sizes, bias = (config.hidden_size, config.num_heads * config.head_dim), config.attention_bias
        terms = () if config.share_att_key else config.pos_att_type
        self.position_key = Linear(*sizes, config, rngs, self.key.bias is not None) if "c2p" in terms else None
        self.position_query = Linear(*sizes, config, rngs, bias != "none") if "p2c" in terms else None

    @classmethod
    def key_matmuls(cls, config: EncoderConfig) -> int:
        return 2 + len(config.pos_att_type)

    def attend(self, q: Queries, k: Keys, v: Keys, context: AttentionContext, key: Key | None) -> Queries:
        """Drops distance embeddings and probabilities by separate keys. Args: as in `Attention.attend`.

        With `attention_implementation=pallas` queries at some positions only have the plain form all the same.
        """
        config, keys = self.config, (None, None) if key is None else jax.random.split(key)
        if config.attention_implementation != "pallas" or context.mask is not None or q.shape != k.shape:
            return average_values(self.scores(q, k, context, keys[0]), v, context.visible(), config, keys[1])
        dropping = key is not None and config.attention_dropout > 0.0
        choose_kernel(config, context, q, k, dropping)  # refuses what the kernel cannot multiply
        tables = self._distance_embeddings(context, k.shape[1], keys[0])
        terms = ScoreTerms({name: table[None] for name, table in tables.items()})
        divisor = math.sqrt(config.head_dim * (1 + len(tables)))
        out = pallas_attention(
            q, k, v, context, config.compute_dtype, config.attention_dropout, keys[1], terms, divisor
        )
        return out.astype(config.result_dtype)

    def scores(self, q: Queries, k: Keys, context: AttentionContext, key: Key | None = None) -> Scores:
        """Returns the sum of all terms, float32. Args: as in `Attention.scores`."""
        config, relative = self.config, context.relative
        assert isinstance(relative, DisentangledPositions)
        tables = self._distance_embeddings(context, k.shape[1], key)
        scores = einsum("bqnh,bknh->bnqk", q, k, config)
        if "c2p" in tables:
            scores = scores + content_to_position(q, tables["c2p"], relative.queries, config)
        if "p2c" in tables:
            scores = scores + position_to_content(k, tables["p2c"], relative.queries, config)
        return scores / math.sqrt(config.head_dim * (1 + len(tables)))

    def _distance_embeddings(
        self, context: AttentionContext, seq_len: int, key: Key | None
    ) -> dict[str, Float[Array, "R N H"]]:
        """Returns the embeddings of all distances, as keys for c2p and as queries for p2c."""
        assert isinstance(context.relative, DisentangledPositions)
        table = dropout(context.relative.table, self.config.hidden_dropout, key, batched=False)
        projections = {"c2p": self.position_key or self.key, "p2c": self.position_query or self.query}
        terms = [term for term in projections if term in self.config.pos_att_type]
        return {term: self._project_distances(projections[term], table, seq_len) for term in terms}

    def _project_distances(self, projection: Linear, table: Float[Array, "U D"], seq_len: int) -> Float[Array, "R N H"]:
        """Returns the projected embedding of every distance seq_len - 1, ..., 1 - seq_len.

        Distant positions share rows. These are copied by a matmul: the gradient of a gather has no fixed order.
        """
        projected = self.copy_heads(self.split_heads(projection(table)))
        _, index = used_buckets(self.config, seq_len)
        if len(projected) == len(index):
            return projected[::-1]
        selected = jax.nn.one_hot(index, len(projected), dtype=projected.dtype)
        return einsum("ru,unh->rnh", selected, projected, self.config).astype(projected.dtype)


def content_to_position(
    q: Float[Array, "B Q N H"],
    embeddings: Float[Array, "R N H"],
    queries: Int[Array, "B M"] | None,
    config: EncoderConfig,
) -> Float[Array, "B N Q S"]:
    """Computes q_i embeddings[i - j] for every key j.

    Args:
        q: queries [B, Q, N, H].
        embeddings: projected distance embeddings by falling distance [R, N, H].
        queries: positions of the queries [B, M]; None = the whole sequence.
        config: dtypes.
    """
    seq_len = (embeddings.shape[0] + 1) // 2
    if queries is None:
        return distance_scores(q, embeddings[None], seq_len, config)
    return distance_scores_at(q, embeddings[None], queries, seq_len, config)


def position_to_content(
    k: Float[Array, "B S N H"],
    embeddings: Float[Array, "R N H"],
    queries: Int[Array, "B M"] | None,
    config: EncoderConfig,
) -> Float[Array, "B N Q S"]:
    """Computes k_j embeddings[i - j] for keys k; counted from the keys, the distances rise.

    Args: as in `content_to_position`.
    """
    scores = distance_scores(k, embeddings[::-1][None], k.shape[1], config).swapaxes(2, 3)
    return scores if queries is None else jnp.take_along_axis(scores, queries[:, None, :, None], axis=2)
