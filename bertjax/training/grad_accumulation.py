"""The gradient of a batch that does not fit at once: microbatch by microbatch, added up where it is made."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array

from bertjax.models.mesh import shard_batch
from bertjax.types import Batch, Params

Gradient = Callable[..., tuple[tuple[Array, tuple[Any, Any]], Params]]
"""`gradient(params, carry, batch, key, given)`: ((loss, (sums, carry)), slopes); all but the carry only add up."""
Pin = Callable[[Params], Params]


def accumulate_grads(
    gradient: Gradient,
    params: Params,
    carry: Any,
    batch: Batch,
    key: Array,
    given: Any,
    microbatches: int,
    pin: Pin,
) -> tuple[tuple[Array, tuple[Any, Any]], Params]:
    """What `gradient` gives for the whole batch; row i is in microbatch i % n, so that no row has to move.

    `given` is handed to every call as it is; `pin` says how slopes lie on the mesh. Along `data` every device adds up
    what its own rows give, and one reduction follows the last microbatch: left to the compiler, there is one after
    each of them.
    """
    if microbatches == 1:
        (loss, found), slopes = gradient(params, carry, batch, key, given)
        return (loss, found), pin(slopes)
    run = functools.partial(_accumulate, gradient, microbatches, pin)
    mesh = jax.sharding.get_abstract_mesh()
    ways = dict(mesh.shape).get("data", 1)
    rows = {leaf.shape[0] for leaf in jax.tree.leaves((batch, carry))}
    if ways == 1 or any(number % (ways * microbatches) for number in rows):  # shares of a mixture may be any number
        return run(params, carry, dict(batch), key, given)
    whole, split = PartitionSpec(), PartitionSpec("data")

    def local_sequences(*inputs: Any) -> Any:
        (loss, (sums, carry)), slopes = run(*inputs)
        loss, sums, slopes = jax.lax.psum((loss, sums, slopes), "data")
        return (loss, (sums, carry)), slopes

    mapped = jax.shard_map(
        local_sequences,
        in_specs=(whole, split, split, whole, whole),
        out_specs=((whole, (whole, split)), whole),
        axis_names={"data"},
        check_vma=False,  # it would reduce the slopes of shared weights wherever they are made
    )
    return mapped(params, carry, dict(batch), key, given)


def _accumulate(
    gradient: Gradient, microbatches: int, pin: Pin, params: Params, carry: Any, batch: Batch, key: Array, given: Any
) -> Any:
    def split(value: Array) -> Array:
        parts = value.reshape(value.shape[0] // microbatches, microbatches, *value.shape[1:])
        return shard_batch(parts.swapaxes(0, 1), axis=1)

    def join(parts: Array) -> Array:
        return parts.swapaxes(0, 1).reshape(-1, *parts.shape[2:])

    def body(totals: tuple, inputs: tuple) -> tuple[tuple, Any]:
        part, carry, index = inputs
        (loss, (sums, carry)), slopes = gradient(params, carry, part, jax.random.fold_in(key, index), given)
        return jax.tree.map(jnp.add, totals, (loss, sums, pin(slopes))), carry

    parts, carries = jax.tree.map(split, (batch, carry))
    first = jax.tree.map(lambda value: value[0], (carries, parts))
    (loss, (sums, _)), slopes = jax.eval_shape(gradient, params, *first, key, given)
    loss, sums, slopes = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), (loss, sums, slopes))
    zeros = loss, sums, pin(slopes)
    (loss, sums, slopes), carries = jax.lax.scan(body, zeros, (parts, carries, jnp.arange(microbatches)))
    return (loss, (sums, jax.tree.map(join, carries))), slopes
