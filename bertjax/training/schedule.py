"""Learning rates: closed forms of the number of completed steps (0 for the first step).

optax's round in another order: their linear, cosine and constant ones differ in the last digit.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence

import jax.numpy as jnp
import optax
from jaxtyping import Array

from bertjax.config.fields import Settings, linked, phase_setting
from bertjax.config.run import warmup
from bertjax.errors import UserError

Share = Callable[[Array], Array]
"""float32 step -> share of the peak rate."""

DECAYING = ("bert", "electra", "linear", "polynomial", "cosine", "wsd", "slanted_triangular")
REPEATING = ("step", "exponential", "cyclical")
RISING = ("rising_linear", "rising_exponential")


def _line(schedule: Schedule) -> Share:
    """Falls linearly from 1 at the end of the warm-up to 0 at the last step."""
    warmup, rest = schedule.warmup_steps, max(schedule.num_steps - schedule.warmup_steps, 1)
    return lambda step: jnp.clip(1.0 - (step - warmup) / rest, 0.0, 1.0)


def _above(end: float, shape: Share) -> Share:
    """Scales `shape` from the range 0..1 to the range `end`..1."""
    return lambda step: end + (1.0 - end) * shape(step)


def _bert(schedule: Schedule) -> Share:
    return _above(schedule.end, lambda step: jnp.maximum(1.0 - step / schedule.num_steps, 0.0))


def _electra(schedule: Schedule) -> Share:
    """Multiplies the decay from step 0 with the warm-up (google-research/electra:model/optimization.py)."""
    decay = _bert(schedule)
    return lambda step: decay(step) * jnp.minimum(step / schedule.warmup_steps if schedule.warmup_steps else 1.0, 1.0)


def _polynomial(schedule: Schedule) -> Share:
    """Decays from the end of the warm-up as XLNet does (zihangdai/xlnet:model_utils.py), above `end_lr_ratio`."""
    power, line = schedule.power, _line(schedule)
    return _above(schedule.end, line if power is None else lambda step: line(step) ** power)


def _cosine(schedule: Schedule) -> Share:
    warmup, rest = schedule.warmup_steps, max(schedule.num_steps - schedule.warmup_steps, 1)

    def half_wave(step: Array) -> Array:
        return 0.5 * (1.0 + jnp.cos(jnp.pi * jnp.clip((step - warmup) / rest, 0.0, 1.0)))

    return _above(schedule.end, half_wave)


def _wsd(schedule: Schedule) -> Share:
    """Stays at the peak until `decay_steps` before the end, then 1 - sqrt (AnswerDotAI/ModernBERT:src/scheduler.py)."""
    start, decay = schedule.num_steps - schedule.decay, schedule.decay
    return _above(schedule.end, lambda step: 1.0 - jnp.sqrt(jnp.clip((step - start) / decay, 0.0, 1.0)))


def _slanted_triangular(schedule: Schedule) -> Share:
    """Rises from `end_lr_ratio` to the peak over the warm-up, and falls again (arXiv:1801.06146, section 3.2)."""
    cut, line = schedule.warmup_steps, _line(schedule)
    return _above(schedule.end, lambda step: jnp.where(step < cut, step / cut, line(step)))


def _inverse_sqrt(schedule: Schedule) -> Share:
    """Falls as 1 / sqrt(step) from the end of the warm-up, which sets its scale (arXiv:1706.03762, section 5.3)."""
    return lambda step: jnp.sqrt(schedule.warmup_steps / jnp.maximum(step, schedule.warmup_steps))


def _step(schedule: Schedule) -> Share:
    factor, warmup = _factor(schedule, 0.1), schedule.warmup_steps

    def share(step: Array) -> Array:
        # half a step is added because a compiler may multiply by 1 / period, which falls short of whole numbers
        drops = jnp.floor((step - warmup + 0.5) / schedule.period)
        return jnp.maximum(jnp.power(factor, drops), schedule.end)

    return share


def _exponential(schedule: Schedule) -> Share:
    factor, warmup = _factor(schedule, 0.1), schedule.warmup_steps
    return lambda step: jnp.maximum(jnp.power(factor, (step - warmup) / schedule.period), schedule.end)


def _cyclical(schedule: Schedule) -> Share:
    """Runs in triangles from `end_lr_ratio` to 1; a factor of 0.5 is "triangular2" (arXiv:1506.01186, section 3.2)."""
    factor, period = _factor(schedule, 1.0), schedule.period

    def shape(step: Array) -> Array:
        cycle = jnp.floor((step + 0.5) / period)
        height = 1.0 - jnp.abs(2.0 * (step - cycle * period) / period - 1.0)
        return jnp.maximum(height, 0.0) * jnp.power(factor, cycle)

    return _above(schedule.end, shape)


def _rising_linear(schedule: Schedule) -> Share:
    """Rises linearly from `end_lr_ratio` to the peak: Smith's range test (arXiv:1506.01186, section 3.3)."""
    last = max(schedule.num_steps - 1, 1)
    return lambda step: schedule.end + (1.0 - schedule.end) * step / last


def _rising_exponential(schedule: Schedule) -> Share:
    """Rises exponentially from `end_lr_ratio` to the peak."""
    last = max(schedule.num_steps - 1, 1)
    return lambda step: jnp.power(schedule.end, 1.0 - step / last)


def _factor(schedule: Schedule, default: float) -> float:
    return default if schedule.factor is None else schedule.factor


SHAPES: dict[str, Callable[[Schedule], Share]] = {
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
    "constant": lambda schedule: jnp.ones_like,
}


