"""The training step: the same on every mesh and for any number of microbatches, compiled once, exact in its means."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from bertjax.io.tree_paths import flatten_tree
from bertjax.objectives.base import StepInputs
from bertjax.objectives.mlm import Mlm
from bertjax.training.optimizer import Optimizer
from bertjax.training.sharding import put_batch
from bertjax.training.state import TrainState, new_state, purpose_key
from bertjax.training.step import compile_eval_step, compile_train_step, eval_step, init_state, weighted_loss
from bertjax.types import Params, Sum

QUICK = {"xla_backend_optimization_level": 0}  # compilation dominates
jit = functools.partial(jax.jit, compiler_options=QUICK)
MESHES = [
    pytest.param((8, 1, 1), marks=pytest.mark.weekly),
    pytest.param((1, 8, 1), marks=pytest.mark.weekly),
    (2, 2, 2),
]


@pytest.fixture(scope="module")
def adamw(tiny_params: Params) -> optax.GradientTransformation:
    return Optimizer().make(lambda step: 1e-3, tiny_params)


@pytest.fixture(scope="module")
def one_device(run_steps: Callable, mesh_of: Callable, adamw: optax.GradientTransformation) -> tuple:
    """Four steps of AdamW on one device."""
    return run_steps(mesh_of(1), adamw, steps=4, plain=True)


@pytest.fixture(scope="module")
def reference(objective: Mlm, fresh_params: Params, batch_of: Callable) -> tuple[float, Params]:
    """Returns loss and gradient of the first batch, computed without the step."""

    @jit
    @jax.value_and_grad
    def loss(params: Params) -> jax.Array:
        batch = {name: jnp.asarray(value) for name, value in batch_of(0).items()}
        batch = objective.corrupt(batch, purpose_key(0, "corrupt"), jnp.int32(0))
        sums, _ = objective.loss(params, StepInputs({}, {}), batch, jax.random.key(9), train=True)
        return sums["mlm"].value / batch["masked_weights"].sum() + sums["pair"].value / 16

    return loss(fresh_params)


@pytest.mark.parametrize("shape", MESHES, ids=str)
def test_every_mesh_sees_the_same_losses(
    run_steps: Callable, mesh_of: Callable, adamw: optax.GradientTransformation, one_device: tuple, shape: tuple
) -> None:
    state, losses, _ = run_steps(mesh_of(*shape), adamw, steps=4)
    np.testing.assert_allclose(losses, one_device[1], rtol=0, atol=1e-5)
    query = state.params["encoder"]["layers"]["attention"]["query"]["kernel"]
    local = {shard.data.shape for shard in query.addressable_shards}
    assert local == {(2, 32 // shape[1], 32 // shape[2])}
    moments = state.opt_state[1].mu["encoder"]["layers"]["attention"]["query"]["kernel"]
    assert moments.sharding == query.sharding


def test_the_step_is_compiled_once_counts_and_learns(one_device: tuple, reference: tuple, fresh_params: Params) -> None:
    state, losses, step = one_device
    assert step.jitted._cache_size() == 1
    assert (int(state.step), int(state.cursor)) == (4, 4)
    np.testing.assert_allclose(losses[0], reference[0], rtol=1e-6)
    moved = jax.tree.map(lambda after, before: np.abs(after - before).max(), state.params, fresh_params)
    still = {path for path, distance in flatten_tree(moved).items() if distance < 1e-4}
    assert still == {"encoder/layers/attention/key/bias"}  # a softmax does not depend on it


@pytest.mark.parametrize("seed", [0, 7, -1, 2**31, 2**40 + 5])
def test_a_seed_that_is_an_input_draws_the_same_bits(seed: int, mesh_of: Callable, objective: Mlm) -> None:
    step = compile_train_step(mesh_of(1), objective, optax.sgd(1.0), microbatches=1, seed=seed)
    result = jit(lambda base: jax.random.key_data(purpose_key(base, "dropout")))(step.seed)
    np.testing.assert_array_equal(result, jax.random.key_data(purpose_key(seed, "dropout")))


def test_seeds_share_a_program(
    one_device: tuple, mesh_of: Callable, start_on: Callable, batch_of: Callable, adamw: optax.GradientTransformation
) -> None:
    mesh, losses, step = mesh_of(1), *one_device[1:]
    result = {}
    for seed in (0, 7):
        with jax.set_mesh(mesh):
            local = dataclasses.replace(step, seed=np.int32(seed))
            result[seed] = float(local(start_on(mesh, adamw), {}, put_batch(batch_of(0), mesh))[1]["loss"])
    assert result[0] == losses[0] != result[7]
    assert step.jitted._cache_size() == 1


@pytest.mark.parametrize("unroll", [1, pytest.param(2, marks=pytest.mark.long)], ids=["scan", "unrolled"])
@pytest.mark.parametrize(
    ("shape", "microbatches"),
    [
        ((1, 1, 1), 4),
        pytest.param((2, 2, 2), 4, marks=pytest.mark.long),
        pytest.param((8, 1, 1), 2, marks=pytest.mark.weekly),
    ],
    ids=str,
)
def test_microbatches_on_any_mesh_add_up_to_the_gradient_of_the_whole_batch(
    run_steps: Callable,
    mesh_of: Callable,
    reference: tuple,
    fresh_params: Params,
    shape: tuple,
    microbatches: int,
    unroll: int,
) -> None:
    """Each of the four masks another number of tokens: a mean of their means would differ.

    Plain descent shows the gradient itself: Adam would mask a wrong scale, and amplify rounding near zero.
    """
    state, losses, _ = run_steps(mesh_of(*shape), optax.sgd(1.0), microbatches=microbatches, unroll=unroll)
    np.testing.assert_allclose(losses, [reference[0]], rtol=1e-6)
    jax.tree.map(
        lambda after, before, grad: np.testing.assert_allclose(after, before - grad, rtol=0, atol=3e-6),
        state.params,
        fresh_params,
        reference[1],
    )


def test_microbatches_mask_unequal_numbers(objective: Mlm, batch_of: Callable) -> None:
    """The premise of the tests above."""
    hidden = jit(objective.corrupt)(batch_of(0), purpose_key(0, "corrupt"), np.int32(0))
    counts = np.asarray(hidden["masked_weights"]).reshape(4, 4, -1).sum((0, 2))
    assert len(set(counts.tolist())) > 1


def test_the_state_is_donated_and_metrics_are_sums(
    mesh_of: Callable, start_on: Callable, batch_of: Callable, one_device: tuple, adamw: optax.GradientTransformation
) -> None:
    mesh, step = mesh_of(1), one_device[2]
    with jax.set_mesh(mesh):
        before = start_on(mesh, adamw)
        after, metrics = step(before, {}, put_batch(batch_of(0), mesh))
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves((before.params, before.opt_state)))
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(after))
    assert set(metrics) == {
        "loss",
        "sums",
        "grad_norm",
        "grad_squares",
        "weight_sums",
        "real_tokens",
        "num_positions",
        "applied",
    }
    assert metrics["applied"]
    sums = metrics["sums"]
    assert set(sums) == {"mlm", "mlm_accuracy", "pair", "pair_accuracy"}
    mean = {name: float(total.value) / float(total.count) for name, total in sums.items()}
    np.testing.assert_allclose(metrics["loss"], mean["mlm"] + mean["pair"], rtol=1e-6)
    assert int(metrics["num_positions"]) == batch_of(0)["segment_ids"].size
    assert int(metrics["real_tokens"]) == (batch_of(0)["segment_ids"] > 0).sum()
    assert float(metrics["grad_norm"]) > 0


def test_the_cursor_decides_what_is_hidden_not_the_step(
    mesh_of: Callable, start_on: Callable, batch_of: Callable, one_device: tuple, adamw: optax.GradientTransformation
) -> None:
    mesh, step = mesh_of(1), one_device[2]
    losses, recorded = [], []
    for label, cursor in ((0, 0), (7, 0), (0, 7)):
        with jax.set_mesh(mesh):
            state = start_on(mesh, adamw)
            label, cursor = (jax.device_put(np.int32(number), state.step.sharding) for number in (label, cursor))
            state = state._replace(step=label, cursor=cursor)
            after, metrics = step(state, {}, put_batch(batch_of(0), mesh))
        losses.append(float(metrics["loss"]))
        recorded.append((int(after.step), int(after.cursor)))
    assert recorded == [(1, 1), (8, 1), (1, 8)]
    assert losses[0] == losses[1] != losses[2]


def test_weighted_loss_divides_by_at_least_one() -> None:
    sums = {"a": Sum(6.0, 3.0), "b": Sum(0.0, 0.0), "shown": Sum(100.0, 1.0)}
    counts = {"a": jnp.float32(3.0), "b": jnp.float32(0.0)}
    assert float(weighted_loss(sums, counts, {"a": 0.5, "b": 2.0})) == 1.0


@pytest.mark.long
def test_evaluation_hides_the_same_tokens_every_time(
    objective: Mlm, mesh_of: Callable, batch_of: Callable, one_device: tuple
) -> None:
    """On another mesh too; the masks differ from those of any training step."""
    params, result = jax.device_get(one_device[0].params), []
    for shape in ((1, 1, 1), (2, 2, 2)):
        mesh = mesh_of(*shape)
        with jax.set_mesh(mesh):
            inputs = params, StepInputs({}, {}), put_batch(batch_of(0), mesh)
            evaluate = compile_eval_step(mesh, objective, seed=0).lower(*inputs).compile(QUICK)
            result += [evaluate(*inputs)[0] for _ in range(2)]
    assert set(result[0]) == {"mlm", "mlm_accuracy", "mlm_unigram_loss", "pair", "pair_accuracy"}
    jax.tree.map(np.testing.assert_array_equal, result[0], result[1])
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-5), result[0], result[2])


def test_purposes_and_seeds_have_keys_of_their_own() -> None:
    keys = {
        (seed, purpose): tuple(jax.random.key_data(purpose_key(seed, purpose)).tolist())
        for seed in (0, 1)
        for purpose in ("init", "corrupt", "dropout", "eval")
    }
    assert len(set(keys.values())) == 8
    assert str(jax.random.key_impl(purpose_key(0, "dropout", "rbg"))) == "rbg"


def test_a_state_is_drawn_onto_the_mesh_and_does_not_depend_on_it(
    objective: Mlm, mesh_of: Callable, fresh_params: Params, adamw: optax.GradientTransformation
) -> None:
    mesh = mesh_of(2, 2, 2)
    with jax.set_mesh(mesh):
        state = init_state(mesh, objective, adamw, seed=0)
    query = state.params["encoder"]["layers"]["attention"]["query"]["kernel"]
    assert {shard.data.shape for shard in query.addressable_shards} == {(2, 16, 16)}
    jax.tree.map(lambda ours, alone: np.testing.assert_allclose(ours, alone, atol=1e-8), state.params, fresh_params)


def test_a_new_state_counts_from_zero(tiny_params: Params) -> None:
    state = jax.eval_shape(lambda params: new_state(params, {"memory": params}, optax.sgd(1.0)), tiny_params)
    assert isinstance(state, TrainState) and set(state.carry) == {"memory"}
    assert state.step.dtype == state.cursor.dtype == jnp.int32


class Draws:
    """An objective whose loss is a random number per microbatch: shows the keys that the step passes."""

    loss_weights = {"noise": 1.0}  # noqa: RUF012
    networks = {}  # noqa: RUF012

    def init(self, key: jax.Array) -> Params:
        return {"scale": jnp.ones(())}

    def init_carry(self, rows: int) -> dict:
        return {"seen": jnp.arange(rows) * 100}

    def corrupt(self, batch: dict, key: jax.Array, cursor: jax.Array) -> dict:
        return batch

    def counts(self, batch: dict) -> dict[str, jax.Array]:
        return {"noise": jnp.ones(())}

    def loss(self, params: Params, extra: StepInputs, batch: dict, key: jax.Array, train: bool) -> tuple[dict, dict]:
        noise = params["scale"] * jax.random.uniform(key)
        return {"noise": Sum(noise, jnp.ones(()))}, {"seen": extra.carry["seen"] + batch["segment_ids"][:, 0]}


@pytest.mark.parametrize("microbatches", [1, 4])
def test_dropout_keys_follow_cursor_and_microbatch_and_carry_goes_through(mesh_of: Callable, microbatches: int) -> None:
    mesh, optimizer = mesh_of(1), optax.sgd(0.0)
    step = compile_train_step(mesh, Draws(), optimizer, batch_size=8, microbatches=microbatches, seed=3)
    batch = {"segment_ids": np.arange(16, dtype=np.int32).reshape(8, 2)}
    with jax.set_mesh(mesh):
        state = init_state(mesh, Draws(), optimizer, seed=3, batch_size=8)
        losses = []
        for _ in range(2):
            state, metrics = step(state, {}, put_batch(batch, mesh))
            losses.append(float(metrics["loss"]))
    for cursor, loss in enumerate(losses):
        key = jax.random.fold_in(purpose_key(3, "dropout"), cursor)
        keys = [key] if microbatches == 1 else [jax.random.fold_in(key, index) for index in range(4)]
        np.testing.assert_allclose(loss, sum(float(jax.random.uniform(key)) for key in keys), rtol=1e-6)
    # every row has used its slot, twice
    np.testing.assert_array_equal(state.carry["seen"], np.arange(8) * 100 + 2 * batch["segment_ids"][:, 0])


def test_eval_step_switches_dropout_off() -> None:
    recorded = []

    class Recording(Draws):
        def loss(
            self, params: Params, extra: StepInputs, batch: dict, key: jax.Array, train: bool
        ) -> tuple[dict, dict]:
            recorded.append(train)
            return super().loss(params, extra, batch, key, train)

    objective = Recording()
    extra = StepInputs({}, objective.init_carry(2))
    eval_step(objective.init(jax.random.key(0)), extra, {"segment_ids": jnp.ones((2, 2))}, objective=objective, seed=0)
    assert recorded == [False]
