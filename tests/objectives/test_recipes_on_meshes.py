"""Every recipe on a mesh that splits rows, rows of tables and columns of kernels: losses and gradients of one device.

A mesh that splits kernels along both axes needs sharding constraints on activations: without them, the compiler of jax
0.10 silently computed wrong gradients of `tanh(x @ k[i])` in a loop.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from recipes_lab import epoch_of, objective_of

from bertjax.config.distributed import MeshConfig
from bertjax.objectives.base import Objective, StepInputs
from bertjax.training.sharding import make_mesh, put_batch, state_shardings
from bertjax.training.step import compile_train_step, init_state
from bertjax.types import Params, Vocabulary

jit = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})  # compilation dominates
# One recipe of every kind of parameter and of loss: shared groups, two networks and late positions, a convolution, a
# memory, windows, a teacher, negatives of the whole batch. tests/training/test_step.py has BERT in the ordinary suite.
FURTHER = ["albert", "modernbert", "distilbert", "retromae"]
WHOLE_STEPS = ["deberta", "xlnet", "t5", *(pytest.param(name, marks=pytest.mark.weekly) for name in FURTHER)]
GRADIENTS = [
    "simcse",
    *(pytest.param(name, marks=pytest.mark.weekly) for name in ("deberta:smoke-v2", "bart", "tsdae")),
]


def loss_and_gradients(objective: Objective, params: Params, frozen: Any, batch: Any) -> tuple[jax.Array, Params]:
    """The weighted loss of a batch and its gradient."""
    hidden = objective.corrupt(batch, jax.random.key(1), jnp.asarray(3))
    counts = objective.counts(hidden)

    def loss(params: Params) -> jax.Array:
        extra = StepInputs(frozen, objective.init_carry(len(batch["input_ids"])))
        sums, _ = objective.loss(params, extra, hidden, jax.random.key(2), train=False)
        return sum(w * sums[name].value / jnp.maximum(counts[name], 1) for name, w in objective.loss_weights.items())

    return jax.value_and_grad(loss)(params)


def require_both_axes(params: Params) -> None:
    """Fails unless eight devices split some parameter along two of its axes."""
    assert any(len(leaf.sharding.spec) > 1 and leaf.sharding.num_devices == 8 for leaf in jax.tree.leaves(params))


def require_equal(result: Params, expected: Params) -> None:
    """Fails unless gradients are equal up to 2e-6 of their norm."""
    norm = np.sqrt(sum((np.asarray(leaf) ** 2).sum() for leaf in jax.tree.leaves(expected)))
    assert norm > 0
    for each, other in zip(jax.tree.leaves(result), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(np.asarray(each) / norm, np.asarray(other) / norm, atol=2e-6)


@pytest.mark.long
@pytest.mark.parametrize("recipe", GRADIENTS)
def test_gradients_are_those_of_one_device(recipe: str, vocabulary: Vocabulary) -> None:
    objective, form, frozen = objective_of(recipe, vocabulary, packing="none")
    batch = {name: np.asarray(array)[:8] for name, array in epoch_of(form, "none").items()}
    params = jit(objective.init)(jax.random.key(0))
    step = functools.partial(loss_and_gradients, objective)
    expected_loss, expected = jit(step)(params, frozen, {name: jnp.asarray(array) for name, array in batch.items()})
    mesh = make_mesh(MeshConfig(data=2, fsdp=2, tensor=2))
    laid = jax.device_put(params, state_shardings(params, mesh))
    require_both_axes(laid)
    with jax.set_mesh(mesh):
        loss, result = jit(step)(laid, frozen, put_batch(batch, mesh))
    np.testing.assert_allclose(loss, expected_loss, rtol=1e-5)
    require_equal(result, expected)


@pytest.mark.weekly
@pytest.mark.parametrize("recipe", WHOLE_STEPS)
def test_steps_on_devices_are_those_of_one(recipe: str, vocabulary: Vocabulary) -> None:
    """With dropout, memory and teachers: two steps of two microbatches, rows split by hand along `data`.

    What the first step subtracts from the parameters is a tenth of their gradient.
    """
    objective, form, frozen = objective_of(recipe, vocabulary, packing="none", dropout=0.1)
    rows = {name: np.asarray(array)[:8] for name, array in epoch_of(form, "none").items()}
    optimizer = optax.sgd(0.1)

    def run(**shape: int) -> tuple[Params, list[tuple[float, float]]]:
        result, mesh = [], make_mesh(MeshConfig(**shape))
        with jax.set_mesh(mesh):
            state = init_state(mesh, objective, optimizer, seed=0, batch_size=8)
            if mesh.size > 1:
                require_both_axes(state.params)
            batch = put_batch(rows, mesh)
            step = compile_train_step(mesh, objective, optimizer, batch_size=8, microbatches=2, seed=0)
            compiled = step.compile(state, frozen, batch, {"xla_backend_optimization_level": 0})
            trained = [jax.tree.map(np.array, state.params)]
            for _ in range(2):
                state, metrics = compiled(state, frozen, batch)
                trained.append(jax.tree.map(np.array, state.params))
                result.append((float(metrics["loss"]), float(metrics["grad_norm"])))
        return jax.tree.map(np.subtract, trained[1], trained[0]), result

    gradients, metrics = run(data=2, fsdp=2, tensor=2)
    expected, alone = run(data=1, fsdp=1, tensor=1)
    require_equal(gradients, expected)
    np.testing.assert_allclose(metrics, alone, rtol=2e-5)
