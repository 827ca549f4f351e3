"""Learning rates at the steps where reimplementations go wrong."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from bertjax.training.config import ScheduleConfig
from bertjax.training.schedules import make_schedule


def rates(name: str, steps: list[int], peak: float = 1e-4, warmup: int = 10_000, total: int = 1_000_000) -> list[float]:
    schedule = make_schedule(ScheduleConfig(name, peak, warmup, total))
    return [float(schedule(step)) for step in steps]


def test_the_authors_decay_counts_from_step_zero() -> None:
    found = rates("bert", [0, 1, 5_000, 9_999, 10_000, 505_000, 1_000_000, 1_000_001])
    np.testing.assert_allclose(found, [0, 1e-8, 5e-5, 9.999e-5, 9.9e-5, 4.95e-5, 0, 0], rtol=1e-5, atol=1e-12)


def test_linear_decay_starts_at_the_peak() -> None:
    found = rates("linear", [0, 5_000, 10_000, 505_000, 1_000_000, 1_000_001])
    np.testing.assert_allclose(found, [0, 5e-5, 1e-4, 5e-5, 0, 0], rtol=1e-5, atol=1e-12)


def test_cosine_decay_is_half_way_at_half_time() -> None:
    found = rates("cosine", [0, 10_000, 257_500, 505_000, 1_000_000, 2_000_000])
    quarter = 0.5e-4 * (1 + np.sqrt(0.5))
    np.testing.assert_allclose(found, [0, 1e-4, quarter, 5e-5, 0, 0], rtol=1e-5, atol=1e-11)


def test_constant_stays() -> None:
    np.testing.assert_allclose(rates("constant", [0, 5_000, 10_000, 999_999]), [0, 5e-5, 1e-4, 1e-4], rtol=1e-6)


@pytest.mark.parametrize("name", ["bert", "linear", "cosine", "constant"])
def test_without_warmup_the_first_step_has_the_peak(name: str) -> None:
    np.testing.assert_allclose(rates(name, [0], warmup=0), [1e-4], rtol=1e-6)


@pytest.mark.parametrize("name", ["bert", "linear", "cosine", "constant"])
def test_a_traced_step_gives_the_same_rate(name: str) -> None:
    schedule = make_schedule(ScheduleConfig(name, 1e-4, 10, 100))
    traced = jax.jit(jax.vmap(schedule))(np.arange(0, 101, 5))
    np.testing.assert_allclose(traced, [float(schedule(step)) for step in range(0, 101, 5)], rtol=1e-5, atol=1e-11)
    assert traced.dtype == np.float32


def test_warmup_may_be_the_whole_run() -> None:
    np.testing.assert_allclose(rates("linear", [50, 100], warmup=100, total=100), [5e-5, 1e-4], rtol=1e-6)
