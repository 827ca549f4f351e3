"""Heads: the networks between the hidden states and a loss."""

from __future__ import annotations

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from bertjax.config.model import EncoderConfig
from bertjax.models.dropout import dropout
from bertjax.models.linear import Key, Linear, activation, dot, initializer, make_norm, soft_cap
from bertjax.models.mesh import shard_batch, unshard_table


class Pooler(nnx.Module):
    """act(dense(summary token)); tanh in BERT, no layer with `pooler_act="none"`."""

    def __init__(self, config: EncoderConfig, rngs: nnx.Rngs):
        size, self.act = config.hidden_size, config.pooler_act
        self.dense = None if self.act == "none" else Linear(size, size, config, rngs)

    @jax.named_scope("head")
    def __call__(self, summary: Float[Array, "*b D"]) -> Float[Array, "*b D"]:
        return summary if self.dense is None else activation(self.act)(self.dense(summary))


class MlmHead(nnx.Module):
    """dense -> activation -> norm -> scores against the word embeddings (tied, owned by the encoder) + bias.

    `mlm_head="two_layers"` has a second dense layer and activation in place of the norm (UltraBERT), "bias" only the
    scores and the bias (XLNet), "tied" only the scores (GPT-2). Without `tie_word_embeddings` the scores are against a
    table of the head; with a wider output a table of the head is next to the word embeddings (MobileBERT).
    """

    def __init__(self, config: EncoderConfig, rngs: nnx.Rngs):
        width, size, kind = config.hidden_size, config.output_embedding_dim, config.mlm_head
        inner, bias = config.prediction_head_size or width, config.head_dense_bias
        has_bias = config.mlm_head != "tied" and config.mlm_bias
        sizes = {"transform": [(width, size)], "two_layers": [(width, inner), (inner, size)]}.get(kind, [])
        layers = [Linear(*each, config, rngs, bias) for each in sizes]
        self.dense = layers[0] if layers else None
        self.second = layers[1] if len(layers) > 1 else None
        normed = dataclasses.replace(config, norm_type="layer_norm") if config.norm_type == "affine" else config
        self.norm = make_norm(size, normed, rngs) if kind == "transform" else None
        self.bias = nnx.Param(jnp.zeros((config.table_size,), jnp.float32)) if has_bias else None
        tied, draw = config.tie_word_embeddings, functools.partial(initializer(config), dtype=jnp.float32)
        self.table = None if tied else nnx.Param(draw(rngs.params(), (config.table_size, size)))
        further = (config.table_size, size - config.embedding_dim)
        self.further_table = nnx.Param(draw(rngs.params(), further)) if tied and further[1] else None
        self.config = config

    @jax.named_scope("head")
    def __call__(self, hidden: Float[Array, "*b D"], table: Float[Array, "V D2"]) -> Float[Array, "*b V"]:
        """Returns logits, float32; see `tied_logits`."""
        act = activation(self.config.mlm_act or self.config.hidden_act)
        for layer in (self.dense, self.second):
            hidden = hidden if layer is None else act(layer(hidden))
        hidden = hidden if self.norm is None else self.norm(hidden)
        if self.config.scale_logits:
            hidden = hidden / math.sqrt(hidden.shape[-1])
        table = table if self.table is None else self.table[...]
        if self.further_table is not None:
            table = jnp.concatenate([table, self.further_table[...]], axis=1)
        return tied_logits(hidden, table, self.bias, self.config)


@jax.named_scope("head")
def tied_logits(
    hidden: Float[Array, "*b D"], table: Float[Array, "V D"], bias: nnx.Param | None, config: EncoderConfig
) -> Float[Array, "*b V"]:
    """Computes scores against the word embeddings, float32; padding of the vocabulary gets the lowest float32.

    Args:
        hidden: [..., D].
        table: word embeddings [V, D].
        bias: [V]; None = no bias.
        config: vocabulary size and dtypes.
    """
    logits = dot(hidden, unshard_table(table), config.compute_dtype, "float32", True)
    if bias is not None:
        logits = logits + jnp.expand_dims(bias[...], range(logits.ndim - 1))
    logits = soft_cap(logits, config.logit_soft_cap)
    if config.table_size > config.vocab_size:
        real = jnp.arange(config.table_size) < config.vocab_size
        logits = jnp.where(jnp.expand_dims(real, range(logits.ndim - 1)), logits, jnp.finfo(jnp.float32).min)
    return logits


