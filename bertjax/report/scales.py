"""Scales of chart axes: ticks, number formatting and projection of values to drawing units."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

NO_VALUE = "\N{EN DASH}"
"""Text in place of a missing value."""
SPAN = 1000.0
"""Width and height of a drawing in its own units."""


class Scale(NamedTuple):
    """A linear or logarithmic scale from `low` to `high`."""

    low: float
    high: float
    log: bool = False

    def project(self, values: np.ndarray) -> np.ndarray:
        """Returns drawing units of values [n], 0 at `low`, `SPAN` at `high`, NaN where a logarithm does not exist."""
        values = np.asarray(values, np.float64)
        if not self.log:
            return SPAN * (values - self.low) / (self.high - self.low)
        with np.errstate(invalid="ignore", divide="ignore"):
            logs = np.where(values > 0, np.log10(np.where(values > 0, values, 1.0)), np.nan)
        return SPAN * (logs - math.log10(self.low)) / (math.log10(self.high) - math.log10(self.low))

    def ticks(self, number_format: str = "plain", max_ticks: int = 6) -> list[float]:
        """Returns round numbers in the unit in which `number` prints them."""
        if self.log:
            return _log_ticks(self.low, self.high, max_ticks)
        unit = 1024.0 ** max(math.floor(math.log(max(self.high, 1.0), 1024.0)), 0) if number_format == "bytes" else 1.0
        return [tick * unit for tick in linear_ticks(self.low / unit, self.high / unit, max_ticks)]

    def tick_labels(self, ticks: Sequence[float], number_format: str = "plain") -> list[str]:
        """Returns the texts of ticks: one notation, and the digits that tell neighbors apart.

        Args:
            ticks: Result of `ticks`.
            number_format: Format of `number`.
        """
        if self.log or len(ticks) < 2 or number_format not in ("plain", "percent"):
            return [number(tick, number_format, digits=_digits(ticks, number_format)) for tick in ticks]
        factor, unit = (100.0, " %") if number_format == "percent" else (1.0, "")
        power = math.floor(math.log10((ticks[1] - ticks[0]) * factor) + 1e-9)
        largest = max(abs(tick * factor) for tick in ticks)
        if 1e-3 <= largest < 1e5:
            return [f"{tick * factor:.{max(-power, 0)}f}{unit}" for tick in ticks]
        top = math.floor(math.log10(largest))
        return [f"{tick * factor / 10.0**top:.{top - power}f}e{top}{unit}" if tick else f"0{unit}" for tick in ticks]


def make_scale(low: float, high: float, log: bool = False) -> Scale:
    """Returns a scale slightly wider than [low, high].

    Args:
        low: Smallest value; positive if `log`.
        high: Largest value.
        log: Logarithmic scale.
    """
    if log:
        if high <= low:
            low, high = low / 2, high * 2
        margin = (high / low) ** 0.04
        return Scale(low / margin, high * margin, True)
    if high <= low:
        margin = abs(low) * 0.1
        return Scale(low - margin, high + margin if low else 1.0)
    margin = 0.04 * (high - low)
    padded = low - margin if low < 0 or low > margin else 0.0
    return Scale(padded, high + margin)


def linear_ticks(low: float, high: float, max_ticks: int = 6) -> list[float]:
    """Returns at most `max_ticks` multiples of 1, 2 or 5 times a power of ten within [low, high].

    Args:
        low: Lower end.
        high: Upper end.
        max_ticks: Maximum number of ticks.
    """
    width = high - low
    if not math.isfinite(width) or width <= 0:
        return []
    power = 10.0 ** math.floor(math.log10(width / max_ticks))
    step = next(power * factor for factor in (1, 2, 5, 10, 20) if width / (power * factor) <= max_ticks)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [index * step for index in range(first, last + 1)]


def _log_ticks(low: float, high: float, max_ticks: int) -> list[float]:
    """Returns powers of ten; with 2 and 5 times these, or linear ticks, if there are few."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for factors in ((1,), (1, 2, 5)):
        ticks = [tick for power in decades for factor in factors if low <= (tick := factor * 10.0**power) <= high]
        if len(ticks) >= 3:
            return ticks[:: -(-len(ticks) // max_ticks)]
    return [tick for tick in linear_ticks(low, high, max_ticks) if tick > 0]


def _digits(ticks: Sequence[float], number_format: str) -> int:
    """Returns the smallest number of significant digits, from 3 on, that tells all ticks apart."""
    texts = ({number(tick, number_format, digits=digits) for tick in ticks} for digits in range(3, 9))
    return next((digits for digits, distinct in enumerate(texts, 3) if len(distinct) == len(ticks)), 3)


def number(value: float | None, number_format: str = "plain", digits: int = 3) -> str:
    """Formats a value.

    Args:
        value: None and non-finite values become a dash.
        number_format: `plain` (4 digits), `percent`, `share` (percent with one decimal, for columns), `bytes`,
            `big` (12.3k) or `count` (12,345).
        digits: Significant digits of `bytes` and `big`.
    """
    if value is None or not math.isfinite(value):
        return NO_VALUE
    if number_format == "percent":
        return f"{100 * value:.{3 if abs(value) >= 1e-3 else 1}g} %"
    if number_format == "share":
        return f"{100 * value:.1f} %"
    if number_format == "count":
        return f"{value:,.0f}" if value == round(value) else f"{value:,.1f}"
    if number_format == "bytes":
        return _with_unit(value, 1024.0, (" B", " KiB", " MiB", " GiB", " TiB"), digits)
    if number_format == "big":
        return _with_unit(value, 1000.0, ("", "k", "M", "G", "T", "P", "E"), digits)
    if value != 0 and not 1e-3 <= abs(value) < 1e5:
        return f"{value:.2e}"
    return f"{value:.4g}"


def _with_unit(value: float, base: float, units: tuple[str, ...], digits: int) -> str:
    if abs(value) >= base ** len(units):
        return f"{value:.2e}"
    power = next((index for index in reversed(range(len(units))) if abs(value) >= base**index), 0)
    scaled = value / base**power
    return (f"{scaled:.{digits}g}" if abs(scaled) < 1000 else f"{scaled:,.0f}") + units[power]
