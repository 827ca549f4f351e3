"""Fewer points that look the same: extremes kept, gaps kept, and a smoothed companion."""

from __future__ import annotations

import itertools

import numpy as np

BUCKETS = 150
"""A chart is at most some 600 pixels wide: two points in every four of them."""
LEAST_SMOOTHED = 20
_SHARE = 0.03  # of the run, that a smoothed value is the mean of


def kept_points(values: np.ndarray, buckets: int = BUCKETS) -> np.ndarray:
    """Which of float64 [n] to draw, int64, ascending: at most 2 `buckets` + 2 of them.

    They are the least and the greatest value of every bucket, and both ends; a bucket without any finite value stays as
    a gap.
    """
    count = len(values)
    if count <= 2 * buckets + 2:
        return np.arange(count)
    edges = np.linspace(0, count, buckets + 1).astype(int)
    gaps = np.isnan(values)
    low, high = np.where(gaps, np.inf, values), np.where(gaps, -np.inf, values)
    kept = {0, count - 1}
    for start, stop in itertools.pairwise(edges.tolist()):
        kept |= {start + int(low[start:stop].argmin()), start + int(high[start:stop].argmax())}
    return np.array(sorted(kept))


def smoothed(values: np.ndarray) -> np.ndarray | None:
    """The mean of each value and its neighbours, as many on either side; None for a series too short to need it.

    A gap stays a gap, and is no part of its neighbours' means.
    """
    count = len(values)
    if count < LEAST_SMOOTHED:
        return None
    half = max(1, round(count * _SHARE / 2))
    finite = np.isfinite(values)
    sums = np.concatenate([[0.0], np.cumsum(np.where(finite, values, 0.0))])
    counts = np.concatenate([[0], np.cumsum(finite)])
    place = np.arange(count)
    reach = np.minimum(np.minimum(place, count - 1 - place), half)  # at the ends, too, as many on either side
    first, last = place - reach, place + reach + 1
    number = np.maximum(counts[last] - counts[first], 1)
    return np.where(finite, (sums[last] - sums[first]) / number, np.nan)
