"""The model that joins an encoder and heads, and its parameters as a nested dict."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from bertjax.config.model import EncoderConfig
from bertjax.errors import UserError
from bertjax.models.disentangled_attention import restrict_queries
from bertjax.models.encoder import Encoder, EncoderOutput
from bertjax.models.heads import (
    MlmHead,
    Pooler,
    ReplacedTokenHead,
    ScoreHead,
    SpanBoundaryHead,
    gather_positions,
    pool_examples,
    summary_per_token,
)
from bertjax.models.linear import Key, Linear, initializer
from bertjax.types import Params

HEADS = (
    "pooler",
    "mlm",
    "pair",
    "rtd",
    "span_boundary",
    "sequence_classification",
    "token_classification",
    "question_answering",
)

_DECODER_KEY = 0xDEC0DE  # of the enhanced decoder's dropout, apart from the encoder's


class Model(nnx.Module):
    """An encoder with any of `HEADS`; `pair`, and a classifier that wants it, read the pooler."""

    def __init__(self, config: EncoderConfig, heads: tuple[str, ...], rngs: nnx.Rngs):
        check_heads(config, heads)
        self.encoder = Encoder(config, rngs)
        if "pooler" in heads:
            self.pooler = Pooler(config, rngs)
        if "mlm" in heads:
            self.mlm_head = MlmHead(config, rngs)
            if config.enhanced_decoder:
                self.decoder_positions = nnx.Embed(
                    config.max_position_embeddings, config.hidden_size, embedding_init=initializer(config), rngs=rngs
                )
        if "pair" in heads:
            self.pair_head = Linear(config.hidden_size, 2, config, rngs)
        if "rtd" in heads:
            self.rtd_head = ReplacedTokenHead(config, rngs)
        if "span_boundary" in heads:
            self.span_head = SpanBoundaryHead(config, rngs)
        if "sequence_classification" in heads:
            self.sequence_head = ScoreHead(config, config.num_labels, config.classifier_dense == "own", rngs)
        if "token_classification" in heads:
            self.token_head = ScoreHead(config, config.num_labels, config.token_classifier_dense, rngs)
        if "question_answering" in heads:
            self.answer_head = ScoreHead(config, 2, config.token_classifier_dense, rngs)
        self.config = config

    def encode(
        self,
        input_ids: Int[Array, "B S"],
        segment_ids: Int[Array, "B S"],
        position_ids: Int[Array, "B S"],
        token_type_ids: Int[Array, "B S"],
        key: Key | None = None,
        collect: tuple[str, ...] = (),
    ) -> EncoderOutput:
        if hasattr(self, "decoder_positions"):
            collect = (*collect, "before_last")
        return self.encoder(input_ids, segment_ids, position_ids, token_type_ids, key, collect)

    def mlm_hidden_states(
        self,
        encoded: EncoderOutput,
        segment_ids: Int[Array, "B S"],
        position_ids: Int[Array, "B S"],
        positions: Int[Array, "B M"] | None = None,
        key: Key | None = None,
    ) -> Float[Array, "B M D"]:
        """What the masked-word head reads of the tokens at `positions` (None = all), from what `encode` returned.

        That is the last hidden state, or what DeBERTa's enhanced decoder makes of the one before it.
        """
        if hasattr(self, "decoder_positions"):
            assert encoded.before_last is not None  # `encode` asked for it
            return self._enhanced(encoded.before_last, segment_ids, position_ids, positions, key)
        hidden = encoded.last_hidden_state
        return hidden if positions is None else gather_positions(hidden, positions)

    def _enhanced(
        self, hidden: Array, segment_ids: Array, position_ids: Array, positions: Array | None, key: Key | None
    ) -> Array:
        """The last layer, twice, over queries that start as hidden state + absolute position.

        Keys and values are the hidden states both times, so queries do not see one another, and only those that are
        asked for are run (microsoft/DeBERTa:DeBERTa/apps/models/masked_language_model.py runs all).
        """
        keys = (None, None) if key is None else jax.random.split(jax.random.fold_in(key, _DECODER_KEY))
        last, no_types = self.config.num_layers - 1, jnp.zeros_like(segment_ids)
        context = self.encoder.contexts(segment_ids, position_ids, no_types)[self.config.is_local(last)]
        x = hidden + self.decoder_positions(position_ids).astype(hidden.dtype)
        if positions is not None and self.config.attention_position == "disentangled":
            x, context, positions = gather_positions(x, positions), restrict_queries(context, positions), None
        layer = self.encoder.layer(last)
        for step_key in keys:
            x = layer(x, context, step_key, hidden)
        return x if positions is None else gather_positions(x, positions)

    def mlm_logits(self, hidden: Float[Array, "*b D"]) -> Float[Array, "*b V"]:
        """Vocabulary logits of the given hidden states (gather the positions first: this is the dear product)."""
        return self.mlm_head(hidden, self.word_embedding_table())

    def word_embedding_table(self) -> Float[Array, "V D"]:
        return self.encoder.embeddings.word_embeddings.embedding[...]

    def pooled(
        self, hidden: Float[Array, "B S D"], positions: Int[Array, "B E"], segment_ids: Int[Array, "B S"] | None = None
    ) -> Float[Array, "B E D"]:
        """Pooler output of every example's summary; a mean over tokens needs `segment_ids`."""
        return self.pooler(self._summaries(hidden, positions, segment_ids))

    def pair_logits(self, pooled: Float[Array, "*b D"]) -> Float[Array, "*b 2"]:
        return self.pair_head(pooled).astype("float32")

    def rtd_logits(
        self, hidden: Float[Array, "B S D"], positions: Int[Array, "B E"], segment_ids: Int[Array, "B S"]
    ) -> Float[Array, "B S"]:
        """One score a token, positive where it looks replaced; `positions` of the examples' summary tokens."""
        summaries = None
        if self.config.rtd_head == "summary":
            summaries = summary_per_token(hidden, positions, segment_ids)
        return self.rtd_head(hidden, summaries)

    def span_logits(
        self, left: Float[Array, "B M D"], right: Float[Array, "B M D"], places: Int[Array, "B M"]
    ) -> Float[Array, "B M V"]:
        """Vocabulary logits from a span's outer neighbours and the word's place in it."""
        return self.span_head(left, right, places, self.word_embedding_table())

    def sequence_logits(
        self,
        hidden: Float[Array, "B S D"],
        positions: Int[Array, "B E"],
        segment_ids: Int[Array, "B S"] | None = None,
        key: Key | None = None,
    ) -> Float[Array, "B E K"]:
        """Scores of the labels of every example."""
        summary = self._summaries(hidden, positions, segment_ids)
        if self.config.classifier_dense == "pooler":
            summary = self.pooler(summary)
        return self.sequence_head(summary, key)

    def token_logits(self, hidden: Float[Array, "B S D"], key: Key | None = None) -> Float[Array, "B S K"]:
        return self.token_head(hidden, key)

    def answer_logits(self, hidden: Float[Array, "B S D"], key: Key | None = None) -> Float[Array, "B S 2"]:
        """Scores of every token to be the first and the last of the answer."""
        return self.answer_head(hidden, key)

    def _summaries(self, hidden: Array, positions: Array, segment_ids: Array | None) -> Array:
        if segment_ids is None:
            if self.config.pooling == "mean":
                raise ValueError("pooling=mean needs segment_ids")
            segment_ids = jnp.ones(hidden.shape[:2], "int32")
        return pool_examples(hidden, positions, segment_ids, self.config)


