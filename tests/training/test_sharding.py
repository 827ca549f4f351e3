"""Sharding of parameters, moments and rows on the mesh."""

from __future__ import annotations

from collections.abc import Callable

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from bertjax.config.distributed import MeshConfig
from bertjax.errors import UserError
from bertjax.io.tree_paths import flatten_tree
from bertjax.training.sharding import make_mesh, put_batch, state_shardings
from bertjax.training.state import TrainState


def specs(state: TrainState, mesh: jax.sharding.Mesh) -> dict[str, PartitionSpec]:
    return {path: sharding.spec for path, sharding in flatten_tree(state_shardings(state, mesh).params).items()}


def test_meshes_take_the_first_devices(mesh_of: Callable) -> None:
    assert dict(mesh_of(2, 2, 2).shape) == {"data": 2, "fsdp": 2, "tensor": 2}
    assert mesh_of(1).devices.ravel().tolist() == jax.devices()[:1]
    assert make_mesh(MeshConfig()).size == 8
    with pytest.raises(UserError, match="needs 16 devices, but there are 8"):
        make_mesh(MeshConfig(16))


def test_kernels_lie_over_fsdp_and_tensor(abstract: TrainState, mesh_of: Callable) -> None:
    result = specs(abstract, mesh_of(2, 2, 2))
    layers = "encoder/layers"
    column, row = PartitionSpec(None, "fsdp", "tensor"), PartitionSpec(None, "tensor", "fsdp")
    assert result[f"{layers}/attention/query/kernel"] == column
    assert result[f"{layers}/attention/query/bias"] == PartitionSpec(None, "tensor")
    assert result[f"{layers}/attention/output/kernel"] == row
    assert result[f"{layers}/feed_forward/intermediate/kernel"] == column
    assert result[f"{layers}/feed_forward/output/kernel"] == row
    assert result["encoder/embeddings/word_embeddings/embedding"] == PartitionSpec(("tensor", "fsdp"), None)
    assert result["pooler/dense/kernel"] == PartitionSpec("fsdp", None)
    assert result["mlm_head/bias"] == PartitionSpec("tensor")
    for path in (f"{layers}/attention/norm/scale", "encoder/embeddings/position_embeddings/embedding"):
        assert not any(result[path])


def test_moments_lie_as_their_parameters(abstract: TrainState, mesh_of: Callable) -> None:
    laid = state_shardings(abstract, mesh_of(2, 2, 2))
    adam = laid.opt_state[0]
    assert flatten_tree(adam.mu).items() == flatten_tree(adam.nu).items() == flatten_tree(laid.params).items()
    assert laid.step.spec == laid.cursor.spec == adam.count.spec == PartitionSpec()


def test_an_axis_that_does_not_divide_is_replicated(abstract: TrainState, mesh_of: Callable) -> None:
    path = "encoder/embeddings/word_embeddings/embedding"
    assert specs(abstract, mesh_of(1, 8, 1))[path] == PartitionSpec(("tensor", "fsdp"), None)
    assert specs(abstract, mesh_of(1, 5, 1))[path] == PartitionSpec(None, None)  # 64 rows over five


def test_rows_are_dealt_over_data_and_fsdp(mesh_of: Callable, batch_of: Callable) -> None:
    placed = put_batch(batch_of(0), mesh_of(2, 2, 2))
    shards = placed["input_ids"].addressable_shards
    assert {shard.data.shape for shard in shards} == {(4, 24)} and len(shards) == 8
    np.testing.assert_array_equal(placed["input_ids"], batch_of(0)["input_ids"])
    assert placed["example_ids"].dtype == np.uint32
