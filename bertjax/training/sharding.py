"""The mesh `data x fsdp x tensor`, and the table of shardings of parameters."""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from bertjax.config.distributed import AXES, MeshConfig
from bertjax.errors import UserError
from bertjax.io.tree_paths import map_with_path
from bertjax.models.attention import ADDED_SHARDINGS
from bertjax.training.param_rules import match_rule, num_stacked
from bertjax.training.state import TrainState
from bertjax.types import Batch

BATCH = PartitionSpec(("data", "fsdp"))

RULES: list[tuple[str, tuple[str | tuple[str, ...] | None, ...]]] = [
    # Rows, not columns: a table whose columns are split over the axes of the batch is replicated before a gather.
    (r".*/word_embeddings/(embedding|delta)", (("tensor", "fsdp"), None)),
    (r".*/(cross_)?attention/(query|key|value|gate|position|position_key|position_query)/kernel", ("fsdp", "tensor")),
    (r".*/(cross_)?attention/(query|key|value|gate|position_key|position_query)/bias", ("tensor",)),
    (r".*/(cross_)?attention/output/kernel", ("tensor", "fsdp")),
    (r".*/attention/convolution/(key|value)/kernel", ("fsdp", "tensor")),
    (r".*/attention/convolution/(key|value)/bias", ("tensor",)),
    (r".*/attention/convolution/weights/kernel", ("tensor", "fsdp")),
    (r".*/(feed_forward(_\d+)?|adapter)/(intermediate|gate)/kernel", ("fsdp", "tensor")),
    (r".*/(feed_forward(_\d+)?|adapter)/(intermediate|gate)/bias", ("tensor",)),
    (r".*/(feed_forward(_\d+)?|adapter)/output/kernel", ("tensor", "fsdp")),
    (r".*/dense/kernel", ("fsdp", None)),
    (r"(.*/)?mlm_head/(further_)?table", (("tensor", "fsdp"), None)),
    (r"(.*/)?mlm_head/bias", ("tensor",)),
    (r".*", ()),  # replicated
]
"""Mesh axes of a parameter's own axes, without those that count layers."""


def make_mesh(config: MeshConfig, local_devices: Sequence[jax.Device] | None = None) -> Mesh:
    """Returns a mesh over the first devices, with auto axes: explicit ones, jax's default, break gathers.

    Args:
        config: Sizes of the mesh.
        local_devices: Devices of this process alone; None = all devices of all processes.

    Raises:
        UserError: Some process would have no device in the mesh.
    """
    devices = jax.devices() if local_devices is None else local_devices
    shape = config.shape(len(devices))
    mesh = jax.make_mesh(shape, AXES, axis_types=(AxisType.Auto,) * 3, devices=devices[: math.prod(shape)])
    working = {device.process_index for device in mesh.devices.flat}
    if local_devices is None and len(working) < jax.process_count():
        raise UserError(
            f"the mesh takes {mesh.size} of {len(devices)} devices, which leaves processes without work "
            f"({len(working)} of {jax.process_count()} have some); set mesh.data=-1, or start fewer processes"
        )
    return mesh


def state_shardings(state: Any, mesh: Mesh) -> Any:
    """Returns the sharding of every leaf of a train state: moments as their parameters, the carry as the batch."""

    def shard(path: str, leaf: Any) -> NamedSharding:
        spec = match_rule([*ADDED_SHARDINGS.items(), *RULES], path, "sharding")
        stacked = num_stacked(path)
        shape = leaf.shape[stacked:]
        fitted = [axis if axis and shape[i] % _ways(mesh, axis) == 0 else None for i, axis in enumerate(spec)]
        return NamedSharding(mesh, PartitionSpec(*([None] * stacked if fitted else []), *fitted))

    shardings = _map_state(shard, state)
    if isinstance(state, TrainState):
        shardings = shardings._replace(carry=jax.tree.map(lambda _: NamedSharding(mesh, BATCH), state.carry))
    return shardings


def _ways(mesh: Mesh, axis: str | tuple[str, ...]) -> int:
    return math.prod(mesh.shape[name] for name in ((axis,) if isinstance(axis, str) else axis))


