"""Charts of long runs: few points, the same extremes."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bertjax.report.chart import downsample_indices, smooth_series

NAN = float("nan")


def test_extremes_ends_and_gaps_survive() -> None:
    values = np.random.default_rng(0).normal(size=10_000)
    values[[0, 1234, 9_999]] = 3.0, 50.0, -2.0
    values[7777] = -40.0
    values[4000:4500] = NAN
    selected = downsample_indices(values)
    assert len(selected) <= 302
    assert {0, 1234, 7777, 9_999} <= set(selected.tolist())
    assert np.isnan(values[selected]).any(), "the gap is drawn over"
    assert (np.diff(selected) > 0).all()


def test_a_short_series_is_kept_whole() -> None:
    assert downsample_indices(np.arange(302.0)).tolist() == list(range(302))


@given(st.lists(st.floats(-1e6, 1e6) | st.just(NAN), min_size=1, max_size=400), st.integers(1, 40))
def test_whatever_the_values_the_extremes_are_kept(values: list[float], buckets: int) -> None:
    array = np.array(values)
    selected = array[downsample_indices(array, buckets)]
    assert len(selected) <= max(2 * buckets + 2, 1)
    if np.isfinite(array).any():
        assert np.nanmax(selected) == np.nanmax(array) and np.nanmin(selected) == np.nanmin(array)


def test_smoothing_is_the_mean_of_as_many_on_either_side() -> None:
    values = np.arange(200.0) ** 2
    result = smooth_series(values)
    assert result is not None
    # 3 % of 200 is six: three on either side, fewer at the ends
    assert result[100] == np.mean(values[97:104])
    assert result[0] == values[0] and result[-1] == values[-1]
    assert result[1] == np.mean(values[0:3])


def test_smoothing_leaves_gaps_and_does_not_spread_them() -> None:
    values = np.ones(100)
    values[50] = NAN
    result = smooth_series(values)
    assert result is not None
    assert np.flatnonzero(np.isnan(result)).tolist() == [50]
    assert (result[~np.isnan(result)] == 1).all()
    assert smooth_series(np.ones(19)) is None
