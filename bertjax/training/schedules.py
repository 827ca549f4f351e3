"""Learning rate schedules: closed forms of the number of completed steps (0 for the first step).

optax's schedules round in another order: their linear, cosine and constant ones differ in the last digit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax.numpy as jnp
import optax
from jaxtyping import Array

from bertjax.config.optimizer import ScheduleConfig

Share = Callable[[Array], Array]
"""float32 step -> share of the peak rate."""


def join_schedules(configs: Sequence[tuple[int, ScheduleConfig]]) -> optax.Schedule:
    """Returns the learning rate by step of a run in phases: at every step, that of the phase's schedule at this step.

    Args:
        configs: first step and schedule of every phase.
    """
    phases = [(start, make_schedule(config)) for start, config in configs]

    def schedule(step: Array) -> Array:
        rate = phases[0][1](step)
        for start, of_phase in phases[1:]:
            rate = jnp.where(step >= start, of_phase(step), rate)
        return rate

    return schedule


def make_schedule(config: ScheduleConfig) -> optax.Schedule:
    """Returns the learning rate by step: the peak times a share, which rises from 0 over the warm-up.

    `bert` is the authors' (google-research/bert:optimization.py): the decay counts from step 0 and the warm-up lies
    over it, so the rate falls a little where the warm-up ends.
    """
    warmup, peak = config.warmup_steps, config.learning_rate
    after = _SHARES[config.name](config)
    rises_itself = config.name in ("electra", "slanted_triangular")

    def schedule(step: Array) -> Array:
        if not warmup or rises_itself:
            return peak * after(step)
        return jnp.where(step < warmup, peak * step / warmup, peak * after(step))

    return lambda step: schedule(jnp.asarray(step, jnp.float32))


def _line(config: ScheduleConfig) -> Share:
    """Falls linearly from 1 at the end of the warm-up to 0 at the last step."""
    warmup, rest = config.warmup_steps, max(config.num_steps - config.warmup_steps, 1)
    return lambda step: jnp.clip(1.0 - (step - warmup) / rest, 0.0, 1.0)


def _above(end: float, shape: Share) -> Share:
    """Scales `shape` from the range 0..1 to the range `end`..1."""
    return lambda step: end + (1.0 - end) * shape(step)


def _bert(config: ScheduleConfig) -> Share:
    return _above(config.end, lambda step: jnp.maximum(1.0 - step / config.num_steps, 0.0))


def _electra(config: ScheduleConfig) -> Share:
    """Multiplies the decay from step 0 with the warm-up (google-research/electra:model/optimization.py)."""
    decay = _bert(config)
    return lambda step: decay(step) * jnp.minimum(step / config.warmup_steps if config.warmup_steps else 1.0, 1.0)


def _polynomial(config: ScheduleConfig) -> Share:
    """Decays from the end of the warm-up as XLNet does (zihangdai/xlnet:model_utils.py), above `end_lr_ratio`."""
    power, line = config.power, _line(config)
    return _above(config.end, line if power is None else lambda step: line(step) ** power)


def _cosine(config: ScheduleConfig) -> Share:
    warmup, rest = config.warmup_steps, max(config.num_steps - config.warmup_steps, 1)

    def half_wave(step: Array) -> Array:
        return 0.5 * (1.0 + jnp.cos(jnp.pi * jnp.clip((step - warmup) / rest, 0.0, 1.0)))

    return _above(config.end, half_wave)


def _wsd(config: ScheduleConfig) -> Share:
    """Stays at the peak until `decay_steps` before the end, then 1 - sqrt (AnswerDotAI/ModernBERT:src/scheduler.py)."""
    start, decay = config.num_steps - config.decay, config.decay
    return _above(config.end, lambda step: 1.0 - jnp.sqrt(jnp.clip((step - start) / decay, 0.0, 1.0)))


def _slanted_triangular(config: ScheduleConfig) -> Share:
    """Rises from `end_lr_ratio` to the peak over the warm-up, and falls again (arXiv:1801.06146, section 3.2)."""
    cut, line = config.warmup_steps, _line(config)
    return _above(config.end, lambda step: jnp.where(step < cut, step / cut, line(step)))


def _inverse_sqrt(config: ScheduleConfig) -> Share:
    """Falls as 1 / sqrt(step) from the end of the warm-up, which sets its scale (arXiv:1706.03762, section 5.3)."""
    return lambda step: jnp.sqrt(config.warmup_steps / jnp.maximum(step, config.warmup_steps))


def _step(config: ScheduleConfig) -> Share:
    factor, warmup = _factor(config, 0.1), config.warmup_steps

    def share(step: Array) -> Array:
        # half a step is added because a compiler may multiply by 1 / period, which falls short of whole numbers
        drops = jnp.floor((step - warmup + 0.5) / config.period)
        return jnp.maximum(jnp.power(factor, drops), config.end)

    return share


def _exponential(config: ScheduleConfig) -> Share:
    factor, warmup = _factor(config, 0.1), config.warmup_steps
    return lambda step: jnp.maximum(jnp.power(factor, (step - warmup) / config.period), config.end)


def _cyclical(config: ScheduleConfig) -> Share:
    """Runs in triangles from `end_lr_ratio` to 1; a factor of 0.5 is "triangular2" (arXiv:1506.01186, section 3.2)."""
    factor, period = _factor(config, 1.0), config.period

    def shape(step: Array) -> Array:
        cycle = jnp.floor((step + 0.5) / period)
        height = 1.0 - jnp.abs(2.0 * (step - cycle * period) / period - 1.0)
        return jnp.maximum(height, 0.0) * jnp.power(factor, cycle)

    return _above(config.end, shape)


def _rising_linear(config: ScheduleConfig) -> Share:
    """Rises linearly from `end_lr_ratio` to the peak: Smith's range test (arXiv:1506.01186, section 3.3)."""
    last = max(config.num_steps - 1, 1)
    return lambda step: config.end + (1.0 - config.end) * step / last


def _rising_exponential(config: ScheduleConfig) -> Share:
    """Rises exponentially from `end_lr_ratio` to the peak."""
    last = max(config.num_steps - 1, 1)
    return lambda step: jnp.power(config.end, 1.0 - step / last)


def _factor(config: ScheduleConfig, default: float) -> float:
    return default if config.factor is None else config.factor


_SHARES: dict[str, Callable[[ScheduleConfig], Share]] = {
    "bert": _bert,
    "electra": _electra,
    "linear": _polynomial,
    "polynomial": _polynomial,
    "cosine": _cosine,
    "wsd": _wsd,
    "slanted_triangular": _slanted_triangular,
    "step": _step,
    "exponential": _exponential,
    "cyclical": _cyclical,
    "rising_linear": _rising_linear,
    "rising_exponential": _rising_exponential,
    "inverse_sqrt": _inverse_sqrt,
    "constant": lambda config: jnp.ones_like,
}
