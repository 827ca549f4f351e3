"""Moments in bfloat16: unbiased rounding, moves where rounding to nearest would not, the same on every mesh."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from descent import SCHEDULE, gradients, jit, nested, start
from jax.sharding import Mesh

from bertjax.checkpoint.manager import Checkpoints
from bertjax.checkpoint.settings import Checkpointing
from bertjax.errors import UserError
from bertjax.training.flops import bytes_per_device
from bertjax.training.optimizer import Optimizer
from bertjax.training.sharding import state_shardings
from bertjax.training.state import new_state
from bertjax.training.transforms import scale_by_uncorrected_adam, stochastic_round, with_bf16_moments
from bertjax.types import Params

HALF = Optimizer(moments_dtype="bfloat16")
CONFIGS = {
    "adamw": HALF,
    "adamw, corrected": dataclasses.replace(HALF, bias_correction=True),
    "lamb": dataclasses.replace(HALF, name="lamb"),
    "stable_adamw": dataclasses.replace(HALF, name="stable_adamw", learning_rate=0.1, bias_correction=True),
    "muon": dataclasses.replace(HALF, name="muon", bias_correction=True, clip_norm=0.0),
}


def draw(value: float, count: int = 1 << 16) -> np.ndarray:
    bits = jax.random.bits(jax.random.key(0), (count,))
    return np.asarray(jit(stochastic_round)(jnp.full(count, value, jnp.float32), bits).astype(jnp.float32))


@pytest.mark.parametrize("value", [1.0 + 2**-9, 1.0 + 2**-16, -3.1415927, 1e-12, 2.0 - 2**-14])
def test_it_is_one_of_two_neighbors_and_right_on_average(value: float) -> None:
    cut = np.float32(value).view(np.uint32) & np.uint32(0xFFFF0000)
    neighbors = {float(bits.view(np.float32)) for bits in (cut, cut + np.uint32(0x10000))}
    result = draw(value)
    assert set(result.tolist()) == neighbors
    gap = max(neighbors) - min(neighbors)
    assert abs(result.mean(dtype=np.float64) - np.float32(value)) < 4 * gap / 2 / len(result) ** 0.5


def test_what_bfloat16_can_say_stays_and_no_number_stays_none() -> None:
    for value in (0.0, 1.0, -0.75, float("inf"), -float("inf")):
        assert set(draw(value, 256)) == {value}
    assert np.isnan(draw(float("nan"), 256)).all()
    tricky = np.array([0x7FFFFFFF], np.uint32).view(np.float32)  # a NaN that would carry over into -0
    assert np.isnan(
        np.asarray(stochastic_round(jnp.asarray(tricky), jnp.full(1, 0xFFFF, jnp.uint32)).astype(jnp.float32))
    )


def squares(dtype: str, grads: Callable[[int], float], steps: int, count: int = 512) -> np.ndarray:
    """Returns the second moments of `count` parameters with equal gradients; "nearest" rounds as a cast does."""
    params = {"dense": {"kernel": jnp.zeros(count)}}
    plain = scale_by_uncorrected_adam(0.9, 0.999, 1e-6)
    optimizer = with_bf16_moments(plain, seed=0) if dtype == "bfloat16" else plain

    def update(state: Any, size: Any) -> tuple[Any, None]:
        _, state = optimizer.update({"dense": {"kernel": jnp.full(count, size)}}, state, params)
        if dtype == "nearest":
            state = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16).astype(jnp.float32), state)
        return state, None

    sizes = jnp.asarray([grads(step) for step in range(steps)], jnp.float32)
    state, _ = jit(lambda: jax.lax.scan(update, optimizer.init(params), sizes))()
    return np.asarray((state.inner if dtype == "bfloat16" else state).nu["dense"]["kernel"].astype(jnp.float32))


@pytest.mark.long
def test_the_second_moment_moves_where_the_nearest_number_stands_still() -> None:
    """b2 = 0.999: a large gradient once, then small ones for two of its lifetimes."""

    def grads(step: int) -> float:
        return 30.0 if step == 0 else 0.1

    exact, result, nearest = (squares(dtype, grads, 2000) for dtype in ("float32", "bfloat16", "nearest"))
    assert nearest.min() > 5 * exact[0]  # the premise: it has not moved since the first step
    assert abs(result.mean() / exact[0] - 1) < 0.02
    assert result.std() / exact[0] < 0.12  # each one is also close
    exact, result, nearest = (squares(dtype, lambda _: 1.0, 3000) for dtype in ("float32", "bfloat16", "nearest"))
    assert nearest.max() < 0.5 * exact[0]  # nor does it rise until the end
    assert abs(result.mean() / exact[0] - 1) < 0.02 and result.std() / exact[0] < 0.12


@pytest.mark.long
@pytest.mark.parametrize(
    "config",
    [
        pytest.param(config, id=name, marks=[] if name in ("adamw", "muon") else pytest.mark.weekly)
        for name, config in CONFIGS.items()
    ],
)
def test_every_optimizer_keeps_them_small_and_moves_almost_as_in_float32(config: Optimizer) -> None:
    result = []
    for each in (config, dataclasses.replace(config, moments_dtype="float32")):
        params = nested(start())
        optimizer = each.make(SCHEDULE.rate, params)
        state, update = optimizer.init(params), jit(optimizer.update)
        types = {leaf.dtype.name for leaf in jax.tree.leaves(state) if leaf.ndim and leaf.dtype != jnp.int32}
        for grads in gradients():
            before = state
            updates, state = update(nested(grads), state, params)
            params = optax.apply_updates(params, updates)
            assert [leaf.dtype for leaf in jax.tree.leaves(state)] == [leaf.dtype for leaf in jax.tree.leaves(before)]
        result.append((params, types - {"float32"} if config.name == "muon" else types))  # separate coefficients
    (half, half_types), (whole, whole_types) = result
    assert half_types == {"bfloat16"} and whole_types <= {"float32"}
    moved = jax.tree.map(lambda new, old: new - old, whole, nested(start()))
    for one, other, way in zip(*map(jax.tree.leaves, (half, whole, moved)), strict=True):
        assert np.linalg.norm(one - other) < 0.02 * np.linalg.norm(way)
    assert any((one != other).any() for one, other in zip(*map(jax.tree.leaves, (half, whole)), strict=True))


@pytest.mark.long
def test_they_are_the_same_on_every_mesh_and_lie_as_their_parameters_do(
    fresh_params: Params, mesh_of: Callable[..., Mesh]
) -> None:
    """P20, for random rounding: the same gradients give the same bits (clipping adds in another order)."""
    optimizer = dataclasses.replace(HALF, clip_norm=0.0).make(lambda step: 0.1, fresh_params, seed=3)
    grads = jax.tree.map(lambda leaf: np.full(leaf.shape, 0.3, np.float32), fresh_params)
    result = []
    for sizes in ((1, 1, 1), (2, 2, 2)):
        mesh = mesh_of(*sizes)
        state = jax.device_get(new_state(fresh_params, {}, optimizer))
        laid = state_shardings(state, mesh)
        state = jax.device_put(state, laid)
        update = jit(lambda g, s: optimizer.update(g, s.opt_state, s.params)[1], out_shardings=laid.opt_state)
        result.append(jax.device_get(update(jax.device_put(grads, laid.params), state)))
        assert jax.tree.map(lambda leaf: leaf.spec, laid.opt_state[1].inner.nu) == jax.tree.map(
            lambda leaf: leaf.spec, laid.params
        )
    jax.tree.map(np.testing.assert_array_equal, *result)
    kernel = np.unique(result[0][1].inner.nu["encoder"]["layers"]["feed_forward"]["output"]["kernel"])
    assert len(kernel) == 2  # rounded both ways


@pytest.mark.long
def test_another_seed_rounds_in_another_way() -> None:
    params = {"dense": {"kernel": jnp.zeros((32, 32))}}
    grads = {"dense": {"kernel": jnp.full((32, 32), 0.3)}}

    def moment(seed: int) -> np.ndarray:
        optimizer = HALF.make(lambda step: 0.1, params, seed=seed)
        state = jit(lambda: optimizer.update(grads, optimizer.init(params), params)[1])()
        return np.asarray(state[1].inner.nu["dense"]["kernel"])

    assert (moment(0) == moment(0)).all() and (moment(0) != moment(1)).any()


@pytest.mark.long
def test_they_take_half_of_the_memory(fresh_params: Params, mesh_of: Callable[..., Mesh]) -> None:
    sizes = {}
    for dtype in ("float32", "bfloat16"):
        optimizer = Optimizer(moments_dtype=dtype).make(lambda step: 0.1, fresh_params)
        state = jax.eval_shape(lambda optimizer=optimizer: new_state(fresh_params, {}, optimizer))
        sizes[dtype] = bytes_per_device(state, mesh_of(1, 2, 1))
    weights = bytes_per_device(jax.eval_shape(lambda: new_state(fresh_params, {}, optax.identity())), mesh_of(1, 2, 1))
    assert sizes["bfloat16"] - sizes["float32"] == pytest.approx(-weights, abs=64)


@pytest.mark.long
def test_a_checkpoint_holds_them_and_what_follows_is_the_same(tmp_path: Path) -> None:
    """P1, a short version (whole runs: tests/commands/test_moments_run.py): bit-exact, in another process as well."""
    params, config = nested(start()), CONFIGS["muon"]  # masks, a moment, and Adam's two
    optimizer = config.make(SCHEDULE.rate, params)
    update = jit(optimizer.update)
    states = [optimizer.init(params)]
    for grads in gradients():
        states.append(update(nested(grads), states[-1], params)[1])
    checkpoints = Checkpoints(tmp_path, Checkpointing(keep=1))
    checkpoints.save(2, states[2], {})
    abstract = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), states[2])
    restored = checkpoints.restore(abstract)
    checkpoints.close()
    assert restored is not None
    _, after = update(nested(list(gradients())[2]), restored.state, params)
    for one, other in zip(jax.tree.leaves(after), jax.tree.leaves(states[3]), strict=True):
        assert one.dtype == other.dtype and np.asarray(one).tobytes() == np.asarray(other).tobytes()


def test_other_types_are_refused() -> None:
    with pytest.raises(UserError, match=r"optimizer\.moments_dtype.*float16"):
        Optimizer(moments_dtype="float16")
