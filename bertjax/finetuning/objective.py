"""A finetuning task as an objective: a head of the family on the encoder, and its loss."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int

from bertjax.config.model import EncoderConfig
from bertjax.config.objectives.task import TaskObjectiveConfig
from bertjax.errors import UserError
from bertjax.models.model import bind, init_params
from bertjax.objectives.base import FlopsTerm, Key, LossOutputs, Network, Objective, StepInputs, encoder_inputs
from bertjax.types import Batch, Params, Sum, Vocabulary

_HEAD_KEY = 0x7A5C  # separates the head's dropout from the encoder's
_LOWEST = float(np.finfo(np.float32).min)


class TaskObjective(Objective):
    """Classification, regression, token classification or question answering.

    The loss is a mean over examples (labelled words; starts and ends of answers), as in the authors' code and in
    transformers; with class weights it is the weighted mean of `torch.nn.CrossEntropyLoss`.

    Args:
        config: kind of the task and class weights.
        model: architecture; `num_labels` is that of the task.
        vocabulary: of the model's tokenizer.

    Raises:
        UserError: there is not one class weight per label.
    """

    config: TaskObjectiveConfig

    def __init__(self, config: TaskObjectiveConfig, model: EncoderConfig, vocabulary: Vocabulary):
        self.config, self.model, self.vocabulary = config, model, vocabulary
        self.heads = config.heads(model)
        self.loss_weights = {config.kind: 1.0}
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
        spec = self.config.spec
        if not spec.has_classes:
            return {spec.name: batch["example_weights"].sum()}
        weights = self._label_weights(batch[spec.label_array])
        return {spec.name: (weights if spec.per_token else weights * batch["example_weights"]).sum()}

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
        """Returns the sums of the loss and of correct predictions, from the result of `scores`."""
        spec = self.config.spec
        if spec.has_classes:
            labels = batch[spec.label_array]
            mask = (labels >= 0).astype(jnp.float32) if spec.per_token else batch["example_weights"]
            return self._class_sums(scores, labels, mask)
        if spec.per_token:
            return self._answer_sums(scores, batch)
        weights = batch["example_weights"]
        errors = jnp.square(scores[..., 0] - batch[spec.label_array]) * weights
        return {spec.name: Sum(errors.sum(), weights.sum())}

    def _label_weights(self, labels: Array) -> Array:
        """Returns the class weight of each label, 0 for -1 (no label)."""
        weights = jnp.asarray(self._class_weights)[jnp.maximum(labels, 0)]
        return jnp.where(labels >= 0, weights, 0.0)

    def _class_sums(
        self, scores: Float[Array, "B X K"], labels: Int[Array, "B X"], mask: Float[Array, "B X"]
    ) -> dict[str, Sum]:
        weights = self._label_weights(labels) * mask
        losses = optax.softmax_cross_entropy_with_integer_labels(scores, jnp.maximum(labels, 0))
        correct = (jnp.argmax(scores, axis=-1) == labels) * mask
        return {
            self.config.kind: Sum((losses * weights).sum(), weights.sum()),
            f"{self.config.kind}_accuracy": Sum(correct.sum(), mask.sum()),
        }

    def _answer_sums(self, scores: Float[Array, "B S 2"], batch: Batch) -> dict[str, Sum]:
        """Sums the mean cross-entropy of start and end among the tokens of each window."""
        weights = batch["example_weights"]
        examples = jnp.arange(1, weights.shape[1] + 1, dtype=jnp.int32)
        in_window = batch["segment_ids"][:, None, :] == examples[None, :, None]  # [B, E, S]
        losses, correct = [], []
        for side, name in enumerate(("start_labels", "end_labels")):
            of_window = jnp.where(in_window, scores[:, None, :, side], _LOWEST)
            of_label = jnp.take_along_axis(scores[..., side], batch[name], axis=1)
            losses.append(jax.nn.logsumexp(of_window, axis=-1) - of_label)
            correct.append(jnp.argmax(of_window, axis=-1) == batch[name])
        loss = jnp.where(weights > 0, (losses[0] + losses[1]) / 2.0, 0.0)  # an empty slot has no tokens
        count = weights.sum()
        return {
            self.config.kind: Sum((loss * weights).sum(), count),
            f"{self.config.kind}_accuracy": Sum(((correct[0] & correct[1]) * weights).sum(), count),
        }
