"""A finetuning task as an objective: a head of the family on the encoder, and its loss."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any, TypeVar

import jax
import numpy as np
from jaxtyping import Array
from ml_collections import ConfigDict

from bertjax.config.extensions import TASK_KINDS
from bertjax.config.fields import Reader, linked, setting
from bertjax.config.model import EncoderConfig
from bertjax.errors import UserError
from bertjax.models.model import bind, choice_layer
from bertjax.objectives.base import Key, LossOutputs, Network, Objective, StepInputs, encoder_inputs
from bertjax.objectives.seq2seq import Seq2Seq
from bertjax.types import Batch, Params, Sum, Vocabulary

T = TypeVar("T", bound="TaskObjective")

WEIGHTINGS = ("balanced", "sqrt")
_HEAD_KEY = 0x7A5C  # separates the head's dropout from the encoder's


@dataclasses.dataclass(frozen=True)
class TaskObjective(Objective, group="task"):
    """A kind of task, whose loss `TaskKind` computes, on a head of the family.

    The loss is a mean over examples (labeled words; starts and ends of answers), as in the authors' code and in
    transformers; with class weights it is the weighted mean of `torch.nn.CrossEntropyLoss`.

    Attributes:
        spec: the `TaskKind`; None: that of `kind` with its defaults.
        metric: metric that compares checkpoints; None: nothing is held out.
    """

    title = "finetuning"
    is_finetuning = True

    kind: str = linked("task.kind")
    class_weights: tuple[str, ...] = setting(
        (),
        help="Weights of the classes in the loss. (): none; balanced: inverse to the frequency, 1 on average over the "
        "examples; sqrt: the root of that (FinBERT's paper); or a number per label.",
    )
    teacher: str | None = linked("task.teacher", None)
    teacher_weight: float = setting(
        0.5,
        above=0.0,
        at_most=1.0,
        help="Share of the loss that compares scores with those of `teacher`; 1: no labels.",
    )
    teacher_temperature: float = setting(
        2.0,
        above=0.0,
        help="Scores of both are divided by it before they are compared (arXiv:1503.02531); numbers are compared as "
        "they are.",
    )
    spec: Any = None
    metric: str | None = None

    def __post_init__(self) -> None:
        if self.spec is None:
            object.__setattr__(self, "spec", TASK_KINDS.load(self.kind)())
        super().__post_init__()

    @classmethod
    def read(cls: type[T], reader: Reader) -> T:
        spec = reader(TASK_KINDS.load(reader.values["task.kind"]))
        of_kind: type[T] = spec.objective
        metric = spec.metric if reader.cfg.task.eval else None
        return of_kind(spec=spec, metric=metric, **reader.fields_of(of_kind))

    @classmethod
    def read_encoders(cls, cfg: ConfigDict, vocabulary: Vocabulary | None = None) -> dict[str, EncoderConfig]:
        if TASK_KINDS.load(cfg.task.kind).has_targets:
            return Seq2Seq.read_encoders(cfg, vocabulary)
        return super().read_encoders(cfg, vocabulary)

    @property
    def summary(self) -> str:
        return f"{self.title} ({self.spec.title})"

    @property
    def main_metric(self) -> str | None:
        return self.metric

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
        if self.teacher is not None and self.spec.head != "sequence_classification":
            raise UserError(
                f"task.teacher: task.kind={self.kind} learns from labels alone; a teacher scores whole texts, for "
                "classification, multilabel and regression"
            )
        if self.class_weights and not self.spec.has_classes:
            raise UserError(f"task.class_weights: task.kind={self.kind} has no classes; leave it empty")

    def check_model(self, model: EncoderConfig) -> None:
        of_texts = self.spec.head == "sequence_classification"
        if model.causal and not of_texts:
            raise UserError(
                f"task.kind={self.kind} reads both sides of a word; set model.causal=false, or take another model"
            )
        if model.causal and model.pooling not in ("last", "mean"):
            raise UserError(
                f"model.pooling={model.pooling}: only the last token of a causal model has seen all of a text; set "
                "model.pooling=last, or model.causal=false"
            )
        if model.bi_data:
            raise UserError("objective.name=task: set model.bi_data=false, tasks do not read backwards")

    def build(
        self: T, encoders: Mapping[str, EncoderConfig], vocabulary: Vocabulary, teacher: Network | None = None
    ) -> T:
        """Returns the objective with its network; raises `UserError` if there is not one class weight per label."""
        built, model = super().build(encoders, vocabulary, teacher), encoders["model"]
        if self.spec.has_classes and len(built.label_weights) != model.num_labels:
            raise UserError(
                f"task.class_weights has {len(built.label_weights)} numbers for {model.num_labels} labels "
                f"({', '.join(model.labels)})"
            )
        return built

    @functools.cached_property
    def label_weights(self) -> np.ndarray:
        """Weights of the labels in their order, float32 [labels]."""
        return np.asarray(self.numbers or [1.0] * self.model.num_labels, np.float32)

    @property
    def heads(self) -> tuple[str, ...]:
        """The heads of the family's own class for such a task."""
        head = self.spec.head
        dense = choice_layer(self.model) if head == "multiple_choice" else self.model.classifier_dense
        has_pooler = head in ("sequence_classification", "multiple_choice") and dense == "pooler"
        return ("pooler", head) if has_pooler else (head,)

    @property
    def loss_weights(self) -> dict[str, float]:
        name, weight = self.spec.name, self.teacher_weight
        return {name: 1.0} if self.teacher is None else {name: 1.0 - weight, f"{name}_teacher": weight}

    @property
    def of_labels(self: T) -> T:
        """The objective without its teacher, by which held-out examples are scored."""
        return dataclasses.replace(self, teacher=None)

    @property
    def num_outputs(self) -> int:
        """Outputs of the head per window or token, K: a score per label, for answers those of start and end."""
        return {"question_answering": 2, "multiple_choice": 1}.get(self.spec.head, self.model.num_labels)

    def counts(self, batch: Batch) -> dict[str, Array]:
        counts = {self.spec.name: self.spec.count(batch, self.label_weights)}
        return (
            counts if self.teacher is None else counts | {f"{self.spec.name}_teacher": batch["example_weights"].sum()}
        )

    def scores(self, params: Params, batch: Batch, key: Key | None = None) -> Array:
        """Computes the outputs of the head.

        Args:
            params: parameters of encoder and head.
            batch: a batch of `make_batch`.
            key: key of dropout; None: no dropout.

        Returns:
            [B, E, K] for texts, [B, S, K] for words, [B, S, 2] for starts and ends of answers.
        """
        model = bind(self.model, self.heads, params)
        hidden = model.encode(**encoder_inputs(batch), key=key).last_hidden_state
        head_key = None if key is None else jax.random.fold_in(key, _HEAD_KEY)
        if self.spec.head == "token_classification":
            return model.token_logits(hidden, head_key)
        if self.spec.head == "question_answering":
            return model.answer_logits(hidden, batch["input_ids"], batch["segment_ids"], head_key)
        score = model.choice_logits if self.spec.head == "multiple_choice" else model.sequence_logits
        return score(hidden, batch["example_positions"], batch["segment_ids"], head_key)

    def loss(self, params: Params, inputs: StepInputs, batch: Batch, key: Key, train: bool) -> LossOutputs:
        return self.sums(self.scores(params, batch, key if train else None), batch), inputs.carry

    @jax.named_scope("head")
    def sums(self, scores: Array, batch: Batch) -> dict[str, Sum]:
        """Returns the scalar sums of the loss and of further metrics, from the result of `scores`."""
        name, sums = self.spec.name, self.spec.loss(scores, batch, self.label_weights)
        named = {name if each == "loss" else f"{name}_{each}": value for each, value in sums.items()}
        if self.teacher is None:
            return named
        weights = batch["example_weights"]
        losses = self.spec.teacher_loss(scores, batch["teacher_scores"], self.teacher_temperature)
        return named | {f"{name}_teacher": Sum((losses * weights).sum(), weights.sum())}
