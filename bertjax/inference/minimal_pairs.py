"""Accuracy on minimal pairs: how often a model prefers the correct sentence (BLiMP, arXiv:1912.00582)."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from bertjax.errors import UserError
from bertjax.tasks.metrics.sklearn_compat import require_same_length


@dataclasses.dataclass(frozen=True)
class PairScore:
    """Share of the pairs whose correct sentence has the higher score; a tie counts as wrong."""

    accuracy: float
    pairs: int
    ties: int


@dataclasses.dataclass(frozen=True)
class MinimalPairScores:
    """`overall` weighs all pairs alike, `macro_accuracy` all groups; groups are in the order of their first pair."""

    overall: PairScore
    macro_accuracy: float
    groups: dict[str, PairScore]


def minimal_pair_scores(
    good: Sequence[float] | np.ndarray, bad: Sequence[float] | np.ndarray, groups: Sequence[str] | None = None
) -> MinimalPairScores:
    """Scores n pairs of sentences, and each group of pairs.

    Args:
        good: (pseudo-)log-likelihoods of the correct sentences [n].
        bad: those of the wrong sentences [n].
        groups: group of each pair; None: no groups.

    Raises:
        UserError: there is nothing to score, the lengths differ, or a likelihood is nan.
    """
    require_same_length(len(good), len(bad), "sentences")
    right, wrong = np.asarray(good, np.float64), np.asarray(bad, np.float64)
    undefined = np.isnan(right) | np.isnan(wrong)
    if undefined.any():
        raise UserError(f"the likelihood of pair {int(undefined.argmax()) + 1} is nan; has the model diverged?")
    names = [""] * len(right) if groups is None else list(groups)
    require_same_length(len(right), len(names), "pairs")
    index = {name: number for number, name in enumerate(dict.fromkeys(names))}
    member = np.array([index[name] for name in names])
    scores = {name: _score(right[member == number], wrong[member == number]) for name, number in index.items()}
    macro = float(np.mean([score.accuracy for score in scores.values()]))
    return MinimalPairScores(_score(right, wrong), macro, {} if groups is None else scores)


def _score(good: np.ndarray, bad: np.ndarray) -> PairScore:
    return PairScore(float((good > bad).mean()), len(good), int((good == bad).sum()))
