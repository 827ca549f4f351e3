"""Semantic textual similarity: correlation of cosines with gold similarities (STS; arXiv:1708.00055)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bertjax.errors import UserError
from bertjax.tasks.metrics.regression import RegressionScores, regression_scores
from bertjax.tasks.metrics.sklearn_compat import require_same_length


def similarity_scores(first: np.ndarray, second: np.ndarray, gold: Sequence[float] | np.ndarray) -> RegressionScores:
    """Scores n pairs of vectors: correlations of their cosines with gold similarities.

    Args:
        first: vectors of the first texts [n, D].
        second: vectors of the second texts [n, D].
        gold: gold similarities [n], on any scale.

    Raises:
        UserError: the sizes differ.
    """
    require_same_length(len(gold), len(first), "similarities")
    return regression_scores(gold, cosines(first, second))


def cosines(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Returns the cosines of pairs of vectors, float64 [n]; 0 for a vector of zeros.

    Args:
        first, second: vectors [n, D].

    Raises:
        UserError: the shapes differ.
    """
    one, other = np.asarray(first, np.float64), np.asarray(second, np.float64)
    if one.ndim != 2 or one.shape != other.shape:
        raise UserError(f"vectors must come in pairs [n, D], not as {list(one.shape)} and {list(other.shape)}")
    lengths = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
    return np.einsum("nd,nd->n", one, other) / np.where(lengths > 0, lengths, 1.0)
