"""A training loop of one's own: batches and objective of bertjax, the rest plain JAX and optax.

    python examples/own_loop.py

The batches are split over all devices along the axis `data`, and every device has a copy of the model.
"""

from __future__ import annotations

from typing import Any

import jax
import optax
from jax.sharding import NamedSharding, PartitionSpec

import bertjax


def train(config: Any, overrides: dict[str, Any] | None = None, learning_rate: float = 1e-3) -> list[float]:
    """Trains the objective of a config on its batches; returns the loss of every step."""
    batches = bertjax.data.batches(config, overrides)
    objective = bertjax.make_objective(config, batches.vocabulary, overrides)
    optimizer = optax.adamw(learning_rate)
    mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    split, copied = NamedSharding(mesh, PartitionSpec("data")), NamedSharding(mesh, PartitionSpec())

    @jax.jit
    def step(params: Any, opt_state: Any, batch: Any, cursor: int) -> tuple[Any, Any, jax.Array]:
        mean_loss = jax.value_and_grad(objective.mean_loss, has_aux=True)
        (loss, _), grads = mean_loss(params, batch, jax.random.key(0), cursor)
        updates, opt_state = optimizer.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, loss

    params = jax.device_put(objective.init(jax.random.key(1)), copied)
    opt_state, losses = jax.device_put(optimizer.init(params), copied), []
    with jax.set_mesh(mesh):
        for cursor, batch in enumerate(batches):
            params, opt_state, loss = step(params, opt_state, jax.device_put(batch, split), cursor)
            losses.append(loss)
    return [float(loss) for loss in losses]


if __name__ == "__main__":
    losses = train("quickstart", {"train.num_steps": 200})
    for number in range(0, len(losses), 20):
        print(f"step {number:3}: loss {losses[number]:.3f}")
