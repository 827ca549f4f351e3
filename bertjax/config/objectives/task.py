"""What the objective of a task can be told, checked once. Needs no jax."""

from __future__ import annotations

import dataclasses
import math

from bertjax.config.model import EncoderConfig
from bertjax.config.task import KINDS
from bertjax.errors import UserError, require_one_of

HEADS = {
    "classification": "sequence_classification",
    "regression": "sequence_classification",
    "tokens": "token_classification",
    "qa": "question_answering",
}
WEIGHTINGS = ("balanced", "sqrt")


@dataclasses.dataclass(frozen=True)
class TaskObjectiveConfig:
    """`kind` as in `TaskConfig`; `class_weights` is empty, one of `WEIGHTINGS`, or a number for every label."""

    kind: str
    class_weights: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require_one_of("task.kind", self.kind, KINDS)
        is_named = len(self.class_weights) == 1 and self.class_weights[0] in WEIGHTINGS
        if not is_named and any(not (weight >= 0.0 and math.isfinite(weight)) for weight in self.numbers):
            raise UserError(f"task.class_weights must not be negative, not {', '.join(self.class_weights)}")
        if self.class_weights and self.kind not in ("classification", "tokens"):
            raise UserError(f"task.class_weights: task.kind={self.kind} has no classes; leave it empty")

    @property
    def numbers(self) -> tuple[float, ...]:
        """The weights of the labels, in their order; empty where all count alike."""
        try:
            return tuple(float(weight) for weight in self.class_weights)
        except ValueError:
            raise UserError(
                f"task.class_weights must be one of {', '.join(WEIGHTINGS)}, or a number for every label, not "
                f"{', '.join(self.class_weights)}"
            ) from None

    def heads(self, model: EncoderConfig) -> tuple[str, ...]:
        """Those of the family's own class for such a task."""
        head = HEADS[self.kind]
        pooled = head == "sequence_classification" and model.classifier_dense == "pooler"
        return ("pooler", head) if pooled else (head,)

    def check_example_format(self, form: str) -> None:
        """Rows are those of the task."""

    def check_model(self, model: EncoderConfig) -> None:
        if model.causal:
            raise UserError(
                "objective.name=task reads both sides of a word; set model.causal=false, or take another model"
            )
        if model.bi_data:
            raise UserError("objective.name=task: set model.bi_data=false, the rows of tasks are not read backwards")
