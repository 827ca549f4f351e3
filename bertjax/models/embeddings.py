"""Word, absolute position and token type embeddings, summed, normed, dropped, projected."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from bertjax.config.model import EncoderConfig
from bertjax.models.dropout import dropout
from bertjax.models.linear import Key, Linear, initializer, layer_norm
from bertjax.models.mesh import unshard_table
from bertjax.models.rope import sinusoids


class Embeddings(nnx.Module):
    """word (+ position) (+ token type) -> norm -> dropout -> projection to the hidden size, each where configured.

    The order is BERT's and ALBERT's (google-research/albert:modeling.py); `embedding_norm="after"` norms behind the
    projection (microsoft/DeBERTa:DeBERTa/deberta/bert.py).
    """

    def __init__(self, config: EncoderConfig, rngs: nnx.Rngs):
        def table(rows: int) -> nnx.Embed:
            return nnx.Embed(rows, config.embedding_dim, embedding_init=initializer(config), rngs=rngs)

        self.word_embeddings = table(config.table_size)
        if config.position_embedding == "learned":
            self.position_embeddings = table(config.position_offset + config.max_position_embeddings)
        if config.type_vocab_size:
            self.token_type_embeddings = table(config.type_vocab_size)
        if config.embedding_norm != "none":
            size = config.embedding_dim if config.embedding_norm == "before" else config.hidden_size
            self.norm = layer_norm(size, config, rngs)
        if config.embedding_size is not None:
            bias = config.embedding_projection_bias
            self.projection = Linear(config.embedding_size, config.hidden_size, config, rngs, bias)
        self.config = config

    @jax.named_scope("embeddings")
    def __call__(
        self,
        input_ids: Int[Array, "B S"],
        position_ids: Int[Array, "B S"],
        token_type_ids: Int[Array, "B S"],
        real: Int[Array, "B S"] | None,
        key: Key | None,
    ) -> Float[Array, "B S D"]:
        """`real` is 0 on padding; only models that embed padding as zero need it."""
        config = self.config
        x = self._summed(input_ids, position_ids, token_type_ids)
        if config.embedding_norm == "before":
            x = self.norm(x)
        if config.embedding_norm != "after":
            x = dropout(x, config.rate("embedding_dropout"), key)
        if config.embedding_size is not None:
            x = self.projection(x)
        if config.embedding_norm == "after":
            x = self.norm(x)
        if config.zero_pad_embeddings and real is not None:
            x = jnp.where((real > 0)[:, :, None], x, jnp.zeros((), x.dtype))
        return dropout(x, config.rate("embedding_dropout"), key) if config.embedding_norm == "after" else x

    def _summed(self, input_ids: Array, position_ids: Array, token_type_ids: Array) -> Array:
        config = self.config
        x = jnp.take(unshard_table(self.word_embeddings.embedding[...]), input_ids, axis=0)
        if config.embedding_scale:
            x = x * math.sqrt(config.embedding_dim)
        if config.position_embedding == "learned":
            x = x + self.position_embeddings(position_ids + config.position_offset)
        if config.position_embedding == "sinusoidal":
            x = x + sinusoids(position_ids, config.embedding_dim)
        if config.type_vocab_size:
            # The types are few: a product, for the gradient of a gather would be a scatter into two rows.
            types = jax.nn.one_hot(token_type_ids, config.type_vocab_size, dtype=x.dtype)
            x = x + jnp.einsum("bst,td->bsd", types, self.token_type_embeddings.embedding[...])
        return x.astype(config.result_dtype)