class ReplacedTokenHead(nnx.Module):
    """One score per token, high where it was replaced: dense -> activation -> score.

    `rtd_head="summary"` first adds the example's summary token and norms (microsoft/DeBERTa: MaskedLanguageModel v3).
    """

    def __init__(self, config: EncoderConfig, rngs: nnx.Rngs):
        self.norm = make_norm(config.hidden_size, config, rngs) if config.rtd_head == "summary" else None
        self.dense = Linear(config.hidden_size, config.hidden_size, config, rngs)
        self.output = Linear(config.hidden_size, 1, config, rngs)
        self.config = config

    @jax.named_scope("head")
    def __call__(self, hidden: Float[Array, "B S D"], summaries: Float[Array, "B S D"] | None) -> Float[Array, "B S"]:
        """Returns scores [B, S]; `summaries` are those of `summary_per_token`, for `rtd_head="summary"` only."""
        if self.norm is not None:
            assert summaries is not None
            hidden = self.norm(hidden + summaries)
        return self.output(activation(self.config.hidden_act)(self.dense(hidden)))[..., 0].astype(jnp.float32)


class SpanBoundaryHead(nnx.Module):
    """Predicts the tokens of a span from its outer neighbors and the position in it (facebookresearch/SpanBERT)."""

    def __init__(self, config: EncoderConfig, rngs: nnx.Rngs):
        size = config.hidden_size
        self.position_embeddings = nnx.Embed(
            config.span_positions, config.span_position_size, embedding_init=initializer(config), rngs=rngs
        )
        self.first = Linear(2 * size + config.span_position_size, size, config, rngs)
        self.first_norm = make_norm(size, config, rngs)
        self.second = Linear(size, config.embedding_dim, config, rngs)
        self.second_norm = make_norm(config.embedding_dim, config, rngs)
        self.bias = nnx.Param(jnp.zeros((config.table_size,), jnp.float32))
        self.config = config

    @jax.named_scope("head")
    def __call__(
        self,
        left: Float[Array, "B M D"],
        right: Float[Array, "B M D"],
        positions: Int[Array, "B M"],
        table: Float[Array, "V D2"],
    ) -> Float[Array, "B M V"]:
        """Returns logits of masked tokens [B, M, V].

        Args:
            left, right: hidden states of the tokens before and after the span [B, M, D].
            positions: position in the span, from 0 [B, M].
            table: word embeddings [V, D].
        """
        act = activation(self.config.hidden_act)
        position_states = self.position_embeddings(positions).astype(left.dtype)
        hidden = self.first_norm(act(self.first(jnp.concatenate([left, right, position_states], axis=-1))))
        hidden = self.second_norm(act(self.second(hidden)))
        return tied_logits(hidden, table, self.bias, self.config)


class ScoreHead(nnx.Module):
    """Scores of labels: (dense -> activation (-> norm)) -> dropout -> linear.

    Args:
        config: sizes, activation, dropout rate.
        num_scores: number of labels.
        dense: False leaves out the part in brackets.
        rngs: stream of the parameters.
        bias: bias of the scores.
    """

    def __init__(self, config: EncoderConfig, num_scores: int, dense: bool, rngs: nnx.Rngs, bias: bool = True):
        size = config.hidden_size
        self.dense = Linear(size, size, config, rngs, config.head_dense_bias) if dense else None
        self.norm = make_norm(size, config, rngs) if dense and config.classifier_norm else None
        self.output = Linear(size, num_scores, config, rngs, bias)
        self.config = config

    @jax.named_scope("head")
    def __call__(self, hidden: Float[Array, "*b D"], key: Key | None = None) -> Float[Array, "*b C"]:
        """Returns the scores of C labels, float32."""
        if self.dense is not None:
            hidden = activation(self.config.classifier_act)(self.dense(hidden))
        if self.norm is not None:
            hidden = self.norm(hidden)
        hidden = dropout(hidden, self.config.rate("classifier_dropout"), key)
        return self.output(hidden).astype(jnp.float32)


class AnswerLayer(nnx.Module):
    """norm(gelu(dense)), whatever the activation and the epsilon of the model, as in Splinter."""

    def __init__(self, config: EncoderConfig, rngs: nnx.Rngs):
        self.dense = Linear(config.hidden_size, config.hidden_size, config, rngs)
        self.norm = make_norm(config.hidden_size, dataclasses.replace(config, layer_norm_eps=1e-5), rngs)

    def __call__(self, hidden: Float[Array, "*b D"]) -> Float[Array, "*b D"]:
        return self.norm(activation("gelu")(self.dense(hidden)))


class QuestionHead(nnx.Module):
    """Scores start and end of the answer by products with the token that asks (transformers: models/splinter)."""

    def __init__(self, config: EncoderConfig, rngs: nnx.Rngs):
        self.query_start, self.query_end = AnswerLayer(config, rngs), AnswerLayer(config, rngs)
        self.start, self.end = AnswerLayer(config, rngs), AnswerLayer(config, rngs)
        size = config.hidden_size
        self.start_product, self.end_product = (Linear(size, size, config, rngs, False) for _ in range(2))
        self.token = -1 if config.question_token_id is None else config.question_token_id

    @jax.named_scope("head")
    def __call__(
        self, hidden: Float[Array, "B S D"], input_ids: Int[Array, "B S"], segment_ids: Int[Array, "B S"]
    ) -> Float[Array, "B S 2"]:
        """Returns the scores of every token, float32.

        Args:
            hidden: [B, S, D].
            input_ids: [B, S].
            segment_ids: example of each token, from 1 [B, S].
        """
        asking = gather_positions(hidden, first_of_segments(input_ids == self.token, segment_ids))
        queries = self.start_product(self.query_start(asking)), self.end_product(self.query_end(asking))
        keys = self.start(hidden), self.end(hidden)
        products = [(q.astype(jnp.float32) * k).sum(-1) for q, k in zip(queries, keys, strict=True)]
        return jnp.stack(products, axis=-1)