def check_heads(config: EncoderConfig, heads: tuple[str, ...]) -> None:
    """Raises `UserError` for heads that there are not, or that lack what they read."""
    unknown = [head for head in heads if head not in HEADS]
    if unknown:
        raise UserError(f"unknown head {unknown[0]!r}; there are {', '.join(HEADS)}")
    readers = ["pair"] if "pair" in heads else []
    if "sequence_classification" in heads and config.classifier_dense == "pooler":
        readers.append("sequence_classification")
    if readers and "pooler" not in heads:
        raise UserError(f"the head {readers[0]} reads the pooler; heads must name pooler, too, not {', '.join(heads)}")


@functools.lru_cache(maxsize=64)
def graphdef(config: EncoderConfig, heads: tuple[str, ...]) -> nnx.GraphDef:
    """The structure of a model without its numbers: `nnx.merge(graphdef(...), params)` is the model."""
    return nnx.graphdef(nnx.eval_shape(lambda: Model(config, heads, nnx.Rngs(0))))


def bind(config: EncoderConfig, heads: tuple[str, ...], params: Params) -> Model:
    """The model with these parameters."""
    return nnx.merge(graphdef(config, heads), params)


def init_params(config: EncoderConfig, heads: tuple[str, ...], key: Key) -> Params:
    """Freshly drawn parameters, a nested dict of float32 arrays."""
    return nnx.to_pure_dict(nnx.state(Model(config, heads, nnx.Rngs(key))))


def abstract_params(config: EncoderConfig, heads: tuple[str, ...]) -> Params:
    """Shapes and types of `init_params`, without allocating any."""
    return jax.eval_shape(lambda: init_params(config, heads, jax.random.key(0)))


def count_params(config: EncoderConfig, heads: tuple[str, ...]) -> int:
    """Number of parameters at the true vocabulary size, tied weights counted once."""
    true = dataclasses.replace(config, padded_vocab_size=None)
    return sum(leaf.size for leaf in jax.tree.leaves(abstract_params(true, heads)))
