"""How often a model prefers the right sentence to one that differs a little and is wrong (BLiMP, arXiv:1912.00582)."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from bertjax.errors import UserError
from bertjax.finetuning.metrics.sklearn_compat import require_same_length


@dataclasses.dataclass(frozen=True)
class PairScore:
    """`accuracy`: share of the pairs whose right sentence has the higher score. A tie is no preference: not right."""

    accuracy: float
    pairs: int
    ties: int


@dataclasses.dataclass(frozen=True)
class MinimalPairScores:
    """`overall` weighs every pair alike, `macro_accuracy` every group; groups are in the order of their first pair."""

    overall: PairScore
    macro_accuracy: float
    groups: dict[str, PairScore]

    def metrics(self) -> dict[str, float]:
        return {"accuracy": self.overall.accuracy, "macro_accuracy": self.macro_accuracy}


def minimal_pair_scores(
    good: Sequence[float] | np.ndarray, bad: Sequence[float] | np.ndarray, groups: Sequence[str] | None = None
) -> MinimalPairScores:
    """Scores of n pairs by the (pseudo-)log-likelihoods of their sentences, and of each group by itself.

    Raises `UserError` for nothing, other lengths, and likelihoods that are no numbers.
    """
    require_same_length(len(good), len(bad), "sentences")
    right, wrong = np.asarray(good, np.float64), np.asarray(bad, np.float64)
    undefined = np.isnan(right) | np.isnan(wrong)
    if undefined.any():
        raise UserError(f"the likelihood of pair {int(undefined.argmax()) + 1} is no number; has the model diverged?")
    names = [""] * len(right) if groups is None else list(groups)
    require_same_length(len(right), len(names), "pairs")
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    member = np.array([numbers[name] for name in names])
    found = {name: _score(right[member == number], wrong[member == number]) for name, number in numbers.items()}
    macro = float(np.mean([score.accuracy for score in found.values()]))
    return MinimalPairScores(_score(right, wrong), macro, {} if groups is None else found)


def _score(good: np.ndarray, bad: np.ndarray) -> PairScore:
    return PairScore(float((good > bad).mean()), len(good), int((good == bad).sum()))
