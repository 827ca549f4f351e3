"""Axes: positions of ticks, and formatting of numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertjax.report.scales import NO_VALUE, SPAN, Scale, linear_ticks, make_scale, number


@given(st.floats(-1e12, 1e12), st.floats(1e-9, 1e12), st.integers(2, 9))
def test_ticks_are_round_few_and_inside(low: float, width: float, maximum: int) -> None:
    high = low + width
    if high - low < 1e-9 * max(abs(low), abs(high), 1e-300):
        return  # no difference that floats can represent
    ticks = linear_ticks(low, high, maximum)
    assert len(ticks) <= maximum + 1
    margin = 1e-6 * (high - low)
    assert all(low - margin <= tick <= high + margin for tick in ticks)


def test_ticks_by_hand() -> None:
    assert linear_ticks(0, 10, 6) == [0, 2, 4, 6, 8, 10]
    assert linear_ticks(0.31, 0.52, 5) == pytest.approx([0.35, 0.4, 0.45, 0.5])
    assert Scale(1e-5, 1e-1, log=True).ticks() == pytest.approx([1e-5, 1e-4, 1e-3, 1e-2, 1e-1])
    assert Scale(5, 8, log=True).ticks(), "less than a decade has ticks, too"


def test_positions() -> None:
    assert Scale(2, 4).project(np.array([2, 3, 4])).tolist() == [0, SPAN / 2, SPAN]
    positions = Scale(1, 100, log=True).project(np.array([1, 10, 100, 0, -1]))
    assert positions[:3].tolist() == [0, SPAN / 2, SPAN] and np.isnan(positions[3:]).all()


@pytest.mark.parametrize("log", [False, True])
def test_the_highest_value_does_not_touch_the_frame(log: bool) -> None:
    positions = make_scale(5.0, 8.0, log).project(np.array([5.0, 8.0]))
    assert positions[0] > 10 and positions[1] < SPAN - 10


@pytest.mark.parametrize("low,high,log", [(3.0, 3.0, False), (0.0, 0.0, False), (-1.0, -1.0, False), (2.0, 2.0, True)])
def test_a_flat_line_has_a_scale(low: float, high: float, log: bool) -> None:
    scale = make_scale(low, high, log)
    assert scale.low <= low < scale.high
    assert np.isfinite(scale.project(np.array(low)))


@pytest.mark.parametrize(
    "value,form,written",
    [
        (None, "plain", NO_VALUE),
        (math.nan, "percent", NO_VALUE),
        (math.inf, "big", NO_VALUE),
        (0.12345, "plain", "0.1235"),
        (1e-5, "plain", "1.00e-05"),
        (0.0, "plain", "0"),
        (0.2504, "percent", "25 %"),
        (0.00123, "percent", "0.123 %"),
        (12_345, "big", "12.3k"),
        (999, "big", "999"),
        (1e25, "big", "1.00e+25"),
        (3 * 2**30, "bytes", "3 GiB"),
        (1000 * 2**20, "bytes", "1,000 MiB"),
        (12345, "count", "12,345"),
    ],
)
def test_numbers_as_people_read_them(value: float | None, form: str, written: str) -> None:
    assert number(value, form) == written


@pytest.mark.parametrize(
    "low,high,form,written",
    [
        (0.6152, 0.6165, "percent", ["61.55 %", "61.60 %", "61.65 %"]),
        (7.1, 9.2, "plain", ["7.5", "8.0", "8.5", "9.0"]),
        (0.0, 0.002, "plain", ["0.0000", "0.0005", "0.0010", "0.0015", "0.0020"]),
        (0.0, 5e-5, "plain", ["0", "1e-5", "2e-5", "3e-5", "4e-5", "5e-5"]),
        (12_341, 12_362, "big", ["12.345k", "12.35k", "12.355k", "12.36k"]),
        (-3.0, 1.0, "plain", ["-3", "-2", "-1", "0", "1"]),
    ],
)
def test_ticks_are_distinguished(low: float, high: float, form: str, written: list[str]) -> None:
    ticks = linear_ticks(low, high)
    assert Scale(low, high).tick_labels(ticks, form) == written
