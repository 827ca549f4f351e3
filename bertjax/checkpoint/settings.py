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

    def steps_to_keep(self, scores: Mapping[int, float | None]) -> set[int]:
        """Returns the steps to retain of those with a value of `best_metric`, or None where it was not measured."""
        ordered, best = sorted(scores), self.best_step(scores)
        retained = set(ordered[-self.keep :]) | ({best} if best is not None else set())
        return retained | {step for step in ordered if self.keep_every is not None and step % self.keep_every == 0}

    def best_step(self, scores: Mapping[int, float | None]) -> int | None:
        """Returns the first step with the best finite value of `best_metric`; None where no value is finite."""
        finite = {step: score for step, score in sorted(scores.items()) if score is not None and math.isfinite(score)}
        best = max if HIGHER_IS_BETTER.fullmatch(self.best_metric or "") else min
        return best(finite, key=finite.__getitem__) if finite else None
