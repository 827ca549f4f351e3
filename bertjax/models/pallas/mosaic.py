"""Calls of the attention kernels on TPUs: blocks of arrays, and the shift from distances to keys.

A TPU rotates every row of a matrix by one column more than the row before it, so the columns of c2p are by falling
distance. It cannot rotate by one column less, which the gradient needs: there rows are reversed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array, Float

from bertjax.models.pallas.blocks import KernelInputs, KernelSettings, Positions, product
from bertjax.models.pallas.kernels import KernelProgram, kernel_name

_ROW = 128  # numbers in a row of a register


class RotatedPositions(Positions):
    """Terms of distances whose shift is a rotation; `by_distance` has the rows in reverse order."""

    def rows(self, term: str, table: Any, first_row: Any) -> Float[Array, "C H"]:
        """Reads rows. Args: as in `Positions.rows`."""
        if term == "c2p":
            first_row = table.shape[0] - self.span - first_row
        return table[pl.ds(pl.multiple_of(first_row, self.block), self.span), :]

    def by_key(self, term: str, products: Float[Array, "T C"]) -> Float[Array, "Q K"]:
        if term == "c2p":
            return self._rotate(products, self.block + 1)[:, : self.block]
        return self._rotate(products, self.block)[:, : self.block].T

    def by_distance(self, term: str, grad_scores: Float[Array, "Q K"]) -> Float[Array, "T C"]:
        by_token = product(self._reversal(grad_scores.dtype), grad_scores, 1, 0 if term == "c2p" else 1)
        wide = jnp.concatenate([by_token, jnp.zeros_like(by_token)], axis=1)
        return self._rotate(wide, 0 if term == "c2p" else 1).astype(grad_scores.dtype)

    def in_order(self, x: Float[Array, "T H"]) -> Float[Array, "T H"]:
        precision = jax.lax.Precision.HIGHEST if x.dtype == jnp.float32 else None  # each result is one of `x`
        axes = (((1,), (0,)), ((), ()))
        reversal = self._reversal(x.dtype)
        return jax.lax.dot_general(reversal, x, axes, precision, jnp.float32).astype(x.dtype)

    def _reversal(self, dtype: Any) -> Float[Array, "T T"]:
        """Returns the matrix that reverses rows."""
        shape = self.block, self.block
        row, column = (jax.lax.broadcasted_iota(jnp.int32, shape, axis) for axis in (0, 1))
        return jnp.where(row + column == self.block - 1, 1.0, 0.0).astype(dtype)

    def _rotate(self, x: Float[Array, "T C"], shift: int) -> Float[Array, "T C"]:
        rotate = interpreted_rotation if self.settings.interpret else rotation
        return rotate(x, shift)


def rotation(x: Float[Array, "T C"], shift: int) -> Float[Array, "T C"]:
    """Moves row t by `shift` + t columns to the right; columns reenter at the left."""
    from jax.experimental.pallas import tpu

    return tpu.roll(x, shift, 1, stride=1, stride_axis=0)


def interpreted_rotation(x: Float[Array, "T C"], shift: int) -> Float[Array, "T C"]:
    """Computes `rotation` on CPUs, where the interpreted one takes half a minute to compile."""
    row, column = (jnp.arange(size) for size in x.shape)
    return jnp.take_along_axis(x, (column[None, :] - row[:, None] - shift) % x.shape[1], axis=1)


def call(
    kernel: Callable, settings: KernelSettings, inputs: KernelInputs, bounds: Array | None, grid: str, like: Any
) -> Any:
    """Runs a kernel for every block, head and sequence. Args: as in `triton.call`.

    The last two axes of an array are those of a register, so tokens come after heads here.
    """
    from jax.experimental.pallas import tpu

    batch, queries, heads, width = inputs.queries.vectors.shape
    lengths = {"query": queries, "key": inputs.keys.vectors.shape[1]}
    blocks = sum(lengths.values()) // settings.block - 1 if grid == "diagonal" else lengths[grid] // settings.block

    def spec(x: Any, whole: bool = False) -> pl.BlockSpec:
        """Returns the part of an array, as `_tokens_last` returns it, for the block, head and sequence of a program."""
        if x.ndim == 5:
            return pl.BlockSpec(
                (None, None, None, *x.shape[3:]), lambda sequence, head, block, *_: (sequence, block, head, 0, 0)
            )
        size = x.shape[1 if x.ndim != 3 else 2] if whole else settings.block

        def index(sequence: Any, head: Any, block: Any, *_: Any) -> tuple[Any, ...]:
            start = 0 if whole else block
            return {2: (sequence, 0, start), 3: (sequence, head, 0, start), 4: (sequence, head, start, 0)}[x.ndim]

        return pl.BlockSpec({2: (None, 1, size), 3: (None, None, 1, size), 4: (None, None, size, width)}[x.ndim], index)

    def table_spec(x: Array) -> pl.BlockSpec:
        one = x.shape[0] == 1
        shape = None, None, x.shape[1], width
        return pl.BlockSpec(shape, lambda sequence, head, block, *_: (0 if one else sequence, head, 0, 0))

    tables = tuple(
        table[:, ::-1] if term == "c2p" else table for term, table in zip(settings.terms, inputs.tables, strict=True)
    )
    words = jax.lax.bitcast_convert_type(inputs.words, jnp.int32).reshape(-1)
    limits = jnp.zeros(1, jnp.int32) if bounds is None else bounds.reshape(-1)
    arrays = inputs.queries, inputs.keys, tables
    structure, outputs = jax.tree.structure((arrays, like)), jax.tree.leaves(like)

    def run(words: Any, limits: Any, *refs: Any) -> None:
        (queries, keys, tables), outputs = jax.tree.unflatten(structure, refs)
        sequence, head, block = (pl.program_id(axis) for axis in range(3))
        first_word, first_limit = 2 * (sequence * heads + head), 2 * (sequence * blocks + block)
        pair = tuple(words[first_word + each].astype(jnp.uint32) for each in range(2))
        between = None if bounds is None else (limits[first_limit], limits[first_limit + 1])
        positions = RotatedPositions(settings, tables, lengths["key"] // settings.block)
        kernel(settings, KernelProgram(block, queries, keys, (pair[0], pair[1]), between, positions), outputs)

    specs = (
        jax.tree.map(functools.partial(spec, whole=grid != "query"), inputs.queries),
        jax.tree.map(functools.partial(spec, whole=grid != "key"), inputs.keys),
        tuple(map(table_spec, tables)),
    )
    shapes = [jax.eval_shape(_tokens_last, jax.ShapeDtypeStruct(x.shape, x.dtype)) for x in outputs]
    results = pl.pallas_call(
        run,
        grid_spec=tpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=2,
            grid=(batch, heads, blocks),
            in_specs=jax.tree.leaves(specs),
            out_specs=[spec(x) for x in outputs],
        ),
        out_shape=shapes,
        interpret=settings.interpret,
        compiler_params=tpu.CompilerParams(
            dimension_semantics=("parallel",) * 3,
            vmem_limit_bytes=_memory(jax.tree.leaves(specs), jax.tree.leaves(arrays)),
        ),
        name=kernel_name(settings, kernel),
    )(words, limits, *map(_tokens_last, jax.tree.leaves(arrays)))
    if grid == "diagonal":  # one result per term
        results = [x[:, :, :, ::-1] if term == "c2p" else x for term, x in zip(settings.terms, results, strict=True)]
    ordered = [
        x.swapaxes(1, 2) if len(old.shape) == 4 else x.reshape(old.shape)
        for x, old in zip(results, outputs, strict=True)
    ]
    return jax.tree.unflatten(jax.tree.structure(like), ordered)


def _memory(specs: list[pl.BlockSpec], arrays: list[Array]) -> int:
    """Returns the bytes of on-chip memory to ask for: two of every block, in whole registers, and as much again.

    At least 16 MiB, what the compiler grants by default.
    """
    size = 0
    for spec, array in zip(specs, arrays, strict=True):
        shape: Any = spec.block_shape
        *_, rows, columns = (each or 1 for each in shape)
        size += 2 * rows * -(-columns // _ROW) * _ROW * array.dtype.itemsize
    return max(2 * size, 16 * 2**20)


def _tokens_last(x: Array) -> Array:
    """[B, S, N, H] -> [B, N, S, H], [B, N, S] -> [B, N, 1, S], [B, S] -> [B, 1, S]; others as they are."""
    if x.ndim == 4:
        return x.swapaxes(1, 2)
    return x[..., None, :] if x.ndim in (2, 3) else x
