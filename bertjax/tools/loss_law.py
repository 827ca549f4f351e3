"""A law of held-out losses by parameters and tokens, fitted by `scripts/fit_law.py` to runs of the recipe `bertjax`.

    loss / unigram loss = E + A (N' / 1e6)^-alpha + B (D' / 1e7 / (1 + T N / D'))^-beta, at most 1
    D' = U (1 + R* (1 - exp(-(D / U - 1) / R*))),   N' = V (1 + 5.3 (1 - exp(-(N / V - 1) / 5.3)))

N: parameters without the word table; D: tokens read; U: different tokens; V: the parameters for which one epoch of the
text is optimal, at most N (arXiv:2305.16264); T: tokens per parameter of the plateau at the start, where a model learns
frequencies and no more; long runs lack them. The loss is that of masked tokens, in nats, as a share of the loss of
guessing by frequency, so that it can be carried over to another text or vocabulary; that it can is an assumption.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np

FILE = Path(__file__).with_name("loss_law.json")
EXCESS = 5.3
"""R_N* of arXiv:2305.16264: what parameters are worth that are too many for the text."""
INTERVAL = (5.0, 95.0)
"""Percentiles between which an expected loss is printed."""


class Expected(NamedTuple):
    """Median of the share of the unigram loss that remains, and its interval."""

    median: float
    low: float
    high: float


@dataclasses.dataclass(frozen=True)
class LossLaw:
    """Samples of the law's coefficients, float64 [samples]; `sigma` is the deviation of single runs.

    Attributes:
        tokens: fewest and most tokens of the runs that it was fitted to.
        parameters: their fewest and most parameters without the word table.
    """

    E: np.ndarray
    A: np.ndarray
    alpha: np.ndarray
    B: np.ndarray
    beta: np.ndarray
    R: np.ndarray
    T: np.ndarray
    sigma: np.ndarray
    tokens: tuple[float, float]
    parameters: tuple[float, float]

    @classmethod
    def read(cls, path: Path = FILE) -> Self:
        """Reads what `scripts/fit_law.py` wrote."""
        values = json.loads(path.read_text(encoding="utf-8"))
        samples = np.array(values["samples"])
        names = [field.name for field in dataclasses.fields(cls)][: samples.shape[1]]
        return cls(
            **dict(zip(names, samples.T, strict=True)),
            tokens=tuple(values["tokens"]),
            parameters=tuple(values["parameters"]),
        )

    def shares(self, parameters: float, tokens: float, unique: float) -> np.ndarray:
        """Returns the share of the unigram loss that remains, by every sample of the coefficients.

        Args:
            parameters: those of the model without its word table.
            tokens: tokens read.
            unique: tokens of the text.
        """
        optimal = 1e6 * (self.alpha * self.A / (self.beta * self.B) * (unique / 1e7) ** self.beta) ** (1 / self.alpha)
        body = saturate(parameters, np.minimum(optimal, parameters), EXCESS)
        read = saturate(tokens, min(tokens, unique), self.R)
        learned = read / (1 + self.T * parameters / read)
        shares: np.ndarray = self.E + self.A * (body / 1e6) ** -self.alpha + self.B * (learned / 1e7) ** -self.beta
        return shares

    def expect(self, parameters: float, tokens: float, unique: float) -> Expected:
        """Returns the share to expect of a run. Args: those of `shares`."""
        shares = self.shares(parameters, tokens, unique)
        noise = np.random.default_rng(0).normal(size=shares.shape) * self.sigma
        low, high = np.percentile(np.clip(shares + noise, 0.0, 1.0), INTERVAL)
        return Expected(min(float(np.median(shares)), 1.0), float(low), float(high))

    def covers(self, parameters: float, tokens: float) -> bool:
        """Returns whether a run lies in the range that was measured, up to a factor of two."""
        ranges = ((parameters, self.parameters), (tokens, self.tokens))
        return all(low / 2 <= value <= 2 * high for value, (low, high) in ranges)


def saturate(amount: float, full: np.ndarray | float, limit: np.ndarray | float) -> np.ndarray:
    """Returns what an amount is worth whose part above `full` is worth less and less, at most `limit` times `full`."""
    excess = amount / np.asarray(full) - 1.0
    worth: np.ndarray = full * (1.0 - limit * np.expm1(-excess / limit))
    return worth


@functools.cache
def read_law() -> LossLaw:
    """Returns the law that comes with bertjax."""
    return LossLaw.read()
