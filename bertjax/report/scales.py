"""Axes: where ticks stand, how numbers are written, and how a value becomes a place."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

NOTHING = "\N{EN DASH}"
"""Stands where there is no value."""
SPAN = 1000.0
"""Of a drawing in its own units, either way."""


class Scale(NamedTuple):
    """From `low` to `high`, linear or logarithmic."""

    low: float
    high: float
    log: bool = False

    def place(self, values: np.ndarray) -> np.ndarray:
        """0 at `low`, `SPAN` at `high`; NaN where there is no such place."""
        values = np.asarray(values, np.float64)
        if not self.log:
            return SPAN * (values - self.low) / (self.high - self.low)
        with np.errstate(invalid="ignore", divide="ignore"):
            logs = np.where(values > 0, np.log10(np.where(values > 0, values, 1.0)), np.nan)
        return SPAN * (logs - math.log10(self.low)) / (math.log10(self.high) - math.log10(self.low))

    def ticks(self, form: str = "plain", most: int = 6) -> list[float]:
        """Round numbers in the units in which `number` writes them."""
        if self.log:
            return _log_ticks(self.low, self.high, most)
        unit = 1024.0 ** max(math.floor(math.log(max(self.high, 1.0), 1024.0)), 0) if form == "bytes" else 1.0
        return [tick * unit for tick in linear_ticks(self.low / unit, self.high / unit, most)]


def scale_of(low: float, high: float, log: bool = False, most: int = 6) -> Scale:
    """A scale that holds both, a little wider; `log` wants them above 0."""
    if log:
        if high <= low:
            low, high = low / 2, high * 2
        room = (high / low) ** 0.04
        return Scale(low / room, high * room, True)
    if high <= low:
        room = abs(low) * 0.1 or 1.0
        return Scale(low - room, high + room)
    room = 0.04 * (high - low)
    padded = low - room if low < 0 or low > room else 0.0
    return Scale(padded, high + room)


def linear_ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten, at most `most`, from `low` to `high`."""
    width = high - low
    if not math.isfinite(width) or width <= 0:
        return []
    power = 10.0 ** math.floor(math.log10(width / most))
    step = next(power * factor for factor in (1, 2, 5, 10, 20) if width / (power * factor) <= most)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [index * step for index in range(first, last + 1)]


def _log_ticks(low: float, high: float, most: int) -> list[float]:
    """Powers of ten; 2 and 5 times these, or a linear choice, where there are few."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for factors in ((1,), (1, 2, 5)):
        found = [factor * 10.0**power for power in decades for factor in factors]
        found = [tick for tick in found if low <= tick <= high]
        if len(found) >= 3:
            return found[:: -(-len(found) // most)]
    return [tick for tick in linear_ticks(low, high, most) if tick > 0]


def number(value: float | None, form: str = "plain") -> str:
    """A value as people read it: `plain` 4 digits, `percent`, `bytes`, `big` (12.3k), `small` (1.00e-04), `count`."""
    if value is None or not math.isfinite(value):
        return NOTHING
    if form == "percent":
        return f"{100 * value:.3g} %"
    if form == "count":
        return f"{value:,.0f}" if value == round(value) else f"{value:,.1f}"
    if form == "bytes":
        return _with_unit(value, 1024.0, (" B", " KiB", " MiB", " GiB", " TiB"))
    if form == "big":
        return _with_unit(value, 1000.0, ("", "k", "M", "G", "T", "P", "E"))
    if value != 0 and not 1e-3 <= abs(value) < 1e5:
        return f"{value:.2e}"
    return f"{value:.4g}"


def _with_unit(value: float, base: float, units: tuple[str, ...]) -> str:
    if abs(value) >= base ** len(units):
        return f"{value:.2e}"
    power = next((index for index in reversed(range(len(units))) if abs(value) >= base**index), 0)
    scaled = value / base**power
    return (f"{scaled:.3g}" if abs(scaled) < 1000 else f"{scaled:,.0f}") + units[power]
