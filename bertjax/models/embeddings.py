"""Word, absolute position and token type embeddings, summed, normed, dropped, projected."""

from __future__ import annotations

import functools
import math

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from bertjax.config.model import EncoderConfig
from bertjax.models.dropout import dropout
from bertjax.models.linear import Key, Linear, initializer, make_norm
from bertjax.models.mesh import unshard_table
from bertjax.models.rope import absolute_sinusoids
from bertjax.models.span_convolution import neighbors

_PRETRAINING_SHARE = 1.0 - 0.15 * 0.8  # share of tokens that the mask token does not replace


class Embeddings(nnx.Module):
    """word (+ position) (+ token type) -> norm -> dropout -> projection to the hidden size, each where configured.

    The order is BERT's and ALBERT's (google-research/albert:modeling.py); `embedding_norm="after"` norms after the
    projection (microsoft/DeBERTa:DeBERTa/deberta/bert.py), "words" before positions and types are added. With
    `embedding_ngram` words are projected before that, a token with its neighbors.

    Args:
        config: architecture.
        rngs: the stream `params` draws the parameters.
        words: False leaves out the word table: every call brings `inputs_embeds`.
    """

    def __init__(self, config: EncoderConfig, rngs: nnx.Rngs, words: bool = True):
        def table(size: int, width: int = config.position_dim) -> nnx.Embed:
            return nnx.Embed(size, width, embedding_init=initializer(config), rngs=rngs)

        num_positions = config.position_offset + config.max_position_embeddings
        self.word_embeddings = table(config.table_size, config.embedding_dim) if words else None
        self.position_embeddings = table(num_positions) if config.position_embedding == "learned" else None
        self.token_type_embeddings = table(config.type_vocab_size) if config.type_vocab_size else None
        norm_size = config.hidden_size if config.embedding_norm == "after" else config.embedding_dim
        self.norm = make_norm(norm_size, config, rngs) if config.embedding_norm != "none" else None
        read = config.embedding_dim * (config.embedding_ngram or 1)
        sizes, bias = (read, config.hidden_size), config.embedding_projection_bias
        self.projection = Linear(*sizes, config, rngs, bias) if config.embedding_size is not None else None
        self.config = config

    @jax.named_scope("embeddings")
    def __call__(
        self,
        input_ids: Int[Array, "B S"],
        position_ids: Int[Array, "B S"],
        token_type_ids: Int[Array, "B S"],
        segment_ids: Int[Array, "B S"] | None,
        key: Key | None,
        inputs_embeds: Float[Array, "B S E"] | None = None,
    ) -> Float[Array, "B S D"]:
        """Returns the input of the first layer [B, S, D].

        Args:
            input_ids, position_ids, token_type_ids: as in `types.Batch`.
            segment_ids: needed only by models that embed padding as zero, or scale or join embeddings by example.
            key: key of the dropout; None = no dropout.
            inputs_embeds: rows that replace those of the word table [B, S, E]; None = the rows of `input_ids`.
        """
        config, norm = self.config, self.norm
        norm_after = config.embedding_norm == "after"
        x = self.look_up(input_ids) if inputs_embeds is None else inputs_embeds
        if config.token_dropout:
            x = drop_tokens(x, input_ids == config.mask_token_id, segment_ids)
        x = self._sum(x, position_ids, token_type_ids, segment_ids)
        if norm is not None and config.embedding_norm == "before":
            x = norm(x)
        if not norm_after:
            x = dropout(x, config.rate("embedding_dropout"), key)
        if self.projection is not None and config.embedding_ngram is None:
            x = self.projection(x)
        if norm is not None and norm_after:
            x = norm(x)
        if config.zero_pad_embeddings and segment_ids is not None:
            x = jnp.where((segment_ids > 0)[:, :, None], x, jnp.zeros((), x.dtype))
        return dropout(x, config.rate("embedding_dropout"), key) if norm_after else x

    @property
    def word_table(self) -> Float[Array, "V E"]:
        """The table of word embeddings."""
        assert self.word_embeddings is not None
        return self.word_embeddings.embedding[...]

    def look_up(self, input_ids: Int[Array, "B S"]) -> Float[Array, "B S E"]:
        """Returns the rows of the word table."""
        return jnp.take(unshard_table(self.word_table), input_ids, axis=0)

    def _sum(self, x: Array, position_ids: Array, token_type_ids: Array, segment_ids: Array | None) -> Array:
        config = self.config
        if config.embedding_scale:
            x = x * math.sqrt(config.embedding_dim)
        if config.embedding_ngram is not None and self.projection is not None:
            examples = jnp.ones(x.shape[:2], jnp.int32) if segment_ids is None else segment_ids
            # The next token comes first (google-research/mobilebert: modeling.py).
            x = self.projection(jnp.concatenate([*neighbors(x, examples, config.embedding_ngram)][::-1], axis=-1))
        if self.norm is not None and config.embedding_norm == "words":
            x = self.norm(x)
        if self.position_embeddings is not None:
            x = x + self.position_embeddings(position_ids + config.position_offset)
        if config.position_embedding in ("sinusoidal", "fairseq"):
            x = x + absolute_sinusoids(config, position_ids)
        if self.token_type_embeddings is not None:
            # A matmul: the gradient of a gather would be a scatter into very few rows.
            types = jax.nn.one_hot(token_type_ids, config.type_vocab_size, dtype=x.dtype)
            x = x + jnp.einsum("bst,td->bsd", types, self.token_type_embeddings.embedding[...])
        return x.astype(config.result_dtype)


def drop_tokens(
    words: Float[Array, "B S E"], masked: Bool[Array, "B S"], segment_ids: Int[Array, "B S"] | None
) -> Float[Array, "B S E"]:
    """Zeroes mask tokens, and scales the others of every example (facebookresearch/esm:esm/model/esm2.py).

    Args:
        words: word embeddings.
        masked: True at mask tokens.
        segment_ids: example of each token, 0 to S [B, S]; None = one example per sequence.
    """
    examples = jnp.zeros(masked.shape, jnp.int32) if segment_ids is None else segment_ids
    sums = functools.partial(jax.ops.segment_sum, num_segments=masked.shape[1] + 1)
    unmasked, total = (jax.vmap(sums)(each.astype(words.dtype), examples) for each in (~masked, jnp.ones_like(masked)))
    scale = _PRETRAINING_SHARE * total / jnp.maximum(unmasked, 1.0)
    scale = jnp.where(masked, 0.0, jnp.take_along_axis(scale, examples, axis=1))
    return words * scale[:, :, None]