def _map_state(function: Any, state: Any) -> Any:
    """Applies `map_with_path` to the dicts of a state of nested tuples; paths are those within the dicts."""
    if isinstance(state, dict):
        return map_with_path(function, state)
    if isinstance(state, tuple):
        mapped = [_map_state(function, part) for part in state]
        return type(state)(*mapped) if hasattr(state, "_fields") else tuple(mapped)
    return jax.tree.map(lambda leaf: function("", leaf), state)


def local_sequences(batch_size: int, mesh: Mesh, devices: Collection[jax.Device] | None = None) -> slice | np.ndarray:
    """Returns the sequences of a global batch that belong on this process's devices.

    Args:
        batch_size: Sequences of the global batch.
        mesh: Mesh of the run.
        devices: Other devices instead.

    Returns:
        A slice where they are consecutive, as they are unless the mesh follows a torus; else int64 [n], ascending.
    """
    if devices is None:
        devices = mesh.local_devices
    blocks = sorted({block for block, device in _batch_blocks(batch_size, mesh) if device in devices})
    chosen = np.concatenate([np.arange(*block) for block in blocks])
    if len(chosen) == chosen[-1] + 1 - chosen[0]:
        return slice(int(chosen[0]), int(chosen[-1]) + 1)
    return chosen


@functools.cache
def _batch_blocks(batch_size: int, mesh: Mesh) -> list[tuple[tuple[int, int], jax.Device]]:
    """Returns (first sequence, end) and device for every device of the mesh; those along `tensor` hold the same."""
    placed = NamedSharding(mesh, BATCH).devices_indices_map((batch_size,))
    return [(index[0].indices(batch_size)[:2], device) for device, index in placed.items()]


def put_batch(batch: Batch, mesh: Mesh) -> dict[str, jax.Array]:
    """Puts a global batch [B, ...] on the mesh; every process passes its own sequences of it (`local_sequences`)."""
    sharding = NamedSharding(mesh, BATCH)
    if jax.process_count() == 1 or not batch:
        arrays = {name: np.asarray(value) for name, value in batch.items()}
        return {name: jax.make_array_from_process_local_data(sharding, value) for name, value in arrays.items()}
    local_size = len(next(iter(batch.values())))
    ways = mesh.shape["data"] * mesh.shape["fsdp"]
    blocks = {block for block, device in _batch_blocks(ways, mesh) if device in mesh.local_devices}
    batch_size = local_size * ways // len(blocks)
    local_index = np.full(batch_size, -1)  # of a global sequence
    local_index[local_sequences(batch_size, mesh)] = np.arange(local_size)

    def put(value: Any) -> jax.Array:
        value = np.asarray(value)

        def part(index: Any) -> np.ndarray:
            return value[local_index[index[0]]]

        return jax.make_array_from_callback((batch_size, *value.shape[1:]), sharding, part)

    return {name: put(value) for name, value in batch.items()}


def put_tree(tree: Any, shardings: Any) -> Any:
    """Puts host arrays that every process has onto their shardings, without communication.

    With several processes the buffers are always new.
    """
    if jax.process_count() == 1:
        return jax.device_put(tree, shardings)

    def put(leaf: Any, sharding: NamedSharding) -> jax.Array:
        leaf = np.asarray(leaf)
        return jax.make_array_from_callback(leaf.shape, sharding, lambda index: leaf[index].copy())

    return jax.tree.map(put, tree, shardings)


def host_copy(tree: Any) -> Any:
    """Returns whole numpy arrays of a tree; all processes must call it, since parts may be on other hosts."""

    def gather(leaf: Any) -> Any:
        if not isinstance(leaf, jax.Array) or leaf.is_fully_addressable or leaf.is_fully_replicated:
            return jax.device_get(leaf)
        assert isinstance(leaf.sharding, NamedSharding)  # as of `state_shardings`
        everywhere = NamedSharding(leaf.sharding.mesh, PartitionSpec())
        return jax.device_get(jax.jit(lambda array: array, out_shardings=everywhere)(leaf))

    return jax.tree.map(gather, tree)