@dataclasses.dataclass(frozen=True)
class Schedule(Settings, group="schedule", resume=True):
    """The learning rate over `num_steps`, by default BERT's; `end`, `decay` and `period` fill in what is None."""

    name: str = phase_setting(
        "bert",
        choices=tuple(SHAPES),
        help="Shape after warmup: bert (linear to the end, counted from step 0, with a small drop where warmup ends), "
        "electra (the same decay times the warmup: no drop), linear (from the end of warmup), polynomial, cosine, wsd "
        "(constant, then 1 - sqrt), constant, inverse_sqrt (Noam), step, exponential, cyclical (triangles, without "
        "warmup), slanted_triangular (ULMFiT: warmup is its rise, a tenth of the run in the paper). rising_linear and "
        "rising_exponential go from `end_lr_ratio` up to the peak: the range tests of `bertjax lr-find`.",
    )
    learning_rate: float = linked("optimizer.learning_rate")
    num_steps: int = linked("train.num_steps")
    warmup_steps: int = phase_setting(
        10_000,
        at_least=0,
        follows=("train.num_steps", warmup),
        help="Steps of linear warmup from 0, by default 1 % of the run.",
    )
    end_lr_ratio: float | None = phase_setting(
        None,
        names=(*DECAYING, *REPEATING, *RISING),
        at_least=0.0,
        below=1.0,
        help="Lowest learning rate as a share of the peak, at the end or between cycles; None: 0, or 1/32 of "
        "slanted_triangular.",
    )
    power: float | None = phase_setting(
        None,
        names=("polynomial",),
        above=0.0,
        help="polynomial: power of the remaining share of the run; None: 1, a straight line.",
    )
    decay_steps: int | None = phase_setting(
        None, names=("wsd",), at_least=1, help="wsd: steps of the decay at the end; None: a tenth of the run."
    )
    period_steps: int | None = phase_setting(
        None,
        names=REPEATING,
        at_least=1,
        help="Steps between two drops (step), in which the rate falls by `factor` (exponential), or of one cycle, up "
        "and down (cyclical); None: a quarter of the run.",
    )
    factor: float | None = phase_setting(
        None,
        names=REPEATING,
        above=0.0,
        at_most=1.0,
        help='Factor on the rate per period, or on the height of a cycle (0.5: "triangular2"); None: 0.1, cyclical 1.',
    )

    def check(self) -> None:
        if self.warmup_steps > self.num_steps:
            raise UserError(
                f"schedule.warmup_steps must lie in 0..train.num_steps = {self.num_steps}, not {self.warmup_steps}"
            )
        if self.name in ("inverse_sqrt", "slanted_triangular") and self.warmup_steps == 0:
            raise UserError(f"schedule.name={self.name} starts with a rise: schedule.warmup_steps must be at least 1")
        if self.name == "cyclical" and self.warmup_steps > 0:
            raise UserError(
                f"schedule.name=cyclical has a rise in every cycle: set schedule.warmup_steps to 0, not "
                f"{self.warmup_steps}"
            )
        if self.name in RISING and (self.warmup_steps or not self.end_lr_ratio):
            raise UserError(
                f"schedule.name={self.name} rises from schedule.end_lr_ratio, which must be above 0, without "
                "schedule.warmup_steps"
            )
        rest = self.num_steps - self.warmup_steps
        if self.decay_steps is not None and self.decay_steps > rest:
            raise UserError(
                f"schedule.decay_steps must lie in 1..train.num_steps - schedule.warmup_steps = {rest}, not "
                f"{self.decay_steps}"
            )
        if self.name == "cyclical" and self.period_steps == 1:
            raise UserError("schedule.period_steps must be at least 2, not 1")

    @property
    def end(self) -> float:
        """Lowest share of the peak: 0, or the 1/32 of arXiv:1801.06146 for slanted triangles."""
        default = 1 / 32 if self.name == "slanted_triangular" else 0.0
        return default if self.end_lr_ratio is None else self.end_lr_ratio

    @property
    def decay(self) -> int:
        """Steps of the decay at the end: a tenth of the run."""
        default = min(self.num_steps // 10, self.num_steps - self.warmup_steps)
        return max(default if self.decay_steps is None else self.decay_steps, 1)

    @property
    def period(self) -> int:
        """Steps of a period: a quarter of the run."""
        return max(-(-self.num_steps // 4), 2) if self.period_steps is None else self.period_steps

    def rate(self, step: Array | int) -> Array:
        """Returns the learning rate of a step: the peak times a share, which rises from 0 over the warm-up.

        `bert` is the authors' (google-research/bert:optimization.py): the decay counts from step 0 and the warm-up lies
        over it, so the rate falls a little where the warm-up ends.
        """
        step, warmup, peak = jnp.asarray(step, jnp.float32), self.warmup_steps, self.learning_rate
        after = SHAPES[self.name](self)
        if not warmup or self.name in ("electra", "slanted_triangular"):  # which rise by themselves
            return peak * after(step)
        return jnp.where(step < warmup, peak * step / warmup, peak * after(step))


def join_schedules(schedules: Sequence[tuple[int, Schedule]]) -> optax.Schedule:
    """Returns the learning rate by step of a run in phases: at every step, that of the phase's schedule at this step.

    Args:
        schedules: First step and schedule of every phase.
    """

    def rate(step: Array) -> Array:
        current = schedules[0][1].rate(step)
        for (_, before), (start, schedule) in itertools.pairwise(schedules):
            if schedule != before:
                current = jnp.where(step >= start, schedule.rate(step), current)
        return current

    return rate
