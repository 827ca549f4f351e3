"""The average of the weights: its rule, its storage, and that it does not change the run."""

from __future__ import annotations

from collections.abc import Callable

import jax
import numpy as np
import optax
import pytest
from descent import SCHEDULE, gradients, jit, nested, start
from jax.sharding import Mesh, PartitionSpec

from bertjax.io.tree_paths import flatten_tree
from bertjax.training.optimizer import Optimizer, ema_params, reset_ema
from bertjax.training.sharding import state_shardings
from bertjax.training.state import TrainState, new_state
from bertjax.training.step import init_state
from bertjax.training.transforms import UncorrectedAdamState
from bertjax.types import Params


def optimizer(decay: float | None, name: str = "adamw") -> optax.GradientTransformation:
    return Optimizer(name=name, ema_decay=decay).make(SCHEDULE.rate, nested(start()))


@pytest.mark.parametrize("decay", [0.3, 0.999])
def test_the_average_is_that_of_the_weights_after_each_update(decay: float) -> None:
    """min(decay, (1 + t) / (10 + t)): 0.3 limits from the third step on, 0.999 never in five."""
    chain = optimizer(decay)
    params, state = nested(start()), chain.init(nested(start()))
    expected = jax.tree.map(np.float64, nested(start()))
    update = jit(chain.update)
    for step, grads in enumerate(gradients(), start=1):
        updates, state = update(nested(grads), state, params)
        params = optax.apply_updates(params, updates)
        stored = min(decay, (1 + step) / (10 + step))
        expected = jax.tree.map(lambda old, new, d=stored: d * old + (1 - d) * np.float64(new), expected, params)
    result = ema_params(state)
    jax.tree.map(lambda ours, theirs: np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6), result, expected)
    assert {leaf.dtype for leaf in jax.tree.leaves(result)} == {np.dtype("float32")}


def test_a_run_without_it_has_the_state_that_it_always_had() -> None:
    """Checkpoints older than the average can be restored: leaves are named by their position."""
    state = optimizer(None).init(nested(start()))
    assert ema_params(state) is None and reset_ema(state, {}) is state
    assert [type(part) for part in state] == [
        optax.EmptyState,
        UncorrectedAdamState,
        optax.EmptyState,
        optax.EmptyState,
        optax.ScaleByScheduleState,
    ]
    stored = optimizer(0.9).init(nested(start()))
    assert jax.tree.structure(stored[:-1]) == jax.tree.structure(state)
    assert ema_params({}) is None and ema_params(()) is None


@pytest.mark.long
@pytest.mark.parametrize(
    "name", ["stable_adamw", *(pytest.param(name, marks=pytest.mark.weekly) for name in ("lamb", "muon"))]
)
def test_every_optimizer_is_the_same_on_eight_devices(name: str, fresh_params: Params, mesh_of: Callable) -> None:
    """Ratios and means over a tensor are those of the whole tensor, and an average is sharded like its weights."""
    rng = np.random.default_rng(3)
    grads = [jax.tree.map(lambda leaf: np.float32(rng.normal(size=leaf.shape)), fresh_params) for _ in range(3)]
    config = Optimizer(name=name, ema_decay=0.5, learning_rate=0.01, weight_decay=0.1)
    made = config.make(lambda step: 0.01, fresh_params)

    def updated(state: TrainState, grads: Params) -> TrainState:
        updates, opt_state = made.update(grads, state.opt_state, state.params)
        return state._replace(params=optax.apply_updates(state.params, updates), opt_state=opt_state)

    def train(mesh: Mesh) -> TrainState:
        state = new_state(fresh_params, {}, made)
        laid = state_shardings(state, mesh)
        update = jit(updated, in_shardings=(laid, laid.params), out_shardings=laid, donate_argnums=0)
        state = jax.device_put(state, laid, may_alias=False)
        for gradient in grads:
            state = update(state, jax.device_put(gradient, laid.params))
        return state

    alone, spread = (train(mesh_of(*shape)) for shape in ((1,), (2, 2, 2)))
    moved = jax.tree.map(lambda after, before: float(np.abs(after - before).max()), alone.params, fresh_params)
    assert min(jax.tree.leaves(moved)) > 5e-4
    averages = [ema_params(jax.device_get(state).opt_state) for state in (alone, spread)]
    for one, other in ((alone.params, spread.params), averages):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=2e-6), one, other)
    query = ema_params(spread.opt_state)["encoder"]["layers"]["attention"]["query"]["kernel"]
    assert {shard.data.shape for shard in query.addressable_shards} == {(2, 16, 16)}


def test_moments_of_every_optimizer_lie_as_their_parameters(tiny_params: Params, mesh_of: Callable) -> None:
    kernel = "encoder/layers/attention/query/kernel"
    for name in ("lamb", "stable_adamw", "muon"):
        made = Optimizer(name=name).make(lambda step: 1e-3, tiny_params)
        state = jax.eval_shape(made.init, tiny_params)
        inner = state_shardings(state, mesh_of(2, 2, 2))[1]
        inner = inner[0].inner_state[0] if name == "muon" else inner
        assert flatten_tree(inner.mu)[kernel].spec == PartitionSpec(None, "fsdp", "tensor")


@pytest.mark.long
def test_a_fresh_average_has_buffers_of_its_own(objective: object, tiny_params: Params, mesh_of: Callable) -> None:
    """Weights and average are both donated, and a shared buffer could be donated only once."""
    made = Optimizer(ema_decay=0.9).make(lambda step: 1e-3, tiny_params)
    mesh = mesh_of(1)
    with jax.set_mesh(mesh):
        state = init_state(mesh, objective, made, seed=0)
        provided = jax.tree.map(lambda leaf: np.asarray(leaf) + 1.0, state.params)
        begun = reset_ema(state.opt_state, provided)

    def indices(tree: Params) -> set[int]:
        return {leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(tree)}

    assert not indices(state.params) & indices(ema_params(state.opt_state))
    assert not indices(state.params) & indices(ema_params(made.init(state.params)))
    jax.tree.map(np.testing.assert_array_equal, state.params, ema_params(state.opt_state))
    jax.tree.map(np.testing.assert_array_equal, provided, ema_params(begun))
    assert jax.tree.structure(begun) == jax.tree.structure(state.opt_state)
