"""Downsampling of long series that preserves extremes and gaps, and a running mean."""

from __future__ import annotations

import itertools

import numpy as np

BUCKETS = 150
"""Charts are at most about 600 pixels wide: two points per four pixels."""
MIN_SMOOTHED = 20
_SHARE = 0.03  # share of the run that a smoothed value averages


def downsample_indices(values: np.ndarray, buckets: int = BUCKETS) -> np.ndarray:
    """Returns the indices to draw of float64 [n], ascending int64 [at most 2 * buckets + 2].

    These are the minimum and maximum of every bucket, and both ends; a bucket without a finite value stays a gap.
    """
    count = len(values)
    if count <= 2 * buckets + 2:
        return np.arange(count)
    edges = np.linspace(0, count, buckets + 1).astype(int)
    gaps = np.isnan(values)
    low, high = np.where(gaps, np.inf, values), np.where(gaps, -np.inf, values)
    indices = {0, count - 1}
    for start, stop in itertools.pairwise(edges.tolist()):
        indices |= {start + int(low[start:stop].argmin()), start + int(high[start:stop].argmax())}
    return np.array(sorted(indices))


def smooth_series(values: np.ndarray) -> np.ndarray | None:
    """Returns the centered running mean of float64 [n]; None for a series too short to need it.

    A gap (NaN) stays a gap and does not enter the mean of its neighbors.
    """
    count = len(values)
    if count < MIN_SMOOTHED:
        return None
    half = max(1, round(count * _SHARE / 2))
    finite = np.isfinite(values)
    sums = np.concatenate([[0.0], np.cumsum(np.where(finite, values, 0.0))])
    counts = np.concatenate([[0], np.cumsum(finite)])
    index = np.arange(count)
    reach = np.minimum(np.minimum(index, count - 1 - index), half)  # the window shrinks at the ends and stays centered
    first, last = index - reach, index + reach + 1
    number = np.maximum(counts[last] - counts[first], 1)
    return np.where(finite, (sums[last] - sums[first]) / number, np.nan)
