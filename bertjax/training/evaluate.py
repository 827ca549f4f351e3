"""Evaluation on held-out data: fixed sequences, fixed masks, sums over everything before any mean is taken."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
from jax.sharding import Mesh

from bertjax.errors import UserError
from bertjax.metrics import Metrics, add_sums, is_better, mean_metrics
from bertjax.objectives.base import Objective, StepInputs
from bertjax.training.settings import LoopSettings
from bertjax.training.sharding import put_batch
from bertjax.types import Batch, Params, Sum

EvalStep = Callable[..., tuple[dict[str, Sum], Any]]
"""`eval_step(params, inputs, batch)` -> (sums, carry): `step.compile_eval_step`."""


def evaluate(
    eval_step: EvalStep,
    params: Params,
    frozen: Any,
    eval_sets: Mapping[str, Iterable[Batch]],
    objective: Objective,
    mesh: Mesh,
) -> dict[str, float]:
    """Computes the metrics of held-out sets.

    Args:
        eval_step: The compiled step over one batch.
        params: Weights to evaluate, on the mesh.
        frozen: Weights that the objective reads in addition, on the mesh.
        eval_sets: Batches by the name of the set; every set has a carry of its own.
        objective: Names the losses, and makes the first carry.
        mesh: Devices of the batches.

    Returns:
        `eval/<name>` over all sets and, where there are several sets, `eval/<set>/<name>` for each.
    """
    totals: dict[str, dict[str, Sum]] = {}
    for set_name, batches in eval_sets.items():
        pending, carry = [], None
        for batch in batches:  # all steps are dispatched first: reading a result waits for the device
            placed = put_batch(batch, mesh)
            if carry is None:
                carry = put_batch(objective.init_carry(len(next(iter(batch.values())))), mesh)
            sums, carry = eval_step(params, StepInputs(frozen, carry), placed)
            pending.append(sums)
        totals[set_name] = add_sums(jax.device_get(pending))
    groups = {"eval": add_sums(list(totals.values()))}
    if len(totals) > 1:
        groups |= {f"eval/{set_name}": sums for set_name, sums in totals.items()}
    return {
        f"{prefix}/{name}": value
        for prefix, sums in groups.items()
        for name, value in mean_metrics(sums, objective.loss_weights).items()
    }


def make_evaluate(
    eval_step: EvalStep, eval_sets: Callable[[], Mapping[str, Iterable[Batch]]], objective: Objective, mesh: Mesh
) -> Callable[[Params, Any], dict[str, float]]:
    """Returns `evaluate` as a function of (params, frozen).

    Args:
        eval_step: The compiled step over one batch.
        eval_sets: Makes the batches by the name of their set; called once, at the first evaluation.
        objective: Objective of the step.
        mesh: Devices of the batches.
    """
    sets = functools.cache(eval_sets)
    return lambda params, frozen: evaluate(eval_step, params, frozen, sets(), objective, mesh)


def eval_set_names(metrics: Metrics) -> list[str]:
    """Returns the held-out sets that have metrics of their own: `eval/<set>/<name>`."""
    return list(dict.fromkeys(key.split("/")[1] for key in metrics if key.count("/") == 2))


class EarlyStopping:
    """Best value of `checkpoint.best_metric` so far, and the number of evaluations since.

    Checkpoints store `meta()`, so that a resumed run stops where the uninterrupted one does.

    Args:
        config: Names the metric and the patience; without a metric nothing is tracked.
        meta: `meta()` of the checkpoint that the run resumes from; ignored if it is about another metric.
    """

    def __init__(self, config: LoopSettings, meta: Mapping[str, Any] | None):
        self.name, self.patience = config.checkpoint.best_metric, config.eval.patience
        stored = meta if meta and meta.get("name") == self.name else {}
        self.best: float | None = stored.get("value")
        self.evaluations_since_best = int(stored.get("evaluations_since_best", 0))

    @property
    def should_stop(self) -> bool:
        """True after `patience` evaluations without a better value."""
        return self.patience is not None and self.evaluations_since_best >= self.patience

    def update(self, metrics: Metrics) -> None:
        """Counts an evaluation; a missing or NaN metric is not an improvement."""
        if self.name is None:
            return
        value = metrics.get(self.name, math.nan)
        if not math.isnan(value) and (self.best is None or is_better(self.name, value, self.best)):
            self.best, self.evaluations_since_best = value, 0
        else:
            self.evaluations_since_best += 1

    def check_metric(self, metrics: Metrics) -> None:
        """Raises `UserError` when an evaluation has no metric of this name."""
        if self.name is not None and self.name not in metrics:
            raise UserError(
                f"checkpoint.best_metric={self.name} is none of the metrics of an evaluation: "
                f"{', '.join(sorted(metrics))}; the run is saved, set another and the same command resumes"
            )

    def describe(self) -> str:
        """Returns the reason to stop, for the console."""
        best = "a number" if self.best is None else f"{self.best:.4g}"
        return f"{self.name} was not better than {best} for {self.evaluations_since_best} evaluations"

    def meta(self) -> dict[str, Any]:
        """Returns the entry of a checkpoint's meta; empty without `checkpoint.best_metric`."""
        if self.name is None:
            return {}
        stored = {"name": self.name, "value": self.best, "evaluations_since_best": self.evaluations_since_best}
        return {"early_stopping": stored}
