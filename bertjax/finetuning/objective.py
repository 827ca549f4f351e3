"""A finetuning task as an objective: a head of the family on the encoder, and its loss."""

from __future__ import annotations

import jax
import numpy as np
from jaxtyping import Array

from bertjax.config.model import EncoderConfig
from bertjax.config.objectives.task import TaskObjectiveConfig
from bertjax.errors import UserError
from bertjax.finetuning.tasks import task_methods
from bertjax.models.model import bind, init_params
from bertjax.objectives.base import FlopsTerm, Key, LossOutputs, Network, Objective, StepInputs, encoder_inputs
from bertjax.types import Batch, Params, Sum, Vocabulary

_HEAD_KEY = 0x7A5C  # separates the head's dropout from the encoder's


class TaskObjective(Objective):
    """A kind of task, whose loss `TaskMethods` computes, on a head of the family.

    The loss is a mean over examples (labelled words; starts and ends of answers), as in the authors' code and in
    transformers; with class weights it is the weighted mean of `torch.nn.CrossEntropyLoss`.

    Args:
        config: kind of the task and class weights.
        model: architecture; `num_labels` is that of the task.
        vocabulary: vocabulary of the model's tokenizer.

    Raises:
        UserError: there is not one class weight per label.
    """

    config: TaskObjectiveConfig

    def __init__(self, config: TaskObjectiveConfig, model: EncoderConfig, vocabulary: Vocabulary):
        self.config, self.model, self.vocabulary = config, model, vocabulary
        self.heads = config.heads(model)
        self.methods = task_methods(config.kind)
        self.loss_weights = {config.spec.name: 1.0}
        self.networks = {"model": Network(model, self.heads)}
        self.flops_terms = (FlopsTerm(model, 0.0),)
        self._class_weights = np.asarray(config.numbers or [1.0] * model.num_labels, np.float32)
        if config.spec.has_classes and len(self._class_weights) != model.num_labels:
            raise UserError(
                f"task.class_weights has {len(self._class_weights)} numbers for {model.num_labels} labels "
                f"({', '.join(model.labels)})"
            )

    @property
    def num_outputs(self) -> int:
        """Outputs of the head per window or token, K: a score per label, for answers those of start and end."""
        return 2 if self.config.spec.head == "question_answering" else self.model.num_labels

    def init(self, key: Key) -> Params:
        return init_params(self.model, self.heads, key)

    def counts(self, batch: Batch) -> dict[str, Array]:
        return {self.config.spec.name: self.methods.count(batch, self._class_weights)}

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
        if self.config.spec.head == "token_classification":
            return model.token_logits(hidden, head_key)
        if self.config.spec.head == "question_answering":
            return model.answer_logits(hidden, head_key)
        return model.sequence_logits(hidden, batch["example_positions"], batch["segment_ids"], head_key)

    def loss(self, params: Params, inputs: StepInputs, batch: Batch, key: Key, train: bool) -> LossOutputs:
        return self.sums(self.scores(params, batch, key if train else None), batch), inputs.carry

    @jax.named_scope("head")
    def sums(self, scores: Array, batch: Batch) -> dict[str, Sum]:
        """Returns the scalar sums of the loss and of further metrics, from the result of `scores`."""
        name, sums = self.config.spec.name, self.methods.loss(scores, batch, self._class_weights)
        return {name if each == "loss" else f"{name}_{each}": value for each, value in sums.items()}
