"""Several steps per dispatch: the same run, in groups that depend only on the number of the step."""

from __future__ import annotations

from collections.abc import Callable

import jax
import numpy as np
import optax
import pytest
from loop_lab import loop_settings

from bertjax.io.tree_paths import flatten_tree
from bertjax.objectives.mlm import Mlm
from bertjax.training.loop import steps_per_dispatch
from bertjax.training.settings import LoopSettings
from bertjax.training.sharding import put_batch
from bertjax.training.step import compile_train_step

QUICK = {"xla_backend_optimization_level": 0}


def sizes(config: LoopSettings, start: int = 0) -> list[int]:
    result = []
    while start + sum(result) < config.train.num_steps:
        result.append(steps_per_dispatch(config, start + sum(result)))
    return result


@pytest.mark.parametrize(
    ("marks", "expected"),
    [
        ({}, [4, 4, 4, 4, 4]),
        ({"log": 8}, [4, 4, 4, 4, 4]),
        ({"log": 6}, [4, 1, 1, 1, 1, 4, 4, 1, 1, 1, 1]),
        ({"evaluate": 10}, [4, 4, 1, 1, 1, 1, 4, 4]),
        ({"checkpoint": 2}, [1] * 20),
        ({"num_steps": 18}, [4, 4, 4, 4, 1, 1]),
        ({"profile": "6:8"}, [4, 1, 1, 1, 1, 4, 4, 4]),
        ({"profile": "5:8"}, [4, 4, 4, 4, 4]),
        ({"steps_per_dispatch": 1}, [1] * 20),
    ],
)
def test_a_group_ends_where_something_is_due(marks: dict, expected: list[int]) -> None:
    settings = {"num_steps": 20, "log": 20, "evaluate": 0, "checkpoint": 0, "steps_per_dispatch": 4}
    config = loop_settings(**{**settings, **marks})
    assert sizes(config) == expected
    ends = np.cumsum(expected).tolist()
    for number, end in enumerate(ends[:-1]):  # stopped there, and resumed with
        assert sizes(config, end) == expected[number + 1 :]


@pytest.mark.long
@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 2, 2)], ids=str)
def test_steps_at_once_are_the_steps_one_by_one(
    mesh_of: Callable, start_on: Callable, batch_of: Callable, objective: Mlm, shape: tuple
) -> None:
    """Weights, moments, cursor, and the metrics of every step."""
    mesh, optimizer = mesh_of(*shape), optax.adam(1e-3)
    settings = {"microbatches": 1, "seed": 0}
    with jax.set_mesh(mesh):
        batches = [put_batch(batch_of(cursor), mesh) for cursor in range(3)]
        state = start_on(mesh, optimizer)
        step = compile_train_step(mesh, objective, optimizer, **settings).compile(state, {}, batches[0], QUICK)
        expected = []
        for batch in batches:
            state, metrics = step(state, {}, batch)
            expected.append(jax.device_get(metrics))
        other = start_on(mesh, optimizer)
        steps = compile_train_step(mesh, objective, optimizer, multi_step=True, **settings)
        new_state, result = steps.compile(other, {}, batches, QUICK)(other, {}, batches)
    assert (int(new_state.step), int(new_state.cursor)) == (3, 3)
    for index, metrics in enumerate(expected):
        jax.tree.map(
            lambda local, alone, at=index: np.testing.assert_allclose(local[at], alone, rtol=1e-4, atol=1e-6),
            jax.device_get(result),
            metrics,
        )
    for (path, local), (_, alone) in zip(
        flatten_tree(new_state.params).items(), flatten_tree(state.params).items(), strict=True
    ):
        np.testing.assert_allclose(local, alone, rtol=0, atol=2e-5, err_msg=path)
        assert local.sharding == alone.sharding
