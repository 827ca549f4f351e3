"""Relative attention: scores of content, distance and same segment (Transformer-XL, XLNet).

score(i, j) = ((q_i + u) k_j + (q_i + w) r[i - j] + (q_i + z) s[same segment or not]) / sqrt(H): r is a projection of a
sinusoid of the distance; u, w and z are learned (arXiv:1901.02860, section 3.3; arXiv:1906.08237, section 2.5;
zihangdai/xlnet:modeling.py, rel_attn_core).

Keys may include a memory before the sequence, so K = M + S. Queries are the S tokens of the sequence and, with two
streams, T targets at arbitrary positions after them. The original scatters the targets over S mostly empty positions
and pays for a second attention of S x K instead of T x K (it trained with T = 85 of S = 512).

The softmax is invariant to a term that all keys share, so the segment term is its difference only: (q_i + z)(s_1 - s_0)
where the segments differ, 0 where they do not. That takes one number per query and no [S, K] array of segments.

Axes: K keys, Q = S + T queries, R = K + S - 1 distances, G = 1 or B sets of distance embeddings.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from bertjax.config.model import EncoderConfig
from bertjax.models.attention import Attention, Keys, Queries, Scores
from bertjax.models.attention_context import AttentionContext, RelativePositions
from bertjax.models.attention_kernels import choose_kernel
from bertjax.models.dropout import dropout
from bertjax.models.linear import Key, einsum, initializer
from bertjax.models.pallas.attention import ScoreTerms, pallas_attention
from bertjax.models.relative_shift import distance_scores, distance_scores_at
from bertjax.models.rope import sinusoids


class RelativeAttention(Attention):
    """Self-attention with content, distance and segment scores; the scores have biases, the projections have none."""

    projects_positions = True
    incremental = True

    @classmethod
    def key_matmuls(cls, config: EncoderConfig) -> int:
        return 3

    def init_score_parameters(self, config: EncoderConfig, rngs: nnx.Rngs) -> None:
        heads = (config.num_heads, config.head_dim)

        def draw(*shape: int) -> nnx.Param:
            return nnx.Param(initializer(config)(rngs.params(), shape, jnp.float32))

        self.content_bias, self.position_bias = draw(*heads), draw(*heads)
        if config.relative_segments:
            self.segment_bias, self.segment_embeddings = draw(*heads), draw(2, *heads)

    def attend(self, q: Queries, k: Keys, v: Keys, context: AttentionContext, key: Key | None) -> Queries:
        """Computes the tokens' queries by a kernel, if one is configured, and targets in the plain form.

        Args: as in `Attention.attend`.
        """
        config, relative = self.config, context.relative
        assert isinstance(relative, RelativePositions)
        is_part = context.key_segment_ids is None and q.shape != k.shape
        if config.attention_implementation != "pallas" or context.mask is not None or is_part:
            return super().attend(q, k, v, context, key)
        keys = (None, None) if key is None else jax.random.split(key)
        length = q.shape[1] - _num_targets(relative)
        tokens = context if relative.targets is None else _slice_queries(context, slice(length), None)
        choose_kernel(config, tokens, q[:, :length], k, key is not None and config.attention_dropout > 0.0)
        dtype, rate = config.compute_dtype, config.attention_dropout
        queries, terms = self._kernel_inputs(q[:, :length], tokens)
        out = pallas_attention(queries, k, v, tokens, dtype, rate, keys[0], terms)
        out = out.astype(config.result_dtype)
        if relative.targets is None:
            return out
        targets = _slice_queries(context, slice(length, None), relative.targets)
        return jnp.concatenate([out, super().attend(q[:, length:], k, v, targets, keys[1])], axis=1)

    def scores(self, q: Queries, k: Keys, context: AttentionContext, key: Key | None = None) -> Scores:
        """Returns the sum of all terms, float32; adds the biases to `q`. Args: as in `Attention.scores`."""
        relative = context.relative
        assert isinstance(relative, RelativePositions)
        scores = einsum("bqnh,bknh->bnqk", _add_bias(q, self.content_bias), k, self.config)
        scores = scores + self._distance_scores(_add_bias(q, self.position_bias), relative, k.shape[1])
        if relative.types is not None:
            scores = scores + self._segment_scores(q, *relative.types)
        return scores / math.sqrt(self.config.head_dim)

    def _distance_scores(self, q: Array, relative: RelativePositions, num_keys: int) -> Float[Array, "B N Q K"]:
        """Computes q_i r[i - j], first for the tokens, then for the targets."""
        embeddings = self._distance_embeddings(relative)
        length = q.shape[1] - _num_targets(relative)
        scores = [] if length == 0 else [distance_scores(q[:, :length], embeddings, num_keys, self.config)]
        if relative.targets is not None:
            scores.append(distance_scores_at(q[:, length:], embeddings, relative.targets, num_keys, self.config))
        return jnp.concatenate(scores, axis=2)

    def _distance_embeddings(self, relative: RelativePositions) -> Float[Array, "G R N H"]:
        """Returns the projected embedding of every distance: one set, or one per sequence."""
        embeddings = self.split_heads(self.position(relative.sinusoids))
        if relative.backward is None:
            return embeddings
        return jnp.where(relative.backward[:, None, None, None], embeddings[1][None], embeddings[0][None])

    def _segment_scores(self, q: Array, query_types: Array, key_types: Array) -> Float[Array, "B N Q K"]:
        differs = query_types[:, None, :, None] != key_types[:, None, None, :]
        return jnp.where(differs, self._other_segment_scores(q)[..., None], 0.0)

    def _other_segment_scores(self, q: Queries) -> Float[Array, "B N Q"]:
        """Returns what a query adds to the scores of keys of another segment."""
        same, other = self.segment_embeddings[...]
        return einsum("bqnh,nh->bnq", _add_bias(q, self.segment_bias), other - same, self.config)

    def _kernel_inputs(self, q: Queries, context: AttentionContext) -> tuple[Queries, ScoreTerms]:
        """Returns queries with the bias of content, and the other terms."""
        relative = context.relative
        assert isinstance(relative, RelativePositions)
        has_types = relative.types is not None
        terms = ScoreTerms(
            {"c2p": self._distance_embeddings(relative)},
            _add_bias(q, self.position_bias),
            self._other_segment_scores(q) if has_types else None,
            relative.types,
        )
        return _add_bias(q, self.content_bias), terms


def _num_targets(relative: RelativePositions) -> int:
    return 0 if relative.targets is None else relative.targets.shape[1]


def _slice_queries(context: AttentionContext, part: slice, targets: Int[Array, "B T"] | None) -> AttentionContext:
    """Returns the context of a part of the queries.

    Args:
        context: context of all queries.
        part: the queries.
        targets: their positions, if they are targets; None = they are the sequence's.
    """
    relative, ranks = context.relative, context.ranks
    assert isinstance(relative, RelativePositions)
    types = None if relative.types is None else (relative.types[0][:, part], relative.types[1])
    return context._replace(
        segment_ids=context.segment_ids[:, part],
        relative=relative._replace(types=types, targets=targets),
        ranks=None if ranks is None else ranks._replace(queries=ranks.queries[:, part]),
    )


def allow_self(mask: Bool[Array, "B 1 S S"]) -> Bool[Array, "B 1 S S"]:
    """Lets every token see itself. Padding too: that makes its outputs equal to Hugging Face's."""
    return mask | jnp.eye(mask.shape[-1], dtype=bool)[None, None]


