"""Scores of distances in blocks of attention: DeBERTa's two terms, of which XLNet has the first.

Queries of a block and keys of a block have 2 * block - 1 distances. A block of tokens is multiplied with the embeddings
of these, and the products are shifted by one column per row, from distances to keys. How depends on the compiler: see
`triton` and `mosaic`.

Axes: R = S + K rows of a table, by rising distance; G = 1 or B tables; H width of a head; Q, K queries and keys of a
block, T either; C = 2 * block rows of a block's distances, of which the first is not used.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from bertjax.models.pallas.blocks import KernelSettings, product


def distance_table(
    embeddings: Float[Array, "G D N H"], num_keys: int, queries: int, keys: int
) -> Float[Array, "G R N H"]:
    """Returns the table of a padded sequence: the first row that two blocks need is `Positions.first_row`.

    Args:
        embeddings: distance embeddings by falling distance, from `num_keys` - 1 on.
        num_keys: keys before padding; queries are the last of them.
        queries, keys: lengths of the padded sequence, multiples of the block.
    """
    front = keys - num_keys + 1
    back = queries + keys - front - embeddings.shape[1]
    return jnp.pad(embeddings[:, ::-1], ((0, 0), (front, back), (0, 0), (0, 0)))


def sum_diagonals(grads: Float[Array, "B I N C H"], sets: int) -> Float[Array, "G R N H"]:
    """Returns the gradient of a table from those of the parts that the diagonals of blocks read, which overlap.

    Args:
        grads: gradients of every sequence and diagonal.
        sets: number of tables, G.
    """
    totals = grads.reshape(sets, -1, *grads.shape[1:]).sum(axis=1).transpose(0, 1, 3, 2, 4)
    block = totals.shape[2] // 2
    empty = jnp.zeros((sets, 1, block, *totals.shape[3:]), totals.dtype)
    first = jnp.concatenate([totals[:, :, :block], empty], axis=1)
    second = jnp.concatenate([empty, totals[:, :, block:]], axis=1)
    return (first + second).reshape(sets, -1, *totals.shape[3:])


class Positions:
    """Terms of a kernel. Subclasses know how a compiler shifts the columns of a matrix.

    Args:
        settings: terms; c2p: queries with embeddings; p2c: keys with embeddings.
        tables: references to the table of each term [R, H].
        key_blocks: number of blocks of keys.
    """

    def __init__(self, settings: KernelSettings, tables: tuple[Any, ...], key_blocks: int):
        self.settings, self.tables, self.key_blocks = settings, tables, key_blocks
        self.block, self.span = settings.block, 2 * settings.block

    def first_row(self, query_block: Any, key_block: Any) -> Any:
        """Returns the first of the rows of the tables with the distances of two blocks."""
        return (query_block - key_block - 1 + self.key_blocks) * self.block

    def scores(self, q: Array, k: Array, first_row: Any) -> Float[Array, "Q K"]:
        """Returns the sum of the terms of a block of queries and one of keys, float32.

        Args:
            q, k: partners of the embeddings [T, H].
            first_row: result of `first_row`.
        """
        total = jnp.zeros((self.block, self.block), jnp.float32)
        for term, embeddings in self._embeddings(first_row):
            total = total + self.by_key(term, product(q if term == "c2p" else k, embeddings, 1, 1))
        return total

    def gradient(self, term: str, grad_scores: Float[Array, "Q K"], first_row: Any) -> Float[Array, "T H"]:
        """Returns the part of the gradient of queries (c2p) or keys (p2c) that comes from a term, zero without it.

        Its rows are in the order of `by_distance`.

        Args:
            term: c2p or p2c.
            grad_scores: gradient of the sum of the scores, in the dtype of the operands.
            first_row: as in `scores`.
        """
        for each, embeddings in self._embeddings(first_row):
            if each == term:
                return product(self.by_distance(term, grad_scores), embeddings, 1, 0)
        raise AssertionError(term)

    def table_gradients(self, grad_scores: Float[Array, "Q K"], q: Array, k: Array) -> tuple[Array, ...]:
        """Returns the gradients of the rows of every table that a block of queries and one of keys read [C, H].

        Args:
            grad_scores: gradient of the sum of the scores, in the dtype of the operands.
            q, k: partners of the embeddings [T, H].
        """
        return tuple(
            product(self.by_distance(term, grad_scores), self.in_order(q if term == "c2p" else k), 0, 0)
            for term in self.settings.terms
        )

    def rows(self, term: str, table: Any, first_row: Any) -> Float[Array, "C H"]:
        """Reads the rows of a table from `first_row` on.

        Args:
            term: term of the table.
            table: reference to it.
            first_row: as in `scores`.
        """
        raise NotImplementedError

    def by_key(self, term: str, products: Float[Array, "T C"]) -> Float[Array, "Q K"]:
        """Turns the products of queries (c2p) or keys (p2c) and distances into scores of queries and keys."""
        raise NotImplementedError

    def by_distance(self, term: str, grad_scores: Float[Array, "Q K"]) -> Float[Array, "T C"]:
        """Turns the gradients of scores into those of the products; distances that a token does not have get zero."""
        raise NotImplementedError

    def in_order(self, x: Float[Array, "T H"]) -> Float[Array, "T H"]:
        """Turns rows in the order of tokens into that of `by_distance`, and back."""
        return x

    def _embeddings(self, first_row: Any) -> list[tuple[str, Array]]:
        terms = zip(self.settings.terms, self.tables, strict=True)
        return [(term, self.rows(term, table, first_row)) for term, table in terms]
