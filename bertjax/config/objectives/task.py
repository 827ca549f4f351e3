"""Config of finetuning on a task, as an objective. Needs no jax."""

from __future__ import annotations

import dataclasses
import math
from typing import Self

from ml_collections import ConfigDict

from bertjax.config.encoder_decoder import DecoderConfig
from bertjax.config.extensions import TASK_KINDS
from bertjax.config.fields import read_group, setting
from bertjax.config.model import EncoderConfig
from bertjax.config.objectives.base import ObjectiveConfig
from bertjax.config.objectives.seq2seq import Seq2SeqConfig
from bertjax.config.task import TaskKind
from bertjax.errors import UserError
from bertjax.types import Vocabulary

WEIGHTINGS = ("balanced", "sqrt")


@dataclasses.dataclass(frozen=True)
class TaskObjectiveConfig(ObjectiveConfig, group="task"):
    """Kind of the task, as in `TaskConfig`, and the weights of its classes in the loss."""

    title = "finetuning"
    objective_class = "bertjax.finetuning.objective:TaskObjective"
    uses = ()
    is_finetuning = True

    kind: str
    class_weights: tuple[str, ...] = setting(
        (),
        help="Weights of the classes in the loss. (): none; balanced: inverse to the frequency, 1 on average over the "
        "examples; sqrt: the root of that (FinBERT's paper); or a number per label.",
    )

    metric: str | None = setting(None, key=False, help="Metric that compares checkpoints; None: nothing is held out.")
    targets: Seq2SeqConfig | None = None
    """Settings of the decoder and of its loss, where the kind has targets."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "objective_class", self.spec.objective_class)
        super().__post_init__()

    @classmethod
    def from_config(cls, cfg: ConfigDict) -> Self:
        spec = TASK_KINDS.load(cfg.task.kind)
        targets = Seq2SeqConfig.from_config(cfg) if spec.has_targets else None
        metric = spec.metric(cfg.task) if cfg.task.eval else None
        return read_group(cfg, cls, kind=cfg.task.kind, metric=metric, targets=targets)

    @classmethod
    def read_encoders(cls, cfg: ConfigDict, vocabulary: Vocabulary | None = None) -> dict[str, EncoderConfig]:
        if TASK_KINDS.load(cfg.task.kind).has_targets:
            return Seq2SeqConfig.read_encoders(cfg, vocabulary)
        return super().read_encoders(cfg, vocabulary)

    @property
    def decoder(self) -> DecoderConfig:
        """Keys of the decoder: what the towers share, and the token before a target."""
        return DecoderConfig() if self.targets is None else self.targets.decoder

    @property
    def smoothing(self) -> float:
        """Probability that the loss of targets gives to all other tokens."""
        return 0.0 if self.targets is None else self.targets.smoothing

    @property
    def summary(self) -> str:
        return f"{self.title} ({self.spec.title})"

    @property
    def main_metric(self) -> str | None:
        return self.metric

    @property
    def spec(self) -> type[TaskKind]:
        """Facts about the kind."""
        return TASK_KINDS.load(self.kind)

    @property
    def numbers(self) -> tuple[float, ...]:
        """Weights of the labels in their order; empty if all are equal.

        Raises:
            UserError: `task.class_weights` holds neither a rule nor numbers.
        """
        try:
            return tuple(float(weight) for weight in self.class_weights)
        except ValueError:
            raise UserError(
                f"task.class_weights must be one of {', '.join(WEIGHTINGS)}, or a number per label, not "
                f"{', '.join(self.class_weights)}"
            ) from None

    def check(self) -> None:
        is_named = len(self.class_weights) == 1 and self.class_weights[0] in WEIGHTINGS
        if not is_named and any(not (weight >= 0.0 and math.isfinite(weight)) for weight in self.numbers):
            raise UserError(f"task.class_weights must not be negative, not {', '.join(self.class_weights)}")
        if self.class_weights and not self.spec.has_classes:
            raise UserError(f"task.class_weights: task.kind={self.kind} has no classes; leave it empty")

    def heads(self, model: EncoderConfig) -> tuple[str, ...]:
        """Returns the heads of the family's own class for such a task."""
        head = self.spec.head
        has_pooler = head == "sequence_classification" and model.classifier_dense == "pooler"
        return ("pooler", head) if has_pooler else (head,)

    def check_model(self, model: EncoderConfig) -> None:
        """Raises `UserError` for a causal model and for one that reads part of a batch backwards."""
        if model.causal:
            raise UserError(
                "objective.name=task reads both sides of a word; set model.causal=false, or take another model"
            )
        if model.bi_data:
            raise UserError("objective.name=task: set model.bi_data=false, tasks do not read backwards")
