"""Random numbers that are a pure function of a name, equal on every machine and for any number of threads.

Only the raw words of a Philox generator are used: numpy promises that these never change between releases, which it
does not promise for the methods of `Generator`.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]
UInt64Array = NDArray[np.uint64]
FloatArray = NDArray[np.float64]


class CounterRng:
    """One stream of random numbers, named by what it is for: `CounterRng("pairs", seed, draw)`."""

    def __init__(self, *name: str | int) -> None:
        digest = hashlib.sha256("/".join(map(str, name)).encode()).digest()
        self._philox = np.random.Philox(key=np.frombuffer(digest[:16], dtype="<u8").astype(np.uint64))

    def words(self, count: int) -> UInt64Array:
        """The next `count` words of 64 random bits."""
        return self._philox.random_raw(count)

    def uniform(self, count: int) -> FloatArray:
        """The next `count` numbers, uniform in [0, 1)."""
        return _fractions(self.words(count))

    def integers(self, limits: IntArray) -> IntArray:
        """For each limit >= 1 the next uniform integer in [0, limit)."""
        return scale(self.words(len(limits)), limits)


def scale(words: UInt64Array, limits: IntArray) -> IntArray:
    """Uniform integers in [0, limit), made of the top 53 bits of each word; limit 0 gives 0."""
    return (_fractions(words) * limits).astype(np.int64)


def _fractions(words: UInt64Array) -> FloatArray:
    return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53


def permutation(count: int, *name: str | int) -> IntArray:
    """A uniform random order of `count` things."""
    return np.argsort(CounterRng(*name).words(count), kind="stable")


def binomial_half(tosses: IntArray, draws: CounterRng) -> IntArray:
    """For each number of fair coin tosses how many fall heads: Binomial(tosses, 1/2), exactly."""
    total = np.zeros(len(tosses), dtype=np.int64)
    open_, left = np.flatnonzero(tosses > 0), tosses[tosses > 0]
    while open_.size:
        counted = np.minimum(left, 64)
        kept = draws.words(open_.size) >> (64 - counted).astype(np.uint64)
        total[open_] += np.bitwise_count(kept)
        left = left - 64
        more = left > 0
        open_, left = open_[more], left[more]
    return total
