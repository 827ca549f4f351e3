"""Token, position and segment embeddings, summed, normed, dropped (google-research/bert:modeling.py)."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from bertjax.models.config import EncoderConfig
from bertjax.models.linear import Key, dropout, initializer, layer_norm


class Embeddings(nnx.Module):
    """word + position + token type -> layer norm -> dropout."""

    def __init__(self, config: EncoderConfig, rngs: nnx.Rngs):
        def table(rows: int) -> nnx.Embed:
            return nnx.Embed(rows, config.hidden_size, embedding_init=initializer(config), rngs=rngs)

        self.word_embeddings = table(config.table_size)
        self.position_embeddings = table(config.max_position_embeddings)
        self.token_type_embeddings = table(config.type_vocab_size)
        self.norm = layer_norm(config.hidden_size, config, rngs)
        self.config = config

    def __call__(
        self,
        input_ids: Int[Array, "B S"],
        position_ids: Int[Array, "B S"],
        token_type_ids: Int[Array, "B S"],
        key: Key | None,
    ) -> Float[Array, "B S D"]:
        x = self.word_embeddings(input_ids) + self.position_embeddings(position_ids)
        # The types are few: a product, for the gradient of a gather would be a scatter into two rows.
        types = jax.nn.one_hot(token_type_ids, self.config.type_vocab_size, dtype=x.dtype)
        x = x + jnp.einsum("bst,td->bsd", types, self.token_type_embeddings.embedding[...])
        x = self.norm(x)
        return dropout(x, self.config.hidden_dropout, key)
