"""The training step: corrupt, count, differentiate, update. Gradients are computed here alone."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array

from bertjax.io.tree_paths import flatten_tree
from bertjax.models.linear import abstract
from bertjax.models.mesh import target_platform
from bertjax.objectives.base import Objective, StepInputs, weighted_loss
from bertjax.training.grad_accumulation import accumulate_grads
from bertjax.training.param_rules import num_stacked, virtual_paths
from bertjax.training.sharding import BATCH, state_shardings
from bertjax.training.state import TrainState, new_state, purpose_key
from bertjax.types import Batch, Params, Sum

StepMetrics = dict[str, Any]


def train_step(
    state: TrainState,
    frozen: Any,
    batch: Batch,
    *,
    objective: Objective,
    optimizer: optax.GradientTransformation,
    microbatches: int,
    seed: int | Array,
    dropout_impl: str | None = None,
    skip_nonfinite: bool = False,
    param_shardings: Params | None = None,
) -> tuple[TrainState, StepMetrics]:
    """Computes one step; everything random is a function of (seed, cursor, example).

    Args:
        state: State before the step.
        frozen: Weights that the objective reads and the optimizer does not update.
        batch: Global batch [B, ...] before masking.
        objective: Masks the batch, counts its targets, and computes the loss.
        optimizer: Turns gradients into parameter updates.
        microbatches: Parts of the batch whose gradients are added up, to save memory.
        seed: Seed of the run.
        dropout_impl: random bit generator of dropout, as `purpose_key` takes it.
        skip_nonfinite: Keep the state as it was, but for the cursor and the counters, where `applied` is False.
        param_shardings: Sharding per parameter; gradients are constrained to the same.

    Returns:
        The next state, and the metrics: `loss`, `sums` per metric, `grad_norm`, `grad_squares` and `weight_sums` [n]
        per layer (`layer_names`), `real_tokens` and `num_positions` of the batch, and `applied`: whether loss,
        gradients, new weights and carry are all finite.
    """
    segments = [array for name, array in batch.items() if name.endswith("segment_ids")]  # also those of targets
    real_tokens = sum((array > 0).sum() for array in segments)
    num_positions = jnp.int32(sum(array.size for array in segments))
    with jax.named_scope("corruption"):
        batch = objective.corrupt(batch, purpose_key(seed, "corrupt"), state.cursor)
        counts = objective.counts(batch)
    key = jax.random.fold_in(purpose_key(seed, "dropout", dropout_impl), state.cursor)

    def loss_of_part(params: Params, carry: Any, part: Batch, part_key: Array, inputs: tuple) -> tuple[Array, tuple]:
        frozen, counts = inputs
        sums, carry = objective.loss(params, StepInputs(frozen, carry), part, part_key, train=True)
        return weighted_loss(sums, counts, objective.loss_weights), (sums, carry)

    value_and_grad = jax.value_and_grad(loss_of_part, has_aux=True)
    inputs = frozen, counts
    unrolls = all((net.config.unroll or 1) >= net.config.num_layers for net in objective.networks.values())
    (loss, (sums, carry)), grads = accumulate_grads(
        value_and_grad, state.params, state.carry, batch, key, inputs, microbatches, param_shardings, unrolls
    )
    grads = _computed_once(grads)
    with jax.named_scope("optimizer"):
        updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
    with jax.named_scope("metrics"):
        squares, weights = _computed_once((layer_sums(grads, jnp.square), layer_sums(params)))
    metrics = {
        "loss": loss,
        "sums": sums,
        "grad_norm": jnp.sqrt(squares.sum()),
        "grad_squares": squares,
        "weight_sums": weights,
        "real_tokens": real_tokens,
        "num_positions": num_positions,
    }
    metrics["applied"] = jnp.isfinite(loss + metrics["grad_norm"] + weights.sum() + _total(carry))
    after = state._replace(params=params, opt_state=opt_state, carry=carry, step=state.step + 1)
    after = after._replace(consecutive_skipped=jnp.zeros_like(state.consecutive_skipped))
    if skip_nonfinite:
        # `where`, not a product with 0 or 1: 0 * NaN is NaN.
        refused = state._replace(skipped=state.skipped + 1, consecutive_skipped=state.consecutive_skipped + 1)
        after = jax.tree.map(functools.partial(jnp.where, metrics["applied"]), after, refused)
    return after._replace(cursor=state.cursor + 1), metrics


def _computed_once(tree: Any) -> Any:
    """Returns the tree; on GPUs every use reads its arrays from memory.

    XLA would put the layers' gradients together in each of three passes of the optimizer, and add up all gradients and
    weights a second time for the sums of the sums: of a layer 13 passes over its weights, instead of 10.
    """
    return jax.lax.optimization_barrier(tree) if target_platform() == "cuda" else tree


def layer_sums(tree: Params, of: Callable[[Array], Array] = jnp.asarray) -> Array:
    """Sums every parameter, layer by layer: float32 [n], finite only where all values of the parameter are.

    Args:
        tree: Parameters or gradients.
        of: Applied to every leaf before the sum, such as `jnp.square`.

    Returns:
        One sum per path of `layer_names`.
    """

    def sum_leaf(path: str, leaf: Array) -> Array:
        axes = tuple(range(num_stacked(path), leaf.ndim))
        return jnp.sum(of(leaf.astype(jnp.float32)), axis=axes).reshape(-1)

    return jnp.concatenate([sum_leaf(path, leaf) for path, leaf in flatten_tree(tree).items()])


def layer_names(params: Params) -> list[str]:
    """Returns the per-layer paths of `layer_sums`, in its order; `params` may be abstract."""
    return [name for path, leaf in flatten_tree(params).items() for name in virtual_paths(path, leaf.shape)]


def _total(tree: Any) -> Array:
    """Returns a number that is finite only if every value of the tree is."""
    return sum((jnp.sum(leaf.astype(jnp.float32)) for leaf in jax.tree.leaves(tree)), start=jnp.zeros(()))


def eval_step(
    params: Params, inputs: StepInputs, batch: Batch, *, objective: Objective, seed: int
) -> tuple[dict[str, Sum], Any]:
    """Computes the sums of one held-out batch, with the same tokens masked at every evaluation of every run.

    Args:
        params: Weights to evaluate.
        inputs: Frozen weights, and the carry of the batch before.
        batch: Global batch [B, ...] before masking.
        objective: Masks the batch and computes the sums.
        seed: Seed of the masks.

    Returns:
        The sums by name, and the next carry.
    """
    batch = objective.corrupt(batch, purpose_key(seed, "eval"), jnp.zeros((), jnp.int32))
    return objective.loss(params, inputs, batch, purpose_key(seed, "eval"), train=False)


def train_steps(
    state: TrainState, frozen: Any, batches: Sequence[Batch], **settings: Any
) -> tuple[TrainState, StepMetrics]:
    """Computes one `train_step` after the other in one program; the metrics have a leading axis.

    Args:
        state: State before the steps.
        frozen: Weights that the optimizer does not update.
        batches: One batch per step.
        **settings: The keyword arguments of `train_step`.
    """

    def body(state: TrainState, batch: Batch) -> tuple[TrainState, StepMetrics]:
        return train_step(state, frozen, batch, **settings)

    return jax.lax.scan(body, state, jax.tree.map(lambda *batch_size: jnp.stack(batch_size), *batches))


@dataclasses.dataclass(frozen=True, eq=False)
class SeededStep:
    """A jitted step with its seed, which is an input of the program: runs with other seeds share it.

    It is called with (state, frozen, batch), where `batch` is a list for `train_steps`; `lower`, `trace` and `compile`
    take the same arguments, which may be abstract, as in `jax.jit`.
    """

    jitted: Any
    seed: np.ndarray

    def __call__(self, state: TrainState, frozen: Any, batch: Any) -> tuple[TrainState, StepMetrics]:
        return self.jitted(state, frozen, batch, self.seed)

    def lower(self, state: Any, frozen: Any, batch: Any) -> Any:
        """Lowers the step.

        Args:
            state: State or its shapes.
            frozen: What is read and never trained.
            batch: Batch or its shapes.
        """
        return self.jitted.lower(state, frozen, batch, self.seed)

    def trace(self, state: Any, frozen: Any, batch: Any) -> Any:
        """Traces the step.

        Args:
            state: State or its shapes.
            frozen: What is read and never trained.
            batch: Batch or its shapes.
        """
        return self.jitted.trace(state, frozen, batch, self.seed)

    def compile(self, state: Any, frozen: Any, batch: Any, options: dict[str, Any] | None = None) -> SeededStep:
        """Returns the compiled step.

        Args:
            state: State or its shapes.
            frozen: What is read and never trained.
            batch: Batch or its shapes.
            options: Options of the compiler.
        """
        return dataclasses.replace(self, jitted=self.lower(state, frozen, batch).compile(options))


def compile_train_step(
    mesh: Mesh,
    objective: Objective,
    optimizer: optax.GradientTransformation,
    batch_size: int = 1,
    multi_step: bool = False,
    *,
    seed: int,
    **settings: Any,
) -> SeededStep:
    """Returns `train_step` under `jax.jit` with shardings and a donated state; it is compiled at the first call.

    Args:
        mesh: Devices of the run.
        objective: Objective of the phase.
        optimizer: Optimizer of the run.
        batch_size: Sequences per batch, the size of the carry.
        multi_step: Return `train_steps` instead.
        seed: Seed of the run.
        **settings: The other keyword arguments of `train_step`.
    """
    shardings = state_shardings(abstract_state(objective, optimizer, batch_size), mesh)
    param_shardings = jax.tree.map(lambda sharding: sharding.spec, shardings.params)
    steps = train_steps if multi_step else train_step

    @functools.wraps(steps)
    def with_seed(state: TrainState, frozen: Any, batches: Any, seed: Array) -> tuple[TrainState, StepMetrics]:
        return steps(
            state,
            frozen,
            batches,
            objective=objective,
            optimizer=optimizer,
            param_shardings=param_shardings,
            seed=seed,
            **settings,
        )

    jitted = jax.jit(
        with_seed,
        in_shardings=(shardings, None, NamedSharding(mesh, BATCH), None),
        out_shardings=(shardings, NamedSharding(mesh, PartitionSpec())),
        donate_argnums=0,
    )
    return SeededStep(jitted, np.asarray(seed, np.int64).astype(np.int32))


def compile_eval_step(mesh: Mesh, objective: Objective, seed: int) -> Callable:
    """Returns `eval_step` under `jax.jit`; parameters keep the shardings of the train state.

    Args:
        mesh: Devices of the run.
        objective: Objective of the phase.
        seed: Seed of the masks.
    """
    step = functools.partial(eval_step, objective=objective, seed=seed)
    return jax.jit(step, out_shardings=(NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, BATCH)))


def abstract_state(objective: Objective, optimizer: optax.GradientTransformation, batch_size: int = 1) -> TrainState:
    """Returns the shapes and dtypes of the train state, without allocating it.

    Args:
        objective: Defines the parameters and the carry.
        optimizer: Defines its state.
        batch_size: Sequences per batch, the size of the carry.
    """
    key: Any = objective  # by identity
    return _abstract_state(key, optimizer, batch_size)


@functools.lru_cache(maxsize=32)  # tracing takes a third of a second
def _abstract_state(objective: Any, optimizer: optax.GradientTransformation, batch_size: int) -> TrainState:
    return abstract(lambda key: new_state(objective.init(key), objective.init_carry(batch_size), optimizer))


def init_state(
    mesh: Mesh, objective: Objective, optimizer: optax.GradientTransformation, seed: int, batch_size: int = 1
) -> TrainState:
    """Draws a new state directly onto the mesh.

    Args:
        mesh: Devices of the run.
        objective: Draws the parameters.
        optimizer: Makes its state.
        seed: Seed of the run.
        batch_size: Sequences per batch, the size of the carry.
    """
    shardings = state_shardings(abstract_state(objective, optimizer, batch_size), mesh)

    def init(key: Array) -> TrainState:
        return new_state(objective.init(key), objective.init_carry(batch_size), optimizer)

    options = _cheap_compilation(mesh.devices.flat[0].platform)
    return jax.jit(init, out_shardings=shardings, compiler_options=options)(purpose_key(seed, "init"))


def _cheap_compilation(platform: str) -> dict[str, int] | None:
    """Returns compiler options for a program that runs once: half of the compile time on a CPU, and the same bits."""
    name = "xla_backend_optimization_level"
    return {name: 1} if platform == "cpu" and name not in os.environ.get("XLA_FLAGS", "") else None
