"""Learning rates as functions of the update that is about to be made (0 for the first)."""

from __future__ import annotations

import jax.numpy as jnp
import optax

from bertjax.training.config import ScheduleConfig


def make_schedule(config: ScheduleConfig) -> optax.Schedule:
    """The learning rate of a step. `bert` is the authors' (google-research/bert:optimization.py): the decay counts
    from step 0 and the warm-up lies over it, so the rate falls a little where the warm-up ends."""
    peak, warmup, total = config.learning_rate, config.warmup_steps, config.num_steps

    def warmed(after: optax.Schedule) -> optax.Schedule:
        return lambda step: jnp.where(step < warmup, peak * step / max(warmup, 1), after(step))

    rest = max(total - warmup, 1)
    shapes = {
        "bert": lambda step: peak * jnp.maximum(1.0 - step / total, 0.0),
        "linear": lambda step: peak * jnp.clip(1.0 - (step - warmup) / rest, 0.0, 1.0),
        "cosine": lambda step: peak * 0.5 * (1.0 + jnp.cos(jnp.pi * jnp.clip((step - warmup) / rest, 0.0, 1.0))),
        "constant": lambda step: jnp.full_like(step, peak, dtype=jnp.float32),
    }
    after = shapes[config.name]
    schedule = warmed(after) if warmup else after
    return lambda step: schedule(jnp.asarray(step, jnp.float32))