def first_of_segments(chosen: Bool[Array, "B S"], segment_ids: Int[Array, "B S"]) -> Int[Array, "B S"]:
    """Returns for every token the first chosen position of its segment, or else the first of the segment.

    Args:
        chosen: [B, S].
        segment_ids: at most S [B, S].
    """
    length = chosen.shape[1]

    def of_row(chosen: Array, segments: Array) -> Array:
        order = jnp.arange(length, dtype=jnp.int32) + jnp.where(chosen, 0, length)
        return jnp.full(length + 1, 2 * length, jnp.int32).at[segments].min(order)[segments] % length

    return jax.vmap(of_row)(chosen, segment_ids)


@jax.named_scope("head")
def gather_positions(hidden: Float[Array, "B S D"], positions: Int[Array, "B M"]) -> Float[Array, "B M D"]:
    """Returns hidden[b, positions[b, m]]; positions must lie in [0, S): JAX clamps silently."""
    return shard_batch(jnp.take_along_axis(hidden, positions[:, :, None], axis=1))


def pool_examples(
    hidden: Float[Array, "B S D"], positions: Int[Array, "B E"], segment_ids: Int[Array, "B S"], config: EncoderConfig
) -> Float[Array, "B E D"]:
    """Returns one vector per example: that of its summary token, or the mean of its tokens.

    Args:
        hidden: [B, S, D].
        positions: summary token of each example [B, E].
        segment_ids: example of each token, from 1 [B, S].
        config: kind of summary.
    """
    if config.pooling not in ("mean", "late"):
        return gather_positions(hidden, positions)
    return average_examples(hidden, positions.shape[1], segment_ids).astype(hidden.dtype)


def average_examples(
    hidden: Float[Array, "B S D"], max_examples: int, segment_ids: Int[Array, "B S"]
) -> Float[Array, "B E D"]:
    """Returns the mean of the tokens of every example, float32; 0 for an absent one.

    Args:
        hidden: [B, S, D].
        max_examples: E.
        segment_ids: example of each token, from 1 [B, S].
    """
    examples = jnp.arange(1, max_examples + 1)
    members = (segment_ids[:, None, :] == examples[None, :, None]).astype(jnp.float32)
    total = jnp.einsum("bes,bsd->bed", members, hidden.astype(jnp.float32))
    return total / jnp.maximum(members.sum(-1, keepdims=True), 1.0)


def summary_per_token(
    hidden: Float[Array, "B S D"], positions: Int[Array, "B E"], segment_ids: Int[Array, "B S"]
) -> Float[Array, "B S D"]:
    """Returns for every token the hidden state of the summary token of its example.

    Args:
        hidden: [B, S, D].
        positions: summary token of each example [B, E].
        segment_ids: example of each token, from 1 [B, S].
    """
    example = jnp.clip(segment_ids - 1, 0, positions.shape[1] - 1)
    return gather_positions(hidden, jnp.take_along_axis(jax.lax.stop_gradient(positions), example, axis=1))


def contact_features(
    probabilities: Float[Array, "B L N S S"], residues: Bool[Array, "B S"]
) -> Float[Array, "B R R L*N"]:
    """Returns what the contact head reads of every pair of the R = S - 2 tokens between the first and the last.

    Every attention map is made symmetric, and what its rows and columns alone explain is subtracted, the average
    product correction (facebookresearch/esm:esm/modules.py).

    Args:
        probabilities: attention of every layer and head, queries first.
        residues: False at padding and at the end token, which count nowhere.
    """
    pairs = residues[:, :, None] & residues[:, None, :]
    maps = jnp.where(pairs[:, None, None], probabilities, 0.0)[..., 1:-1, 1:-1]
    maps = maps.reshape(len(maps), -1, *maps.shape[-2:])
    maps = maps + jnp.swapaxes(maps, -1, -2)
    rows, columns = maps.sum(axis=-1, keepdims=True), maps.sum(axis=-2, keepdims=True)
    total = maps.sum(axis=(-1, -2), keepdims=True)
    expected = rows * columns / jnp.where(total == 0.0, 1.0, total)
    return jnp.moveaxis(maps - expected, 1, -1)


def contact_probabilities(head: Linear, features: Float[Array, "B R R F"]) -> Float[Array, "B R R"]:
    """Returns how likely every pair is in contact, by the logistic regression that the head is."""
    return jax.nn.sigmoid(head(features)[..., 0].astype(jnp.float32))
