"""Learning rates at the steps where reimplementations differ."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from bertjax.training.schedule import Schedule, join_schedules


def rates(name: str, steps: list[int], peak: float = 1e-4, warmup: int = 10_000, total: int = 1_000_000) -> list[float]:
    schedule = Schedule(name, learning_rate=peak, warmup_steps=warmup, num_steps=total).rate
    return [float(schedule(step)) for step in steps]


def test_the_authors_decay_counts_from_step_zero() -> None:
    result = rates("bert", [0, 1, 5_000, 9_999, 10_000, 505_000, 1_000_000, 1_000_001])
    np.testing.assert_allclose(result, [0, 1e-8, 5e-5, 9.999e-5, 9.9e-5, 4.95e-5, 0, 0], rtol=1e-5, atol=1e-12)


def test_linear_decay_starts_at_the_peak() -> None:
    result = rates("linear", [0, 5_000, 10_000, 505_000, 1_000_000, 1_000_001])
    np.testing.assert_allclose(result, [0, 5e-5, 1e-4, 5e-5, 0, 0], rtol=1e-5, atol=1e-12)


def test_cosine_decay_is_half_way_at_half_time() -> None:
    result = rates("cosine", [0, 10_000, 257_500, 505_000, 1_000_000, 2_000_000])
    quarter = 0.5e-4 * (1 + np.sqrt(0.5))
    np.testing.assert_allclose(result, [0, 1e-4, quarter, 5e-5, 0, 0], rtol=1e-5, atol=1e-11)


def test_constant_stays() -> None:
    np.testing.assert_allclose(rates("constant", [0, 5_000, 10_000, 999_999]), [0, 5e-5, 1e-4, 1e-4], rtol=1e-6)


@pytest.mark.parametrize("name", ["bert", "linear", "cosine", "constant"])
def test_without_warmup_the_first_step_has_the_peak(name: str) -> None:
    np.testing.assert_allclose(rates(name, [0], warmup=0), [1e-4], rtol=1e-6)


@pytest.mark.parametrize("name", ["bert", "linear", "cosine", "constant"])
def test_a_traced_step_gives_the_same_rate(name: str) -> None:
    schedule = Schedule(name, learning_rate=1e-4, warmup_steps=10, num_steps=100).rate
    traced = jax.jit(jax.vmap(schedule))(np.arange(0, 101, 5))
    np.testing.assert_allclose(traced, [float(schedule(step)) for step in range(0, 101, 5)], rtol=1e-5, atol=1e-11)
    assert traced.dtype == np.float32


def test_warmup_may_be_the_whole_run() -> None:
    np.testing.assert_allclose(rates("linear", [50, 100], warmup=100, total=100), [5e-5, 1e-4], rtol=1e-6)


def shares(name: str, steps: list[int], warmup: int, total: int, **settings: float | int) -> list[float]:
    schedule = Schedule(name, learning_rate=2.0, warmup_steps=warmup, num_steps=total, **settings).rate
    return [float(schedule(step)) / 2.0 for step in steps]


def test_electras_decay_and_warmup_both_act() -> None:
    """google-research/electra:model/optimization.py at 1 of 10: (1 - t / T) min(1, t / w); no drop after the warmup."""
    result = shares("electra", [0, 5, 9, 10, 55, 100], 10, 100)
    np.testing.assert_allclose(result, [0, 0.5 * 0.95, 0.9 * 0.91, 0.9, 0.45, 0], rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(shares("electra", [0, 50], 0, 100, end_lr_ratio=0.2), [1.0, 0.6], rtol=1e-6)


def test_polynomial_ends_at_its_share() -> None:
    """A linear decay to 0.001 is XLNet's pretraining (model_utils.py, min_lr_ratio)."""
    result = shares("polynomial", [20, 40, 520, 1000, 2000], 40, 1000, end_lr_ratio=0.001)
    np.testing.assert_allclose(result, [0.5, 1.0, 0.5005, 0.001, 0.001], rtol=1e-5)
    np.testing.assert_allclose(shares("polynomial", [0, 50, 75], 0, 100, power=2.0), [1, 0.25, 0.0625], rtol=1e-5)


def test_other_decays_end_at_their_share_too() -> None:
    for name in ("linear", "cosine", "bert", "electra", "wsd"):
        np.testing.assert_allclose(shares(name, [100, 101], 10, 100, end_lr_ratio=0.1), [0.1, 0.1], rtol=1e-5)
    np.testing.assert_allclose(shares("cosine", [55], 10, 100, end_lr_ratio=0.1), [0.55], rtol=1e-5)


def test_warmup_stable_decay_falls_by_the_root() -> None:
    """1 - sqrt of the completed share of the decay (ModernBERT's last 50B tokens, down to 0.001)."""
    result = shares("wsd", [50, 100, 899, 900, 925, 964, 1000, 1001], 100, 1000, end_lr_ratio=0.001)
    expected = [0.5, 1, 1, 1, 0.001 + 0.999 * 0.5, 0.001 + 0.999 * 0.2, 0.001, 0.001]
    np.testing.assert_allclose(result, expected, rtol=1e-5)
    np.testing.assert_allclose(shares("wsd", [0, 64, 100], 0, 100, decay_steps=100), [1, 0.2, 0], rtol=1e-5, atol=1e-7)


def test_inverse_sqrt_is_noams() -> None:
    """d^-0.5 min(t^-0.5, t w^-1.5) of arXiv:1706.03762 with d = 512 and w = 4000: its peak is 6.99e-4."""
    steps = [1, 2000, 4000, 16_000, 100_000]
    noam = [512**-0.5 * min(step**-0.5, step * 4000**-1.5) for step in steps]
    assert round(noam[2], 6) == 0.000699
    np.testing.assert_allclose(rates("inverse_sqrt", steps, noam[2], 4000, 100_000), noam, rtol=1e-5)


