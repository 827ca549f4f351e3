"""The best held-out figure of a run so far, and for how many evaluations there was no better one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from bertjax.config.training import LoopConfig
from bertjax.errors import UserError
from bertjax.types import is_better


class EarlyStopping:
    """Follows `checkpoint.best_metric`; checkpoints keep its `record`, so that a resumed run ends where it had to."""

    def __init__(self, config: LoopConfig, record: Mapping[str, Any] | None):
        self.name, self.patience = config.best_metric, config.patience
        record = record or {}
        same = record.get("name") == self.name  # another figure may have been chosen since
        self.value: float | None = record.get("value") if same else None
        self.evaluations_since_best = int(record.get("evaluations_since_best", 0)) if same else 0

    @property
    def should_stop(self) -> bool:
        return self.patience is not None and self.evaluations_since_best >= self.patience

    def update(self, figures: Mapping[str, float]) -> None:
        """Takes note of an evaluation; one without the figure, or where it is no number, is not better."""
        value = figures.get(self.name or "", math.nan)
        if self.name is None:
            return
        if not math.isnan(value) and (self.value is None or is_better(self.name, value, self.value)):
            self.value, self.evaluations_since_best = value, 0
        else:
            self.evaluations_since_best += 1

    def require_known(self, figures: Mapping[str, float]) -> None:
        """Raises `UserError` when evaluations have no such figure."""
        if self.name is not None and self.name not in figures:
            raise UserError(
                f"checkpoint.best_metric={self.name} is none of the metrics of an evaluation: "
                f"{', '.join(sorted(figures))}; the run is saved, set another and the same command goes on"
            )

    def describe(self) -> str:
        """For how long there was nothing better than what."""
        than = "a number" if self.value is None else f"{self.value:.4g}"
        return f"{self.name} was not better than {than} for {self.evaluations_since_best} evaluations"

    def record(self) -> dict[str, dict[str, Any]]:
        """What a checkpoint keeps of it, under a name of its own; nothing where nobody asked."""
        return (
            {}
            if self.name is None
            else {
                "early_stopping": {
                    "name": self.name,
                    "value": self.value,
                    "evaluations_since_best": self.evaluations_since_best,
                }
            }
        )
