"""Gradient accumulation: the gradient of a batch, microbatch by microbatch."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array

from bertjax.io.tree_paths import flatten_tree, map_with_path
from bertjax.models.mesh import shard_batch
from bertjax.training.param_rules import num_stacked
from bertjax.types import Batch, Params

ValueAndGrad = Callable[..., tuple[tuple[Array, tuple[Any, Any]], Params]]
"""`value_and_grad(params, carry, batch, key, inputs)`: ((loss, (sums, carry)), grads); all but the carry add up."""


def accumulate_grads(
    value_and_grad: ValueAndGrad,
    params: Params,
    carry: Any,
    batch: Batch,
    key: Array,
    inputs: Any,
    microbatches: int,
    shardings: Params | None,
    by_layer: bool,
) -> tuple[tuple[Array, tuple[Any, Any]], Params]:
    """Computes the loss and the gradients of a batch as the sum over its microbatches.

    Sequence i is in microbatch i % `microbatches`, so that no sequence moves between devices. Along the axis `data`
    every device adds up the gradients of its own sequences, and one reduction follows the last microbatch; the compiler
    alone would reduce after each of them.

    Args:
        value_and_grad: Differentiated loss of a part of the batch.
        params: Weights.
        carry: Memory of every sequence from the batch before, [B, ...].
        batch: Masked batch [B, ...].
        key: Key of the dropout; every microbatch gets its own.
        inputs: Passed to every call unchanged.
        microbatches: Number of parts.
        shardings: Specs of the parameters, to which gradients are constrained; None = no constraint.
        by_layer: Adds up the gradients of stacked parameters layer by layer. Where layers are unrolled, the additions
            then become part of the matmuls of the gradients; where they are scanned, that would add copies.

    Returns:
        ((loss, (sums, carry)), grads), as `value_and_grad` of the whole batch.
    """
    if microbatches == 1:
        (loss, aux), grads = value_and_grad(params, carry, batch, key, inputs)
        return (loss, aux), _constrain(grads, shardings)
    run = functools.partial(_accumulate, value_and_grad, microbatches, shardings, by_layer)
    mesh = jax.sharding.get_abstract_mesh()
    ways = dict(mesh.shape).get("data", 1)
    sizes = {leaf.shape[0] for leaf in jax.tree.leaves((batch, carry))}
    if ways == 1 or any(size % (ways * microbatches) for size in sizes):  # shares of a mixture may have any size
        return run(params, carry, dict(batch), key, inputs)
    whole, split = PartitionSpec(), PartitionSpec("data")

    def run_on_device(*arguments: Any) -> Any:
        (loss, (sums, carry)), grads = run(*arguments)
        loss, sums, grads = jax.lax.psum((loss, sums, grads), "data")
        return (loss, (sums, carry)), grads

    mapped = jax.shard_map(
        run_on_device,
        in_specs=(whole, split, split, whole, whole),
        out_specs=((whole, (whole, split)), whole),
        axis_names={"data"},
        check_vma=False,  # it would reduce the gradients of shared weights after every use
    )
    return mapped(params, carry, dict(batch), key, inputs)


def _accumulate(
    value_and_grad: ValueAndGrad,
    microbatches: int,
    shardings: Params | None,
    by_layer: bool,
    params: Params,
    carry: Any,
    batch: Batch,
    key: Array,
    inputs: Any,
) -> Any:
    def split(value: Array) -> Array:
        parts = value.reshape(value.shape[0] // microbatches, microbatches, *value.shape[1:])
        return shard_batch(parts.swapaxes(0, 1), axis=1)

    def join(parts: Array) -> Array:
        return parts.swapaxes(0, 1).reshape(-1, *parts.shape[2:])

    def stacked(path: str) -> int:
        return num_stacked(path) if by_layer else 0

    def compute(carry: Any, part: Batch, index: Array) -> tuple[tuple[Array, Any, dict[str, list[Array]]], Any]:
        (loss, (sums, carry)), grads = value_and_grad(params, carry, part, jax.random.fold_in(key, index), inputs)
        return (loss, sums, {path: _layers(leaf, stacked(path)) for path, leaf in flatten_tree(grads).items()}), carry

    def constrain(grads: dict[str, list[Array]]) -> dict[str, list[Array]]:
        if shardings is None:
            return grads
        specs = {path: PartitionSpec(*spec[stacked(path) :]) for path, spec in flatten_tree(shardings).items()}
        return _constrain(grads, {path: [specs[path]] * len(layers) for path, layers in grads.items()})

    def body(totals: tuple, scanned: tuple) -> tuple[tuple, Any]:
        (loss, sums, grads), carry = compute(*scanned)
        return jax.tree.map(jnp.add, totals, (loss, sums, constrain(grads))), carry

    parts, carries = jax.tree.map(split, (batch, carry))
    scanned = carries, parts, jnp.arange(microbatches)
    shapes, _ = jax.eval_shape(compute, *jax.tree.map(lambda value: value[0], scanned))
    loss, sums, grads = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    (loss, sums, grads), carries = jax.lax.scan(body, (loss, sums, constrain(grads)), scanned)
    stacks = map_with_path(lambda path, leaf: jnp.stack(grads[path]).reshape(leaf.shape), params)
    return (loss, (sums, jax.tree.map(join, carries))), _constrain(stacks, shardings)


def _layers(leaf: Array, stacked: int) -> list[Array]:
    """Returns the parts of an array along its first `stacked` axes."""
    parts = leaf.reshape(-1, *leaf.shape[stacked:])
    return [jax.lax.index_in_dim(parts, index, keepdims=False) for index in range(len(parts))]


def _constrain(grads: Any, shardings: Any) -> Any:
    return grads if shardings is None else jax.lax.with_sharding_constraint(grads, shardings)
