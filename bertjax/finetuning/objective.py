"""A task as an objective: a head of the family on the encoder, its loss, and the scores behind predictions."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int

from bertjax.config.model import EncoderConfig
from bertjax.config.objectives.task import TaskObjectiveConfig
from bertjax.errors import UserError
from bertjax.models.model import Model, bind, init_params
from bertjax.objectives.base import FlopsTerm, Key, LossOutputs, Network, Objective, StepInputs, encoder_inputs
from bertjax.types import Batch, Params, Sum, Vocabulary

_HEAD_KEY = 0x7A5C  # of the head's dropout, apart from the encoder's
_LOWEST = float(np.finfo(np.float32).min)


class TaskObjective(Objective):
    """Classification, regression, labels of words, or answers to questions.

    A batch is that of `finetune/batches.py`. The loss is a mean over examples (labelled words; the starts and ends of
    answers), as in the authors' code and in transformers; class weights make it the weighted mean that
    `torch.nn.CrossEntropyLoss` takes.
    """

    config: TaskObjectiveConfig

    def __init__(self, config: TaskObjectiveConfig, model: EncoderConfig, vocabulary: Vocabulary):
        self.config, self.model, self.vocabulary = config, model, vocabulary
        self.heads = config.heads(model)
        self.loss_weights = {config.kind: 1.0}
        self.networks = {"model": Network(model, self.heads)}
        self.flops_terms = (FlopsTerm(model, 0.0),)
        self._class_weights = np.asarray(config.numbers or [1.0] * model.num_labels, np.float32)
        if config.kind != "qa" and len(self._class_weights) != model.num_labels:
            raise UserError(
                f"task.class_weights has {len(self._class_weights)} numbers for {model.num_labels} labels "
                f"({', '.join(model.labels)})"
            )

    def init(self, key: Key) -> Params:
        return init_params(self.model, self.heads, key)

    def counts(self, batch: Batch) -> dict[str, Array]:
        if self.config.kind == "tokens":
            return {"tokens": self._weight_of(batch["token_labels"]).sum()}
        if self.config.kind == "classification":
            return {"classification": (self._weight_of(batch["class_labels"]) * batch["example_weights"]).sum()}
        return {self.config.kind: batch["example_weights"].sum()}

    def scores(self, params: Params, batch: Batch, key: Key | None = None) -> Array:
        """What the head says: of examples [B, E, K], of words [B, S, K], of starts and ends [B, S, 2]."""
        model = bind(self.model, self.heads, params)
        encoded = model.encode(**encoder_inputs(batch), key=key)
        head_key = None if key is None else jax.random.fold_in(key, _HEAD_KEY)
        return self._head(model)(encoded.last_hidden_state, batch, head_key)

    def _head(self, model: Model) -> Callable[[Array, Batch, Key | None], Array]:
        if self.config.kind == "tokens":
            return lambda hidden, batch, key: model.token_logits(hidden, key)
        if self.config.kind == "qa":
            return lambda hidden, batch, key: model.answer_logits(hidden, key)
        return lambda hidden, batch, key: model.sequence_logits(
            hidden, batch["example_positions"], batch["segment_ids"], key
        )

    def loss(self, params: Params, inputs: StepInputs, batch: Batch, key: Key, train: bool) -> LossOutputs:
        return self.sums(self.scores(params, batch, key if train else None), batch), inputs.carry

    @jax.named_scope("head")
    def sums(self, scores: Array, batch: Batch) -> dict[str, Sum]:
        """Sums of the loss and of what is right, from `scores`."""
        if self.config.kind == "classification":
            return self._class_sums(scores, batch["class_labels"], batch["example_weights"])
        if self.config.kind == "tokens":
            return self._class_sums(scores, batch["token_labels"], (batch["token_labels"] >= 0).astype(jnp.float32))
        if self.config.kind == "regression":
            weights = batch["example_weights"]
            errors = jnp.square(scores[..., 0] - batch["score_labels"]) * weights
            return {"regression": Sum(errors.sum(), weights.sum())}
        return self._answer_sums(scores, batch)

    def _weight_of(self, labels: Array) -> Array:
        """What a label counts; nothing where there is none."""
        known = jnp.asarray(self._class_weights)[jnp.maximum(labels, 0)]
        return jnp.where(labels >= 0, known, 0.0)

    def _class_sums(
        self, scores: Float[Array, "B X K"], labels: Int[Array, "B X"], there: Float[Array, "B X"]
    ) -> dict[str, Sum]:
        weights = self._weight_of(labels) * there
        losses = optax.softmax_cross_entropy_with_integer_labels(scores, jnp.maximum(labels, 0))
        right = (jnp.argmax(scores, axis=-1) == labels) * there
        return {
            self.config.kind: Sum((losses * weights).sum(), weights.sum()),
            f"{self.config.kind}_accuracy": Sum(right.sum(), there.sum()),
        }

    def _answer_sums(self, scores: Float[Array, "B S 2"], batch: Batch) -> dict[str, Sum]:
        """Cross-entropy of start and end among the tokens of the window, the mean of the two."""
        weights = batch["example_weights"]
        examples = jnp.arange(1, weights.shape[1] + 1, dtype=jnp.int32)
        own = batch["segment_ids"][:, None, :] == examples[None, :, None]  # [B, E, S]
        losses, right = [], []
        for side, name in enumerate(("start_labels", "end_labels")):
            among = jnp.where(own, scores[:, None, :, side], _LOWEST)
            found = jnp.take_along_axis(scores[..., side], batch[name], axis=1)
            losses.append(jax.nn.logsumexp(among, axis=-1) - found)
            right.append(jnp.argmax(among, axis=-1) == batch[name])
        there = jnp.where(weights > 0, (losses[0] + losses[1]) / 2.0, 0.0)  # an empty place has no token to answer with
        count = weights.sum()
        return {
            "qa": Sum((there * weights).sum(), count),
            "qa_accuracy": Sum(((right[0] & right[1]) * weights).sum(), count),
        }
