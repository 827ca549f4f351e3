"""The average of the weights: its rule, where it is kept, and that the run beside it is the run without it."""

from __future__ import annotations

from collections.abc import Callable

import jax
import numpy as np
import optax
import pytest
from descent import SCHEDULE, gradients, jit, nested, start

from bertjax.training.averages import average_of, restart_average
from bertjax.training.config import OptimizerConfig
from bertjax.training.optimizers import UncorrectedAdamState, make_optimizer
from bertjax.training.schedules import make_schedule
from bertjax.training.sharding import state_shardings
from bertjax.training.step import init_state
from bertjax.training.tables import leaf_paths
from bertjax.types import Params


def optimizer(decay: float | None, name: str = "adamw") -> optax.GradientTransformation:
    return make_optimizer(OptimizerConfig(name=name, ema_decay=decay), make_schedule(SCHEDULE), nested(start()))


@pytest.mark.parametrize("decay", [0.3, 0.999])
def test_the_average_is_that_of_the_weights_after_each_update(decay: float) -> None:
    """min(decay, (1 + t) / (10 + t)): 0.3 binds from the third update on, 0.999 never in five."""
    chain = optimizer(decay)
    params, state = nested(start()), chain.init(nested(start()))
    expected = jax.tree.map(np.float64, nested(start()))
    update = jit(chain.update)
    for step, grads in enumerate(gradients(), start=1):
        updates, state = update(nested(grads), state, params)
        params = optax.apply_updates(params, updates)
        kept = min(decay, (1 + step) / (10 + step))
        expected = jax.tree.map(lambda old, new, d=kept: d * old + (1 - d) * np.float64(new), expected, params)
    found = average_of(state)
    jax.tree.map(lambda ours, theirs: np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6), found, expected)
    assert {leaf.dtype for leaf in jax.tree.leaves(found)} == {np.dtype("float32")}


def test_a_run_without_it_has_the_state_that_it_always_had() -> None:
    """So checkpoints that are older than the average restore: leaves are named by their place."""
    state = optimizer(None).init(nested(start()))
    assert average_of(state) is None and restart_average(state, {}) is state
    assert [type(part) for part in state] == [
        optax.EmptyState,
        UncorrectedAdamState,
        optax.EmptyState,
        optax.EmptyState,
        optax.ScaleByScheduleState,
    ]
    kept = optimizer(0.9).init(nested(start()))
    assert jax.tree.structure(kept[:-1]) == jax.tree.structure(state)
    assert average_of({}) is None and average_of(()) is None


@pytest.mark.parametrize("name", ["adamw", "lamb", "stable_adamw", "muon"])
def test_every_optimizer_is_the_same_on_eight_devices(
    name: str, tiny_params: Params, run_steps: Callable, mesh_of: Callable
) -> None:
    """Ratios and means over a tensor are those of the whole tensor, and its average lies where it lies."""
    config = OptimizerConfig(name=name, ema_decay=0.5, learning_rate=1e-3, bias_correction=name == "muon")
    made = make_optimizer(config, lambda step: 1e-3, tiny_params)
    (alone, losses, _), (spread, others, _) = (run_steps(mesh_of(*shape), made, steps=3) for shape in ((1,), (2, 2, 2)))
    np.testing.assert_allclose(others, losses, rtol=0, atol=2e-5)
    assert losses[2] < losses[0]
    averages = [dict(leaf_paths(average_of(state.opt_state))) for state in (alone, spread)]
    for path, leaf in leaf_paths(spread.params):
        assert averages[1][path].sharding == leaf.sharding
        if path != "encoder/layers/attention/key/bias":  # without a gradient: nothing but rounding for Adam to blow up
            np.testing.assert_allclose(averages[1][path], averages[0][path], rtol=0, atol=3e-4, err_msg=path)
    query = spread.params["encoder"]["layers"]["attention"]["query"]["kernel"]
    assert {shard.data.shape for shard in query.addressable_shards} == {(2, 16, 16)}


def test_moments_of_every_optimizer_lie_as_their_parameters(tiny_params: Params, mesh_of: Callable) -> None:
    kernel = "encoder/layers/attention/query/kernel"
    for name in ("lamb", "stable_adamw", "muon"):
        made = make_optimizer(OptimizerConfig(name=name), lambda step: 1e-3, tiny_params)
        state = jax.eval_shape(made.init, tiny_params)
        inner = state_shardings(state, mesh_of(2, 2, 2))[1]
        inner = inner[0].inner_state[0] if name == "muon" else inner
        assert dict(leaf_paths(inner.mu))[kernel].spec == (None, "fsdp", "tensor")


def test_a_fresh_average_has_buffers_of_its_own(objective: object, tiny_params: Params, mesh_of: Callable) -> None:
    """Weights and average are both donated: one buffer for both could be given away once only."""
    made = make_optimizer(OptimizerConfig(ema_decay=0.9), lambda step: 1e-3, tiny_params)
    mesh = mesh_of(1)
    with jax.set_mesh(mesh):
        state = init_state(mesh, objective, made, seed=0)
        given = jax.tree.map(lambda leaf: np.asarray(leaf) + 1.0, state.params)
        begun = restart_average(state.opt_state, given)

    def places(tree: Params) -> set[int]:
        return {leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(tree)}

    assert not places(state.params) & places(average_of(state.opt_state))
    jax.tree.map(np.testing.assert_array_equal, state.params, average_of(state.opt_state))
    jax.tree.map(np.testing.assert_array_equal, given, average_of(begun))
    assert jax.tree.structure(begun) == jax.tree.structure(state.opt_state)
