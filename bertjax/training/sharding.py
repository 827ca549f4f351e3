"""The mesh `data x fsdp x tensor`, and the table that lays parameters on it."""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from bertjax.config.training import AXES, MeshConfig
from bertjax.errors import UserError
from bertjax.io.tree_paths import map_with_path
from bertjax.training.param_rules import match, num_stacked
from bertjax.training.state import TrainState
from bertjax.types import Batch

BATCH = PartitionSpec(("data", "fsdp"))

# How the axes of a parameter (its own, without the stacked one) lie on the mesh. The last rule replicates.
RULES: list[tuple[str, tuple[str | tuple[str, ...] | None, ...]]] = [
    # Rows, not columns: a gather from a table whose columns lie on the axis of the batch must be replicated first.
    (r".*/word_embeddings/(embedding|delta)", (("tensor", "fsdp"), None)),
    (r".*/attention/(query|key|value|position|position_key|position_query)/kernel", ("fsdp", "tensor")),
    (r".*/attention/(query|key|value|position_key|position_query)/bias", ("tensor",)),
    (r".*/attention/output/kernel", ("tensor", "fsdp")),
    (r".*/feed_forward/(intermediate|gate)/kernel", ("fsdp", "tensor")),
    (r".*/feed_forward/(intermediate|gate)/bias", ("tensor",)),
    (r".*/feed_forward/output/kernel", ("tensor", "fsdp")),
    (r".*/dense/kernel", ("fsdp", None)),
    (r"(.*/)?mlm_head/bias", ("tensor",)),
    (r".*", ()),
]


def make_mesh(config: MeshConfig, own: Sequence[jax.Device] | None = None) -> Mesh:
    """A mesh over the first devices that the sizes need. Auto axes: explicit ones, jax's default, break gathers.

    `own` are devices of this process, for what it does by itself. Raises `UserError` where another one gets none.
    """
    devices = jax.devices() if own is None else own
    shape = config.shape(len(devices))
    mesh = jax.make_mesh(shape, AXES, axis_types=(AxisType.Auto,) * 3, devices=devices[: math.prod(shape)])
    working = {device.process_index for device in mesh.devices.flat}
    if own is None and len(working) < jax.process_count():
        raise UserError(
            f"the mesh takes {mesh.size} of {len(devices)} devices, which leaves processes without work "
            f"({len(working)} of {jax.process_count()} have some); set mesh.data=-1, or start fewer processes"
        )
    return mesh


def state_shardings(state: Any, mesh: Mesh) -> Any:
    """A sharding for every leaf of a train state: optimizer moments lie as their parameters do, the carry as rows."""

    def of_leaf(path: str, leaf: Any) -> NamedSharding:
        spec = match(RULES, path, "sharding")
        stacked = num_stacked(path)
        own = leaf.shape[stacked:]
        fitted = [axis if axis and own[i] % _ways(mesh, axis) == 0 else None for i, axis in enumerate(spec)]
        return NamedSharding(mesh, PartitionSpec(*([None] * stacked if fitted else []), *fitted))

    laid = _map_state(of_leaf, state)
    if isinstance(state, TrainState):
        laid = laid._replace(carry=jax.tree.map(lambda _: NamedSharding(mesh, BATCH), state.carry))
    return laid


def _ways(mesh: Mesh, axis: str | tuple[str, ...]) -> int:
    return math.prod(mesh.shape[name] for name in ((axis,) if isinstance(axis, str) else axis))


def _map_state(function: Any, state: Any) -> Any:
    """`map_with_path` over a state whose containers are dicts below tuples: the names are those of the dicts."""
    if isinstance(state, dict):
        return map_with_path(function, state)
    if isinstance(state, tuple):
        mapped = [_map_state(function, part) for part in state]
        return type(state)(*mapped) if hasattr(state, "_fields") else tuple(mapped)
    return jax.tree.map(lambda leaf: function("", leaf), state)


def local_sequences(rows: int, mesh: Mesh, devices: Collection[jax.Device] | None = None) -> slice | np.ndarray:
    """The rows of a global batch of so many that lie on this process's devices, or on the given ones.

    A slice where they follow each other, as they do unless the mesh is laid along a torus; else int64 [n], ascending.
    """
    if devices is None:
        devices = mesh.local_devices
    blocks = sorted({block for block, device in _row_blocks(rows, mesh) if device in devices})
    chosen = np.concatenate([np.arange(*block) for block in blocks])
    if len(chosen) == chosen[-1] + 1 - chosen[0]:
        return slice(int(chosen[0]), int(chosen[-1]) + 1)
    return chosen


@functools.cache
def _row_blocks(rows: int, mesh: Mesh) -> list[tuple[tuple[int, int], jax.Device]]:
    """First row and end of what every device of the mesh holds; those along `tensor` hold the same."""
    placed = NamedSharding(mesh, BATCH).devices_indices_map((rows,))
    return [(index[0].indices(rows)[:2], device) for device, index in placed.items()]


def put_batch(batch: Batch, mesh: Mesh) -> dict[str, jax.Array]:
    """A global batch on the mesh, of which every process gives its own rows (`local_sequences`)."""
    sharding = NamedSharding(mesh, BATCH)
    if jax.process_count() == 1 or not batch:
        own = {name: np.asarray(value) for name, value in batch.items()}
        return {name: jax.make_array_from_process_local_data(sharding, value) for name, value in own.items()}
    given = len(next(iter(batch.values())))
    ways = mesh.shape["data"] * mesh.shape["fsdp"]
    blocks = {block for block, device in _row_blocks(ways, mesh) if device in mesh.local_devices}
    rows = given * ways // len(blocks)
    place = np.full(rows, -1)  # of a global row among those given
    place[local_sequences(rows, mesh)] = np.arange(given)

    def put(value: Any) -> jax.Array:
        value = np.asarray(value)

        def part(index: Any) -> np.ndarray:
            return value[place[index[0]]]

        return jax.make_array_from_callback((rows, *value.shape[1:]), sharding, part)

    return {name: put(value) for name, value in batch.items()}


def put_tree(tree: Any, shardings: Any) -> Any:
    """Host arrays that every process has, onto their shardings: each device takes its part, nothing is sent.

    With several processes the buffers are new ones, whatever `tree` holds.
    """
    if jax.process_count() == 1:
        return jax.device_put(tree, shardings)

    def put(leaf: Any, sharding: NamedSharding) -> jax.Array:
        leaf = np.asarray(leaf)
        return jax.make_array_from_callback(leaf.shape, sharding, lambda index: leaf[index].copy())

    return jax.tree.map(put, tree, shardings)


def host_copy(tree: Any) -> Any:
    """The arrays of a tree as numpy, whole; all processes must ask for it, where parts lie on other hosts."""

    def whole(leaf: Any) -> Any:
        if not isinstance(leaf, jax.Array) or leaf.is_fully_addressable or leaf.is_fully_replicated:
            return jax.device_get(leaf)
        assert isinstance(leaf.sharding, NamedSharding)  # state_shardings makes no others
        everywhere = NamedSharding(leaf.sharding.mesh, PartitionSpec())
        return jax.device_get(jax.jit(lambda array: array, out_shardings=everywhere)(leaf))

    return jax.tree.map(whole, tree)
