"""One training step: corrupt, count, differentiate, update. The only place where gradients are taken."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array

from bertjax.io.tree_paths import flatten_tree
from bertjax.objectives.base import Objective, StepInputs
from bertjax.training.grad_accumulation import accumulate_grads
from bertjax.training.param_rules import num_stacked, virtual_paths
from bertjax.training.sharding import BATCH, state_shardings
from bertjax.training.state import TrainState, new_state, purpose_key
from bertjax.types import Batch, Params, Sum

Metrics = dict[str, Any]


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
) -> tuple[TrainState, Metrics]:
    """The next state and the sums of this batch; everything random comes from (seed, cursor, example).

    `applied` tells whether the loss, the gradient, the new weights and the carry are finite; where they are not,
    `skip_nonfinite` leaves the state as it was, but for the cursor and the counters. `param_shardings` has a sharding
    per parameter, which constrains its gradient.
    """
    real_tokens, num_positions = (batch["segment_ids"] > 0).sum(), jnp.int32(batch["segment_ids"].size)
    with jax.named_scope("corruption"):
        batch = objective.corrupt(batch, purpose_key(seed, "corrupt"), state.cursor)
        counts = objective.counts(batch)
    key = jax.random.fold_in(purpose_key(seed, "dropout", dropout_impl), state.cursor)

    def total(params: Params, carry: Any, part: Batch, part_key: Array, given: tuple) -> tuple[Array, tuple]:
        frozen, counts = given
        sums, carry = objective.loss(params, StepInputs(frozen, carry), part, part_key, train=True)
        return weighted_loss(sums, counts, objective.loss_weights), (sums, carry)

    def pin(slopes: Params) -> Params:
        return slopes if param_shardings is None else jax.lax.with_sharding_constraint(slopes, param_shardings)

    gradient = jax.value_and_grad(total, has_aux=True)
    (loss, (sums, carry)), grads = accumulate_grads(
        gradient, state.params, state.carry, batch, key, (frozen, counts), microbatches, pin
    )
    with jax.named_scope("optimizer"):
        updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
    with jax.named_scope("metrics"):
        squares, weights = layer_sums(grads, jnp.square), layer_sums(params)
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
        # A choice, not a product with 0 or 1: 0 * NaN is NaN.
        refused = state._replace(skipped=state.skipped + 1, consecutive_skipped=state.consecutive_skipped + 1)
        after = jax.tree.map(functools.partial(jnp.where, metrics["applied"]), after, refused)
    return after._replace(cursor=state.cursor + 1), metrics


def layer_sums(tree: Params, of: Callable[[Array], Array] = jnp.asarray) -> Array:
    """The sum over every parameter, layer by layer, in the order of `layer_names`: float32 [n].

    It is finite only where all of the parameter is.
    """

    def of_leaf(path: str, leaf: Array) -> Array:
        own = tuple(range(num_stacked(path), leaf.ndim))
        return jnp.sum(of(leaf.astype(jnp.float32)), axis=own).reshape(-1)

    return jnp.concatenate([of_leaf(path, leaf) for path, leaf in flatten_tree(tree).items()])


def layer_names(params: Params) -> list[str]:
    """The per-layer paths of `layer_sums`, in its order; `params` may be shapes only."""
    return [name for path, leaf in flatten_tree(params).items() for name in virtual_paths(path, leaf.shape)]


def _total(tree: Any) -> Array:
    """A number that is finite only if every number of the tree is."""
    return sum((jnp.sum(leaf.astype(jnp.float32)) for leaf in jax.tree.leaves(tree)), start=jnp.zeros(()))


def weighted_loss(sums: dict[str, Sum], counts: dict[str, Array], weights: dict[str, float]) -> Array:
    """Sum over the weighted losses of weight * value / max(count, 1), counts of the whole global batch."""
    return sum(
        (weight * sums[name].value / jnp.maximum(counts[name], 1.0) for name, weight in weights.items()),
        start=jnp.zeros((), jnp.float32),
    )


def eval_step(
    params: Params, inputs: StepInputs, batch: Batch, *, objective: Objective, seed: int
) -> tuple[dict[str, Sum], Any]:
    """Sums over one held-out batch, the same tokens hidden at every evaluation of every run; and the carry."""
    batch = objective.corrupt(batch, purpose_key(seed, "eval"), jnp.zeros((), jnp.int32))
    return objective.loss(params, inputs, batch, purpose_key(seed, "eval"), train=False)


def train_steps(
    state: TrainState, frozen: Any, batches: Sequence[Batch], **settings: Any
) -> tuple[TrainState, Metrics]:
    """`train_step` by one batch after the other in one program; the metrics have a leading axis."""

    def body(state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        return train_step(state, frozen, batch, **settings)

    return jax.lax.scan(body, state, jax.tree.map(lambda *batch_size: jnp.stack(batch_size), *batches))


@dataclasses.dataclass(frozen=True, eq=False)
class SeededStep:
    """A jitted step of (state, frozen, batch, seed) with its seed, an input: runs of several seeds share a program."""

    jitted: Any
    seed: np.ndarray

    def __call__(self, state: TrainState, frozen: Any, batch: Any) -> tuple[TrainState, Metrics]:
        return self.jitted(state, frozen, batch, self.seed)

    def lower(self, state: Any, frozen: Any, batch: Any) -> Any:
        """As `jax.jit` has it, and so is `trace`."""
        return self.jitted.lower(state, frozen, batch, self.seed)

    def trace(self, state: Any, frozen: Any, batch: Any) -> Any:
        return self.jitted.trace(state, frozen, batch, self.seed)

    def compile(self, state: Any, frozen: Any, batch: Any, options: dict[str, Any] | None = None) -> SeededStep:
        """The same step compiled for inputs like these, which may be abstract; `jitted` is what XLA made."""
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
    """`train_step` under one `jax.jit` with shardings and a donated state; `batch_size` sizes the carry.

    `multi_step` makes it `train_steps`, of as many batches as it is called with.
    """
    laid = state_shardings(abstract_state(objective, optimizer, batch_size), mesh)
    param_shardings = jax.tree.map(lambda sharding: sharding.spec, laid.params)  # whatever axes are split by hand
    steps = train_steps if multi_step else train_step

    @functools.wraps(steps)
    def of_seed(state: TrainState, frozen: Any, batches: Any, seed: Array) -> tuple[TrainState, Metrics]:
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
        of_seed,
        in_shardings=(laid, None, NamedSharding(mesh, BATCH), None),
        out_shardings=(laid, NamedSharding(mesh, PartitionSpec())),
        donate_argnums=0,
    )
    return SeededStep(jitted, np.asarray(seed, np.int64).astype(np.int32))


def compile_eval_step(mesh: Mesh, objective: Objective, seed: int) -> Callable:
    """`eval_step` under `jax.jit`; parameters come laid out as the train state has them."""
    step = functools.partial(eval_step, objective=objective, seed=seed)
    return jax.jit(step, out_shardings=(NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, BATCH)))


def abstract_state(objective: Objective, optimizer: optax.GradientTransformation, batch_size: int = 1) -> TrainState:
    """Shapes and types of the train state, nothing allocated."""
    key: Any = objective  # by identity
    return _abstract_state(key, optimizer, batch_size)


@functools.lru_cache(maxsize=32)  # tracing takes a third of a second, and many ask
def _abstract_state(objective: Any, optimizer: optax.GradientTransformation, batch_size: int) -> TrainState:
    return jax.eval_shape(
        lambda key: new_state(objective.init(key), objective.init_carry(batch_size), optimizer), jax.random.key(0)
    )


def init_state(
    mesh: Mesh, objective: Objective, optimizer: optax.GradientTransformation, seed: int, batch_size: int = 1
) -> TrainState:
    """A fresh state, drawn directly onto the mesh."""
    laid = state_shardings(abstract_state(objective, optimizer, batch_size), mesh)

    def init(key: Array) -> TrainState:
        return new_state(objective.init(key), objective.init_carry(batch_size), optimizer)

    return jax.jit(init, out_shardings=laid)(purpose_key(seed, "init"))
