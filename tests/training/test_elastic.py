"""Another number of devices or hosts: states restore bit by bit, losses agree up to rounding, batches row by row."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, Mesh

from bertjax.checkpoint.manager import Checkpoints
from bertjax.checkpoint.settings import Checkpointing
from bertjax.config.distributed import AXES
from bertjax.config.model import EncoderConfig
from bertjax.objectives.masking.settings import Masking
from bertjax.objectives.mlm import Mlm
from bertjax.training.sharding import host_copy, local_sequences, put_batch, put_tree, state_shardings
from bertjax.training.state import TrainState, new_state
from bertjax.training.step import compile_train_step, init_state
from bertjax.types import Params, Vocabulary

QUICK = {"xla_backend_optimization_level": 0}
MESHES = [(1, 1, 1)]
MESHES += [tuple(size if axis == local else 1 for axis in range(3)) for size in (2, 4, 8) for local in range(3)]
SAVED_ON = [(1, 1, 1), *(pytest.param(mesh, marks=pytest.mark.weekly) for mesh in ((2, 1, 1), (1, 4, 1), (2, 2, 2)))]


def abstract_on(state: TrainState, mesh: Mesh) -> TrainState:
    laid = state_shardings(state, mesh)
    return jax.tree.map(lambda leaf, local: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=local), state, laid)


@pytest.mark.parametrize("saved_on", SAVED_ON, ids=str)
def test_a_state_comes_back_bit_by_bit_on_every_mesh(
    fresh_params: Params, mesh_of: Callable[..., Mesh], tmp_path: Path, saved_on: tuple[int, ...]
) -> None:
    """P17: saved on 1, 2, 4 and 8 devices, restored on 1, 2, 4 and 8, along each axis; with a carry of rows."""
    carry = {"memory": jnp.arange(32.0).reshape(16, 2)}
    stored = {name: fresh_params["encoder"][name] for name in ("embeddings", "layers")}
    state = jax.device_get(new_state({"encoder": stored}, carry, optax.sgd(1.0)))
    laid = put_tree(state, state_shardings(state, mesh_of(*saved_on)))
    checkpoints = Checkpoints(tmp_path, Checkpointing(keep=1))
    checkpoints.save(1, laid, {})
    expected = jax.tree.leaves(state)
    for shape in MESHES:
        target = abstract_on(state, mesh_of(*shape))
        result = jax.tree.leaves(checkpoints.restore(target).state)
        assert all(leaf.sharding == local.sharding for leaf, local in zip(result, jax.tree.leaves(target), strict=True))
        for leaf, same in zip(jax.tree.leaves(host_copy(result)), expected, strict=True):
            assert leaf.dtype == same.dtype and leaf.tobytes() == same.tobytes()
    checkpoints.close()


@pytest.mark.parametrize(
    "shape", [(8, 1, 1), (1, 8, 1), (4, 2, 1), (2, 2, 2), (4, 1, 2), (1, 2, 4), (1, 1, 8)], ids=str
)
@pytest.mark.parametrize("hosts", [1, 2, 4])
def test_hosts_read_every_row_once_and_only_their_own(
    mesh_of: Callable[..., Mesh], shape: tuple[int, ...], hosts: int
) -> None:
    """P19: the rows of all hosts together are the batch; hosts that `tensor` spans share rows."""
    mesh, rows = mesh_of(*shape), np.arange(16)
    parts = np.split(mesh.devices.ravel(), hosts)
    recorded = [rows[local_sequences(16, mesh, part.tolist())].tolist() for part in parts]
    assert sorted({row for each in recorded for row in each}) == rows.tolist()
    per_host = max(16 // hosts, 16 // (shape[0] * shape[1]))
    assert [len(each) for each in recorded] == [per_host] * hosts
    placed = put_batch({"row": rows}, mesh)["row"]
    for part, local in zip(parts, recorded, strict=True):
        held = {int(row) for shard in placed.addressable_shards if shard.device in part for row in shard.data}
        assert held == set(local)


def test_rows_need_not_follow_each_other() -> None:
    """A mesh laid out along a torus assigns them in another order."""
    mesh = Mesh(
        np.array(jax.devices())[[0, 4, 1, 5, 2, 6, 3, 7]].reshape(8, 1, 1), AXES, axis_types=(AxisType.Auto,) * 3
    )
    assert local_sequences(16, mesh, jax.devices()[:4]).tolist() == [0, 1, 4, 5, 8, 9, 12, 13]
    assert local_sequences(16, mesh, jax.devices()[4:]).tolist() == [2, 3, 6, 7, 10, 11, 14, 15]
    assert local_sequences(16, mesh) == slice(0, 16)


@pytest.mark.long
@pytest.mark.parametrize(
    ("compute", "maximum", "shapes"),
    [
        ("float32", 1e-5, [(2, 2, 2)]),
        pytest.param("float32", 1e-5, [(1, 4, 1), (8, 1, 1)], marks=pytest.mark.weekly),
        pytest.param("bfloat16", 1e-3, [(8, 1, 1), (2, 2, 2)], marks=pytest.mark.weekly),
    ],
    ids=["float32", "float32, further", "bfloat16"],
)
def test_a_hundred_steps_on_any_number_of_devices(
    tiny_model: EncoderConfig,
    vocabulary: Vocabulary,
    batch_of: Callable,
    mesh_of: Callable[..., Mesh],
    compute: str,
    maximum: float,
    shapes: list[tuple[int, ...]],
) -> None:
    """P18, with dropout: losses within `maximum` of those of one device, and float32 weights within 1e-4."""
    model = dataclasses.replace(tiny_model, hidden_dropout=0.1, attention_dropout=0.1, compute_dtype=compute)
    objective = Mlm(Masking(mask_rate=0.3, max_predictions=8), example_format="nsp_pairs").build(
        {"model": model}, vocabulary
    )
    optimizer = optax.adamw(1e-3)

    def run(shape: tuple[int, ...]) -> tuple[np.ndarray, Params]:
        mesh = mesh_of(*shape)
        with jax.set_mesh(mesh):
            state = init_state(mesh, objective, optimizer, seed=0)
            step = compile_train_step(mesh, objective, optimizer, microbatches=1, seed=0)
            step = step.compile(state, {}, put_batch(batch_of(0), mesh), QUICK)
            losses = []
            for cursor in range(100):
                state, metrics = step(state, {}, put_batch(batch_of(cursor), mesh))
                losses.append(float(metrics["loss"]))
        return np.array(losses), host_copy(state.params)

    alone, weights = run((1, 1, 1))
    assert alone[-1] < alone[0]
    for shape in shapes:
        losses, moved = run(shape)
        assert np.max(np.abs(losses - alone) / alone) <= maximum, shape
        if compute == "float32":
            drift = jax.tree.map(lambda here, there: np.abs(here - there).max(), moved, weights)
            assert max(jax.tree.leaves(drift)) <= 1e-4, shape
