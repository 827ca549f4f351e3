"""Random numbers as a pure function of a name, equal on every machine and for any number of threads.

Only the raw bits of a Philox generator are used: NumPy guarantees that they never change between releases, which it
does not guarantee for the methods of `Generator`.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]
UInt64Array = NDArray[np.uint64]
FloatArray = NDArray[np.float64]


class CounterRng:
    """Stream of random numbers, named by its purpose: `CounterRng("pairs", seed, draw)`."""

    def __init__(self, *name: str | int) -> None:
        digest = hashlib.sha256("/".join(map(str, name)).encode()).digest()
        self._philox = np.random.Philox(key=np.frombuffer(digest[:16], dtype="<u8").astype(np.uint64))

    def random_bits(self, count: int) -> UInt64Array:
        """Returns the next `count` integers of 64 random bits."""
        return self._philox.random_raw(count)

    def uniform(self, count: int) -> FloatArray:
        """Returns the next `count` numbers, uniform in [0, 1)."""
        return _to_fractions(self.random_bits(count))

    def integers(self, limits: IntArray) -> IntArray:
        """Returns for each limit >= 1 the next uniform integer in [0, limit)."""
        return bits_to_integers(self.random_bits(len(limits)), limits)


def bits_to_integers(bits: UInt64Array, limits: IntArray) -> IntArray:
    """Returns uniform integers in [0, limit) made of the top 53 bits of each number; limit 0 gives 0."""
    return (_to_fractions(bits) * limits).astype(np.int64)


def _to_fractions(bits: UInt64Array) -> FloatArray:
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def permutation(count: int, *name: str | int) -> IntArray:
    """Returns a uniform random order of `count` items."""
    return np.argsort(CounterRng(*name).random_bits(count), kind="stable")


def binomial_half(trials: IntArray, rng: CounterRng) -> IntArray:
    """Returns an exact sample of Binomial(trials, 1/2) per entry: the number of set bits among `trials` random bits."""
    total = np.zeros(len(trials), dtype=np.int64)
    pending, left = np.flatnonzero(trials > 0), trials[trials > 0]
    while pending.size:
        bits = rng.random_bits(pending.size) >> (64 - np.minimum(left, 64)).astype(np.uint64)
        total[pending] += np.bitwise_count(bits)
        left = left - 64
        more = left > 0
        pending, left = pending[more], left[more]
    return total
