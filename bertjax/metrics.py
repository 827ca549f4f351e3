"""Metrics: means of sums, and which of two values is the better one."""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from bertjax.types import Sum

T = TypeVar("T")

Metrics = Mapping[str, float]
"""Values by name: `train/...` of training steps, `eval/...` of held-out data, `eval/<set>/...` of one of them,
`test/...` of `task.test`."""

HIGHER_IS_BETTER = re.compile(
    r".*(accuracy|f1|precision|recall|matthews|pearson|spearman|exact_match|bleu|chrf|rouge\w)(_macro|_micro|_weighted)?"
)


def is_better(name: str, value: float, than: float) -> bool:
    """Returns whether a value of a metric is better: higher for scores, lower for losses.

    Args:
        name: Name of the metric.
        value: New value.
        than: Value to compare with.
    """
    return value > than if HIGHER_IS_BETTER.fullmatch(name) else value < than


def best_of(name: str, candidates: Sequence[T], value: Callable[[T], float]) -> T:
    """Returns the first of the candidates that no other is better than.

    Args:
        name: Name of the metric.
        candidates: One or more.
        value: Returns the metric of a candidate.
    """
    best = candidates[0]
    for each in candidates[1:]:
        best = each if is_better(name, value(each), value(best)) else best
    return best


def add_sums(sums: Sequence[Mapping[str, Sum]]) -> dict[str, Sum]:
    """Adds values to values and counts to counts, in float64 on the host."""
    return {
        name: Sum(sum(float(each[name].value) for each in sums), sum(float(each[name].count) for each in sums))
        for name in sums[0]
    }


def mean_metrics(sums: Mapping[str, Sum], loss_weights: Mapping[str, float]) -> dict[str, float]:
    """Divides every sum by its count.

    Args:
        sums: Values and counts over all data.
        loss_weights: Factors of the losses among them.

    Returns:
        The mean by name; losses get the suffix `_loss`, and `loss` is their weighted sum.
    """
    means = {name: float(total.value) / max(float(total.count), 1.0) for name, total in sums.items()}
    named = {f"{name}_loss" if name in loss_weights else name: value for name, value in means.items()}
    return {"loss": sum(weight * means[name] for name, weight in loss_weights.items()), **named}


def sample_stdev(values: Sequence[float]) -> float | None:
    """Returns the sample standard deviation; None for fewer than two values."""
    return statistics.stdev(values) if len(values) > 1 else None


def plus_minus(middle: float, values: Sequence[float], digits: int = 4, sign: str = "+-") -> str:
    """Returns the mean or median of values with their sample standard deviation."""
    stdev = sample_stdev(values)
    return f"{middle:.{digits}f}" + ("" if stdev is None else f" {sign} {stdev:.{digits}f}")


def scores_line(metrics: Metrics) -> str:
    """Returns held-out scores of a task in one line, without the prefix of their names."""
    return ", ".join(f"{name.rpartition('/')[2]} {value:.4f}" for name, value in metrics.items())
