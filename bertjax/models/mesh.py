"""What a model asks of the mesh in use: among whom its rows are split, and what of that it has been handed already."""

from __future__ import annotations

import math
from typing import Any

import jax
from jax.sharding import PartitionSpec
from jaxtyping import Array

ROW_AXES = ("data", "fsdp")


def platform() -> str:
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


def row_axes() -> tuple[str, ...]:
    """The axes that the compiler still splits rows along: not those that `jax.shard_map` has split by hand."""
    mesh = jax.sharding.get_abstract_mesh()
    return tuple(name for name in ROW_AXES if name in mesh.axis_names and name not in mesh.manual_axes)


def row_ways() -> int:
    """Among how many devices the compiler splits the rows."""
    mesh = jax.sharding.get_abstract_mesh()
    return math.prod(mesh.shape[name] for name in row_axes())


def shard_batch(x: Array, axis: int = 0) -> Array:
    """Keeps activations split by rows over the mesh in use: without it, the compiler may follow the weights instead.

    `axis` is that of the rows.
    """
    axes = row_axes()
    return jax.lax.with_sharding_constraint(x, PartitionSpec(*[None] * axis, axes)) if axes else x


def parts_by_hand() -> tuple[str, int]:
    """(axis, size) along which `jax.shard_map` has handed this device its own rows; ("", 1) if none has."""
    mesh = jax.sharding.get_abstract_mesh()
    split = [name for name in ROW_AXES if name in mesh.manual_axes]
    assert len(split) < 2, split
    return (split[0], mesh.shape[split[0]]) if split else ("", 1)
