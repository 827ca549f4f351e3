"""The mesh in use: the axes that split the batch, sharding constraints on activations, and `shard_map` per device."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.sharding import PartitionSpec
from jaxtyping import Array

BATCH_AXES = ("data", "fsdp")


def target_platform() -> str:
    """Returns `cpu`, `tpu`, `cuda` or another: the platform of the mesh in use, else of the default device.

    The mesh may consist of devices that this machine does not have, where a program is compiled ahead of time.
    """
    abstract = jax.sharding.get_abstract_mesh().abstract_device
    if abstract is not None and abstract.platform in ("cpu", "tpu"):
        return abstract.platform
    if abstract is not None and abstract.platform in ("gpu", "cuda") and "NVIDIA" in abstract.device_kind:
        return "cuda"
    device = _default_device()
    return "cuda" if device.platform == "gpu" and "cuda" in device.client.platform_version else device.platform


def target_device_kind() -> str:
    """Returns the model of the devices, such as `NVIDIA H100 80GB HBM3`, where `target_platform` has the platform."""
    abstract = jax.sharding.get_abstract_mesh().abstract_device
    return (_default_device() if abstract is None else abstract).device_kind


def triton_compiles() -> bool:
    """Returns whether Triton compiles for the local GPUs: those of compute capability 8.0 or more."""
    return float(getattr(jax.local_devices()[0], "compute_capability", "8.0")) >= 8.0


def _default_device() -> Any:
    device: Any = getattr(jax.config, "jax_default_device", None)  # missing from the type stubs
    return jax.local_devices(backend=device)[0] if device is None or isinstance(device, str) else device


def batch_axes() -> tuple[str, ...]:
    """Returns the mesh axes along which the compiler splits the batch; not those that `jax.shard_map` has split."""
    mesh = jax.sharding.get_abstract_mesh()
    return tuple(name for name in BATCH_AXES if name in mesh.axis_names and name not in mesh.manual_axes)


def num_batch_shards() -> int:
    """Returns the number of parts into which the compiler splits the batch."""
    mesh = jax.sharding.get_abstract_mesh()
    return math.prod(mesh.shape[name] for name in batch_axes())


def shard_batch(x: Array, axis: int = 0) -> Array:
    """Constrains `x` to be split over the batch along `axis`; otherwise the compiler may follow the weights instead."""
    axes = batch_axes()
    return jax.lax.with_sharding_constraint(x, PartitionSpec(*[None] * axis, axes)) if axes else x


def unshard_table(table: Array) -> Array:
    """Gathers a word embedding table [V, D] along the axes that split the batch; it stays split over `tensor`.

    Otherwise the compiler lets devices look up or score all sequences of their group, and sends activations instead of
    weights.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if "fsdp" not in mesh.axis_names or mesh.manual_axes:  # under shard_map, XLA's partitioner crashes
        return table
    splits = "tensor" in mesh.axis_names and table.shape[0] % mesh.shape["tensor"] == 0
    return jax.lax.with_sharding_constraint(table, PartitionSpec("tensor" if splits else None))


def manual_batch_shard() -> tuple[str, int]:
    """Returns (axis, size) along which `jax.shard_map` has split the batch; ("", 1) if it has not."""
    mesh = jax.sharding.get_abstract_mesh()
    split = [name for name in BATCH_AXES if name in mesh.manual_axes]
    assert len(split) < 2, split
    return (split[0], mesh.shape[split[0]]) if split else ("", 1)


def per_device(
    function: Callable, head_axes: Sequence[int | None], out_head_axis: int | None, *arrays: Array, shared: int = 0
) -> Any:
    """Runs `function(*arrays)` on every device for its part of batch and heads, where the compiler cannot split it.

    Args:
        function: takes and returns arrays, or a tree of them, whose first axis is the batch, but for `shared` ones.
        head_axes: axis of the heads of each array; None = it has none.
        out_head_axis: axis of the heads of the results; None = they have none.
        *arrays: inputs; every device holds in full what the mesh does not divide evenly.
        shared: number of arrays, the last ones, whose first axis is not the batch.
    """
    mesh = jax.sharding.get_abstract_mesh()
    remaining = set(mesh.axis_names) - set(mesh.manual_axes)
    if not remaining:
        return function(*arrays)

    def axes_for(size: int, names: tuple[str, ...]) -> tuple[str, ...] | None:
        """Returns the mesh axes among `names`, if they divide this size."""
        present = tuple(name for name in names if name in remaining)
        return present if present and size % math.prod(mesh.shape[name] for name in present) == 0 else None

    num_heads = next((x.shape[axis] for x, axis in zip(arrays, head_axes, strict=True) if axis is not None), 0)
    batch, heads = axes_for(arrays[0].shape[0], BATCH_AXES), axes_for(num_heads, ("tensor",))

    def spec(axis: int | None, batch: tuple[str, ...] | None = batch) -> PartitionSpec:
        return PartitionSpec(batch) if axis is None else PartitionSpec(batch, *[None] * (axis - 1), heads)

    batched = len(arrays) - shared

    split = jax.shard_map(
        function,
        in_specs=(*map(spec, head_axes[:batched]), *(spec(axis, None) for axis in head_axes[batched:])),
        out_specs=spec(out_head_axis),
        axis_names=remaining,
        check_vma=False,
    )
    return split(*arrays)
