"""What a model asks of the mesh in use: among whom its rows are split, and what of that it has been handed already."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.sharding import PartitionSpec
from jaxtyping import Array

BATCH_AXES = ("data", "fsdp")


def target_platform() -> str:
    """`cpu`, `tpu`, `cuda` or another: of the mesh in use, else of the device on which computations land by default.

    The mesh may be of devices that this machine has not: a program compiled ahead for them must suit them.
    """
    meant = getattr(jax.sharding.get_abstract_mesh().abstract_device, "platform", None)
    if meant in ("cpu", "tpu"):
        return meant
    device: Any = getattr(jax.config, "jax_default_device", None)  # not among the names that the type declares
    if device is None or isinstance(device, str):
        device = jax.local_devices(backend=device)[0]
    return "cuda" if device.platform == "gpu" and "cuda" in device.client.platform_version else device.platform


def batch_axes() -> tuple[str, ...]:
    """The axes that the compiler still splits rows along: not those that `jax.shard_map` has split by hand."""
    mesh = jax.sharding.get_abstract_mesh()
    return tuple(name for name in BATCH_AXES if name in mesh.axis_names and name not in mesh.manual_axes)


def num_batch_shards() -> int:
    """Among how many devices the compiler splits the rows."""
    mesh = jax.sharding.get_abstract_mesh()
    return math.prod(mesh.shape[name] for name in batch_axes())


def shard_batch(x: Array, axis: int = 0) -> Array:
    """Keeps activations split by rows over the mesh in use: without it, the compiler may follow the weights instead.

    `axis` is that of the rows.
    """
    axes = batch_axes()
    return jax.lax.with_sharding_constraint(x, PartitionSpec(*[None] * axis, axes)) if axes else x


def unshard_table(table: Array) -> Array:
    """A word table as it is read: its rows split over `tensor` alone, put together along the axes that split the batch.

    Left to the compiler, devices look up the words of all rows of their group, or score them, and send activations
    around instead of weights.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if "fsdp" not in mesh.axis_names or mesh.manual_axes:  # where rows are split by hand, XLA's partitioner dies of it
        return table
    splits = "tensor" in mesh.axis_names and table.shape[0] % mesh.shape["tensor"] == 0
    return jax.lax.with_sharding_constraint(table, PartitionSpec("tensor" if splits else None))


def manual_batch_shard() -> tuple[str, int]:
    """(axis, size) along which `jax.shard_map` has handed this device its own rows; ("", 1) if none has."""
    mesh = jax.sharding.get_abstract_mesh()
    split = [name for name in BATCH_AXES if name in mesh.manual_axes]
    assert len(split) < 2, split
    return (split[0], mesh.shape[split[0]]) if split else ("", 1)


def per_device(function: Callable, heads: Sequence[int | None], out_heads: int, *arrays: Array) -> Array:
    """`function(*arrays)` by every device for its own rows and heads, where the compiler should not or cannot split it.

    `heads` names the axis of heads of each array, None where there is none; `out_heads` that of the result. Rows are
    the first axis of all. What the mesh does not divide evenly every device has in full.
    """
    mesh = jax.sharding.get_abstract_mesh()
    left = set(mesh.axis_names) - set(mesh.manual_axes)
    if not left:
        return function(*arrays)

    def share(size: int, names: tuple[str, ...]) -> tuple[str, ...] | None:
        """The axes of the mesh among `names`, if they split this size evenly."""
        present = tuple(name for name in names if name in left)
        return present if present and size % math.prod(mesh.shape[name] for name in present) == 0 else None

    first, axis = next((array, axis) for array, axis in zip(arrays, heads, strict=True) if axis is not None)
    rows, own_heads = share(first.shape[0], BATCH_AXES), share(first.shape[axis], ("tensor",))

    def spec(axis: int | None) -> PartitionSpec:
        return PartitionSpec(rows) if axis is None else PartitionSpec(rows, *[None] * (axis - 1), own_heads)

    split = jax.shard_map(
        function,
        in_specs=tuple(map(spec, heads)),
        out_specs=spec(out_heads),
        axis_names=left,
        check_vma=False,
    )
    return split(*arrays)