def make_relative_positions(
    config: EncoderConfig,
    token_type_ids: Int[Array, "B S"],
    key: Key | None,
    memory_length: int = 0,
    targets: Int[Array, "B T"] | None = None,
    backward: Bool[Array, "B"] | None = None,
) -> RelativePositions:
    """Returns the inputs of relative attention that all layers share.

    Args:
        config: clamping, segments, dropout rate.
        token_type_ids: [B, S].
        key: key of the dropout of sinusoids, which drops the same elements for the whole batch: distances are projected
            once, not per sequence. None = no dropout.
        memory_length: tokens of memory before the sequence.
        targets: positions of the second stream's queries [B, T].
        backward: sequences of reversed text [B]; None = none, or with `bi_data` the second half of the batch.
    """
    batch, length = token_type_ids.shape
    if backward is None and config.bi_data:
        backward = jnp.arange(batch) >= batch // 2
    distances = jnp.arange(memory_length + length - 1, -length, -1)
    types = _types(token_type_ids, memory_length, targets) if config.relative_segments else None
    return RelativePositions(_waves(config, distances, key, backward), backward, types, targets)


def relative_positions_at(
    config: EncoderConfig, start: Int[Array, ""], types: Array, num_keys: int
) -> RelativePositions:
    """Returns the inputs of queries that are a part of the sequence, all tokens of type 0.

    Args:
        config: clamping, segments.
        start: position of the first query.
        types: token types of the queries [B, S].
        num_keys: tokens of the sequence.
    """
    batch, length = types.shape
    distances = start + length - 1 - jnp.arange(num_keys + length - 1)
    pairs = (types, jnp.zeros((batch, num_keys), types.dtype)) if config.relative_segments else None
    return RelativePositions(_waves(config, distances, None, None), None, pairs)


def _waves(config: EncoderConfig, distances: Array, key: Key | None, backward: Array | None) -> Float[Array, "G R D"]:
    """Returns the sinusoids of distances, and of negated ones where some text is reversed."""
    if config.clamp_len > 0:
        distances = jnp.clip(distances, -config.clamp_len, config.clamp_len)
    directions = distances[None] if backward is None else jnp.stack([distances, -distances])
    waves = sinusoids(directions, config.hidden_size).astype(config.result_dtype)
    return dropout(waves, config.rate("embedding_dropout"), key, batched=False)


def _types(token_type_ids: Array, memory_length: int, targets: Array | None) -> tuple[Array, Array]:
    """Returns the token types of queries and keys; the memory's is 0."""
    queries = token_type_ids
    if targets is not None:
        queries = jnp.concatenate([queries, jnp.take_along_axis(queries, targets, axis=1)], axis=1)
    return queries, jnp.pad(token_type_ids, ((0, 0), (memory_length, 0)))


def _add_bias(q: Float[Array, "B Q N H"], bias: nnx.Param) -> Float[Array, "B Q N H"]:
    return q + bias[...][None, None].astype(q.dtype)
