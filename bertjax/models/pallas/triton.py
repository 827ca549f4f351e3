"""Calls of the attention kernels on GPUs: blocks of arrays, and the shift from distances to keys.

Triton cannot index a register, so the shift goes through memory that belongs to the kernel: it writes the products and
reads them from other positions.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array, Float

from bertjax.models.pallas.blocks import KernelInputs, KernelSettings, Positions
from bertjax.models.pallas.kernels import KernelProgram, kernel_name


class MemoryPositions(Positions):
    """Terms of distances whose shift goes through memory [T, C]."""

    def __init__(self, settings: KernelSettings, tables: tuple[Any, ...], key_blocks: int, memory: Any):
        super().__init__(settings, tables, key_blocks)
        self.memory = memory

    def rows(self, term: str, table: Any, first_row: Any) -> Float[Array, "C H"]:
        """Reads rows. Args: as in `Positions.rows`."""
        return table[pl.ds(first_row, self.span), :]

    def by_key(self, term: str, products: Float[Array, "T C"]) -> Float[Array, "Q K"]:
        query, key = jnp.arange(self.block)[:, None], jnp.arange(self.block)[None, :]
        self._store(products.astype(self.memory.dtype), self.span)
        token = jnp.broadcast_to(query if term == "c2p" else key, (self.block, self.block))
        return self.memory[token, query - key + self.block].astype(jnp.float32)

    def by_distance(self, term: str, grad_scores: Float[Array, "Q K"]) -> Float[Array, "T C"]:
        token, distance = jnp.arange(self.block)[:, None], jnp.arange(self.span)[None, :] - self.block
        other = token - distance if term == "c2p" else token + distance
        inside = (other >= 0) & (other < self.block)
        self._store(grad_scores, self.block)
        other, token = jnp.clip(other, 0, self.block - 1), jnp.broadcast_to(token, other.shape)
        query, key = (token, other) if term == "c2p" else (other, token)
        return jnp.where(inside, self.memory[query, key], jnp.zeros((), grad_scores.dtype))

    def _store(self, x: Array, width: int) -> None:
        """Writes a matrix to the memory, for all threads of the block."""
        self._wait()
        self.memory[:, pl.ds(0, width)] = x
        self._wait()

    def _wait(self) -> None:
        if not self.settings.interpret:
            from jax.experimental.pallas import triton

            triton.debug_barrier()


def call(
    kernel: Callable, settings: KernelSettings, inputs: KernelInputs, bounds: Array | None, grid: str, like: Any
) -> Any:
    """Runs a kernel for every block, head and sequence.

    Args:
        kernel: takes the settings, the program, and references to its blocks of the results.
        settings: what to compile.
        inputs: arrays.
        bounds: first and last block of the other side for every block of the grid [B, I, 2]; None = all.
        grid: blocks of which the kernel runs for one: query, key, or diagonal, which reads whole sequences of both.
        like: arrays with the shapes and dtypes of the results: as of the inputs, or [B, I, N, C, H] for I blocks.
    """
    batch, queries, heads, width = inputs.queries.vectors.shape
    lengths = {"query": queries, "key": inputs.keys.vectors.shape[1]}
    blocks = sum(lengths.values()) // settings.block - 1 if grid == "diagonal" else lengths[grid] // settings.block

    def spec(x: Any, whole: bool = False) -> pl.BlockSpec:
        """Returns the part of an array for the block, head and sequence of a program."""
        if x.ndim == 5:
            return pl.BlockSpec(
                (None, None, None, *x.shape[3:]), lambda block, head, sequence: (sequence, block, head, 0, 0)
            )
        axis = 2 if x.ndim == 3 else 1
        size = x.shape[axis] if whole else settings.block

        def index(block: Any, head: Any, sequence: Any) -> tuple[Any, ...]:
            start = 0 if whole else block
            return {2: (sequence, start), 3: (sequence, head, start), 4: (sequence, start, head, 0)}[x.ndim]

        return pl.BlockSpec({2: (None, size), 3: (None, None, size), 4: (None, size, None, width)}[x.ndim], index)

    def table_spec(x: Array) -> pl.BlockSpec:
        one = x.shape[0] == 1
        shape = None, x.shape[1], None, width
        return pl.BlockSpec(shape, lambda block, head, sequence: (0 if one else sequence, 0, head, 0))

    specs = (
        jax.tree.map(functools.partial(spec, whole=grid != "query"), inputs.queries),
        jax.tree.map(functools.partial(spec, whole=grid != "key"), inputs.keys),
        spec(inputs.words, whole=True),
        tuple(map(table_spec, inputs.tables)),
        None if bounds is None else pl.BlockSpec((None, None, 2), lambda block, head, sequence: (sequence, block, 0)),
    )
    has_memory = bool(inputs.tables)
    shape = batch, blocks, heads, settings.block, 2 * settings.block
    results = like, [jax.ShapeDtypeStruct(shape, inputs.keys.vectors.dtype)] * has_memory
    options = {} if settings.interpret else {"compiler_params": _compiler_params(width, has_memory)}
    arrays = inputs, bounds
    structure = jax.tree.structure((arrays, results))

    def run(*refs: Any) -> None:
        (inputs, bounds), (outputs, memory) = jax.tree.unflatten(structure, refs)
        positions = MemoryPositions(
            settings, inputs.tables, lengths["key"] // settings.block, memory[0] if memory else None
        )
        limits = None if bounds is None else (bounds[0], bounds[1])
        words = inputs.words[0], inputs.words[1]
        kernel(
            settings, KernelProgram(pl.program_id(0), inputs.queries, inputs.keys, words, limits, positions), outputs
        )

    out = pl.pallas_call(
        run,
        grid=(blocks, heads, batch),
        in_specs=jax.tree.leaves(specs),
        out_specs=[spec(x) for x in jax.tree.leaves(results)],
        out_shape=[jax.ShapeDtypeStruct(x.shape, x.dtype) for x in jax.tree.leaves(results)],
        interpret=settings.interpret,
        name=kernel_name(settings, kernel),
        **options,
    )(*jax.tree.leaves(arrays))
    return jax.tree.unflatten(jax.tree.structure(results), out)[0]


def _compiler_params(width: int, has_memory: bool) -> Any:
    from jax.experimental.pallas import triton

    # No loads of a later block ahead of time where these read what the kernel writes.
    return triton.CompilerParams(num_warps=4 if width <= 64 else 8, num_stages=1 if has_memory else 2)
