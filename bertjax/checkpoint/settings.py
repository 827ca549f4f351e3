"""Settings of checkpoints, and the steps that stay; without orbax, so that a config is checked sooner."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

from bertjax.config.fields import Settings, setting
from bertjax.config.run import eval_interval
from bertjax.metrics import HIGHER_IS_BETTER


@dataclasses.dataclass(frozen=True)
class Checkpointing(Settings, group="checkpoint", resume=True):
    """Checkpoints: intervals and retention; one is always written at the end."""

    interval_steps: int = setting(
        50_000,
        at_least=0,
        follows=("train.num_steps", eval_interval),
        help="Steps between two checkpoints, by default a twentieth of the run and at least 100; 0: only at the end.",
    )
    interval_minutes: float | None = setting(
        None, above=0.0, help="Minutes after which a checkpoint is due regardless of steps; None: never."
    )
    keep: int = setting(3, at_least=1, help="Number of newest checkpoints to keep.")
    keep_every: int | None = setting(
        None, at_least=1, help="Keep every checkpoint whose step is a multiple of this as well; None: none."
    )
    best_metric: str | None = setting(
        None,
        help='Keep the best checkpoint by this metric of metrics.jsonl as well, such as "eval/mlm_loss"; smaller is '
        "better unless it ends in accuracy, f1, precision, recall, matthews, pearson, spearman, exact_match, bleu, "
        "chrf or the name of a ROUGE. None: none, or in a task with `task.eval` its main metric.",
    )

    @property
    def lower_is_better(self) -> bool:
        """True if the smallest value of `best_metric` is the best."""
        return not HIGHER_IS_BETTER.fullmatch(self.best_metric or "")


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
