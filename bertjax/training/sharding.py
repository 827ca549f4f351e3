"""The mesh `data x fsdp x tensor`, and the table that lays parameters on it."""

from __future__ import annotations

import math
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from bertjax.training.config import AXES, MeshConfig
from bertjax.training.state import TrainState
from bertjax.training.tables import map_with_path, match, num_stacked
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


def make_mesh(config: MeshConfig) -> Mesh:
    """A mesh over the first devices that the sizes need. Auto axes: explicit ones, jax's default, break gathers."""
    devices = jax.devices()
    shape = config.shape(len(devices))
    return jax.make_mesh(shape, AXES, axis_types=(AxisType.Auto,) * 3, devices=devices[: math.prod(shape)])


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


def put_batch(batch: Batch, mesh: Mesh) -> dict[str, jax.Array]:
    """This process's rows of a global batch onto its devices."""
    sharding = NamedSharding(mesh, BATCH)
    return {name: jax.make_array_from_process_local_data(sharding, np.asarray(value)) for name, value in batch.items()}
