"""Scores of distances in the blocks of `triton_attention`: DeBERTa's two terms, of which XLNet has the first.

Queries of a block and keys of a block have 127 distances. A block of tokens is multiplied with the embeddings of these,
and the products are shifted by one column per row, from distances to keys. Triton cannot index a register, so the shift
goes through memory that belongs to the kernel: it writes the products and reads them from other positions.

Axes: R = S + K rows of a table, by rising distance; G = 1 or B tables; H width of a head; C = 2 * BLOCK rows of a
block's distances.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array, Float

from bertjax.models.triton_blocks import BLOCK, product

SPAN = 2 * BLOCK  # rows of a table that a block of queries and one of keys need; the first one is not used


def distance_table(
    embeddings: Float[Array, "G D N H"], num_keys: int, queries: int, keys: int
) -> Float[Array, "G R N H"]:
    """Returns the table of a padded sequence: the first row that two blocks need is `Positions.first_row`.

    Args:
        embeddings: by falling distance, from `num_keys` - 1 on.
        num_keys: keys before padding; queries are the last of them.
        queries, keys: lengths of the padded sequence, multiples of `BLOCK`.
    """
    front = keys - num_keys + 1
    back = queries + keys - front - embeddings.shape[1]
    return jnp.pad(embeddings[:, ::-1], ((0, 0), (front, back), (0, 0), (0, 0)))


def sum_diagonals(grads: Float[Array, "B I N C H"], sets: int) -> Float[Array, "G R N H"]:
    """Returns the gradient of a table from those of the parts that the diagonals of blocks read, which overlap.

    Args:
        grads: of every sequence and diagonal.
        sets: number of tables, G.
    """
    totals = grads.reshape(sets, -1, *grads.shape[1:]).sum(axis=1).transpose(0, 1, 3, 2, 4)
    empty = jnp.zeros((sets, 1, BLOCK, *totals.shape[3:]), totals.dtype)
    first = jnp.concatenate([totals[:, :, :BLOCK], empty], axis=1)
    second = jnp.concatenate([empty, totals[:, :, BLOCK:]], axis=1)
    return (first + second).reshape(sets, -1, *totals.shape[3:])


class Positions(NamedTuple):
    """Terms of a kernel, with references to their tables [R, H] and to its memory [BLOCK, SPAN].

    terms       c2p: queries with embeddings; p2c: keys with embeddings
    key_blocks  number of blocks of keys
    """

    terms: tuple[str, ...]
    tables: tuple[Any, ...]
    memory: Any
    key_blocks: int
    interpret: bool

    def first_row(self, query_block: Any, key_block: Any) -> Any:
        """Returns the first of the `SPAN` rows of the tables with the distances of two blocks."""
        return (query_block - key_block - 1 + self.key_blocks) * BLOCK

    def scores(self, q: Array, k: Array, first_row: Any) -> Float[Array, "Q K"]:
        """Returns the sum of the terms of a block of queries and one of keys, float32.

        Args:
            q, k: partners of the embeddings [BLOCK, H].
            first_row: result of `first_row`.
        """
        total = jnp.zeros((BLOCK, BLOCK), jnp.float32)
        for term, embeddings in self._embeddings(first_row):
            total = total + self._by_key(term, product(q if term == "c2p" else k, embeddings, 1, 1).astype(q.dtype))
        return total

    def query_gradient(self, grad_scores: Float[Array, "Q K"], first_row: Any) -> Array | float:
        """Returns the part of the queries' gradient that comes from c2p [BLOCK, H].

        Args:
            grad_scores: of the sum of the scores, in the dtype of the operands.
            first_row: as in `scores`.
        """
        return self._gradient("c2p", grad_scores, first_row)

    def key_gradient(self, grad_scores: Float[Array, "Q K"], first_row: Any) -> Array | float:
        """Returns the part of the keys' gradient that comes from p2c [BLOCK, H]. Args: as in `query_gradient`."""
        return self._gradient("p2c", grad_scores, first_row)

    def table_gradients(self, grad_scores: Float[Array, "Q K"], q: Array, k: Array) -> tuple[Array, ...]:
        """Returns the gradients of the rows of every table that a block of queries and one of keys read [SPAN, H].

        Args:
            grad_scores: of the sum of the scores, in the dtype of the operands.
            q, k: partners of the embeddings [BLOCK, H].
        """
        return tuple(
            product(self._by_distance(term, grad_scores), q if term == "c2p" else k, 0, 0) for term in self.terms
        )

    def _gradient(self, term: str, grad_scores: Array, first_row: Any) -> Array | float:
        for each, embeddings in self._embeddings(first_row):
            if each == term:
                return product(self._by_distance(term, grad_scores), embeddings, 1, 0)
        return 0.0

    def _embeddings(self, first_row: Any) -> list[tuple[str, Array]]:
        rows = pl.ds(first_row, SPAN)
        return [(term, table[rows, :]) for term, table in zip(self.terms, self.tables, strict=True)]

    def _by_key(self, term: str, products: Float[Array, "T C"]) -> Float[Array, "Q K"]:
        """Turns the products of queries or keys T and distances into scores of queries and keys."""
        query, key = jnp.arange(BLOCK)[:, None], jnp.arange(BLOCK)[None, :]
        self._store(products, SPAN)
        token = jnp.broadcast_to(query if term == "c2p" else key, (BLOCK, BLOCK))
        return self.memory[token, query - key + BLOCK].astype(jnp.float32)

    def _by_distance(self, term: str, grad_scores: Float[Array, "Q K"]) -> Float[Array, "T C"]:
        """Turns the gradients of scores into those of the products; distances that a token does not have get zero."""
        token, distance = jnp.arange(BLOCK)[:, None], jnp.arange(SPAN)[None, :] - BLOCK
        other = token - distance if term == "c2p" else token + distance
        inside = (other >= 0) & (other < BLOCK)
        self._store(grad_scores, BLOCK)
        other, token = jnp.clip(other, 0, BLOCK - 1), jnp.broadcast_to(token, other.shape)
        query, key = (token, other) if term == "c2p" else (other, token)
        return jnp.where(inside, self.memory[query, key], jnp.zeros((), grad_scores.dtype))

    def _store(self, x: Array, width: int) -> None:
        """Writes a matrix to the memory, for all threads of the block."""
        self._wait()
        self.memory[:, pl.ds(0, width)] = x
        self._wait()

    def _wait(self) -> None:
        if not self.interpret:
            from jax.experimental.pallas import triton

            triton.debug_barrier()
