"""Retention of checkpoints."""

from __future__ import annotations

import math
from collections.abc import Mapping


def steps_to_keep(
    scores: Mapping[int, float | None], keep: int, keep_every: int | None, lower_is_better: bool = True
) -> set[int]:
    """Returns the steps to retain.

    Args:
        scores: metric per finished step; the step with the best finite one stays.
        keep: number of the last steps that stay.
        keep_every: multiples of it stay; None = none.
        lower_is_better: the direction of the metric.
    """
    ordered = sorted(scores)
    retained = set(ordered[-keep:])
    if keep_every is not None:
        retained |= {step for step in ordered if step % keep_every == 0}
    best = select_best_step(scores, lower_is_better)
    return retained if best is None else retained | {best}


def select_best_step(scores: Mapping[int, float | None], lower_is_better: bool = True) -> int | None:
    """Returns the first step with the best finite score; None where no score is finite."""
    finite = {step: score for step, score in sorted(scores.items()) if score is not None and math.isfinite(score)}
    return (min if lower_is_better else max)(finite, key=finite.__getitem__) if finite else None