def test_steps_fall_on_time() -> None:
    result = shares("step", [9, 10, 39, 40, 69, 70, 100], 10, 100, period_steps=30)
    np.testing.assert_allclose(result, [0.9, 1, 1, 0.1, 0.1, 0.01, 0.001], rtol=1e-5)
    schedule = Schedule("step", learning_rate=1.0, warmup_steps=0, num_steps=10**6, period_steps=997, factor=0.999).rate
    edges = np.arange(1, 900) * 997
    result = np.asarray(jax.jit(jax.vmap(schedule))(np.stack([edges - 1, edges])))
    np.testing.assert_allclose(result[1] / result[0], 0.999, rtol=1e-5)  # never one step early or late
    np.testing.assert_allclose(shares("step", [99], 0, 100, period_steps=10, end_lr_ratio=0.3), [0.3], rtol=1e-6)


def test_exponential_falls_by_its_factor_a_period() -> None:
    result = shares("exponential", [10, 25, 40, 70], 10, 100, period_steps=30, factor=0.5)
    np.testing.assert_allclose(result, [1, 0.5**0.5, 0.5, 0.25], rtol=1e-5)


def test_cycles_are_triangles() -> None:
    """arXiv:1506.01186: base 0.001, max 0.006, step size 2000; "triangular2" halves the height cycle by cycle."""

    def cyclical(step: int, base: float, peak: float, size: int, shrink: float) -> float:
        cycle = np.floor(1 + step / (2 * size))
        x = np.abs(step / size - 2 * cycle + 1)
        return base + (peak - base) * max(0.0, 1 - x) * shrink ** (cycle - 1)

    steps = [0, 500, 2000, 3000, 4000, 5000, 6000, 8000, 9999, 10_000]
    for factor in (1.0, 0.5):
        settings = {"end_lr_ratio": 1 / 6, "period_steps": 4000, "factor": factor}
        schedule = Schedule("cyclical", learning_rate=0.006, warmup_steps=0, num_steps=12_000, **settings).rate
        expected = [cyclical(step, 0.001, 0.006, 2000, factor) for step in steps]
        np.testing.assert_allclose([float(schedule(step)) for step in steps], expected, rtol=1e-5)
    assert float(
        Schedule("cyclical", learning_rate=0.006, warmup_steps=0, num_steps=12_000).rate(1500)
    ) == pytest.approx(0.006)


def test_slanted_triangles_are_ulmfits() -> None:
    """arXiv:1801.06146, section 3.2: cut 0.1, ratio 32, at most 0.01."""

    def slanted(step: int, total: int) -> float:
        cut = int(total * 0.1)
        p = step / cut if step < cut else 1 - (step - cut) / (cut * (1 / 0.1 - 1))
        return 0.01 * (1 + p * (32 - 1)) / 32

    steps = [0, 50, 99, 100, 400, 999, 1000]
    result = rates("slanted_triangular", steps, 0.01, 100, 1000)
    np.testing.assert_allclose(result, [slanted(step, 1000) for step in steps], rtol=1e-5)


ALL = [
    ("electra", 10, {}),
    ("polynomial", 10, {"power": 2.0}),
    ("wsd", 10, {"decay_steps": 30}),
    ("inverse_sqrt", 10, {}),
    ("step", 10, {"period_steps": 20}),
    ("exponential", 10, {"factor": 0.5}),
    ("cyclical", 0, {"period_steps": 30, "factor": 0.5}),
    ("slanted_triangular", 10, {}),
]


@pytest.mark.parametrize(("name", "warmup", "settings"), ALL, ids=[name for name, *_ in ALL])
def test_every_schedule_can_be_traced_and_stays_between_nothing_and_the_peak(
    name: str, warmup: int, settings: dict
) -> None:
    schedule, steps = (
        Schedule(name, learning_rate=0.5, warmup_steps=warmup, num_steps=100, **settings).rate,
        np.arange(0, 110),
    )
    traced = np.asarray(jax.jit(jax.vmap(schedule))(steps))
    np.testing.assert_allclose(traced, [float(schedule(step)) for step in steps], rtol=1e-5, atol=1e-7)
    assert traced.dtype == np.float32 and np.isfinite(traced).all()
    assert (traced >= 0).all() and (traced <= 0.5 * (1 + 1e-6)).all()
    assert traced.max() > 0.44


def test_phases_have_peaks_of_their_own() -> None:
    configs = [
        (start, Schedule("wsd", learning_rate=peak, warmup_steps=10, num_steps=100, decay_steps=20))
        for start, peak in ((0, 8e-4), (60, 3e-4))
    ]
    schedule = join_schedules(configs)
    np.testing.assert_allclose(
        [float(schedule(step)) for step in (5, 59, 60, 80, 85)], [4e-4, 8e-4, 3e-4, 3e-4, 1.5e-4], rtol=1e-6
    )


def test_a_phase_follows_its_schedule_at_the_steps_of_the_run() -> None:
    first, last = (
        Schedule("constant", learning_rate=8e-4, warmup_steps=10, num_steps=100),
        Schedule("cosine", learning_rate=8e-4, warmup_steps=0, num_steps=100),
    )
    schedule, steps = join_schedules([(0, first), (50, last)]), np.arange(100)
    expected = [float((first if step < 50 else last).rate(step)) for step in steps]
    np.testing.assert_array_equal([float(schedule(step)) for step in steps], expected)
