"""Contrastive sentence embeddings: each text is to be nearest to itself (unsupervised SimCSE, arXiv:2104.08821).

Every sequence goes through the encoder twice and dropout makes the two views differ. Dropout is the corruption of this
objective, not a regularizer, hence held-out text is dropped from as well, by the fixed key of the evaluation: without
it the two views would be equal and finding them would measure nothing. The embeddings of an export, and the metric
`uniformity` on held-out text, are computed without dropout.

The dense layer after the first token (princeton-nlp/SimCSE:simcse/models.py, MLPLayer) is used in training only, as in
the original; it is not part of the network.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from bertjax.config.fields import linked, phase_setting
from bertjax.config.model import EncoderConfig
from bertjax.errors import UserError
from bertjax.models.heads import average_examples, gather_positions
from bertjax.models.linear import dot, initializer
from bertjax.models.model import Model, bind, init_params
from bertjax.objectives.base import FlopsTerm, Key, LossOutputs, Objective, StepInputs, encoder_inputs
from bertjax.objectives.masking.corrupt import mask_batch
from bertjax.objectives.masking.settings import Masking
from bertjax.objectives.vocab_loss import unigram_nll, unigram_sums, vocab_loss_sums
from bertjax.types import Batch, Params, Sum

_PROJECTION_KEY = 0x517  # differs from those of the encoder's parameters
_MIN_NORM = 1e-8  # as in torch's CosineSimilarity
_COUNTED = {"contrastive": "example_weights", "mlm": "masked_weights"}
_DROPOUTS = ("hidden", "attention", "embedding", "attention_output", "feed_forward", "activation", "output")


@dataclasses.dataclass(frozen=True)
class Contrastive(Objective, group="objective.contrastive"):
    """An encoder whose embeddings of equal texts are near and of others far, optionally with the MLM head.

    The defaults are those of unsupervised SimCSE.
    """

    title = "contrastive sentence embeddings"
    reads = ("model", "objective.masking")
    loss_titles: ClassVar[dict[str, str]] = {"contrastive": "Contrastive", "mlm": "Masked tokens"}
    metrics: ClassVar[dict[str, tuple[str, str]]] = {
        "alignment": ("squared distance", "Mean of two views of a text on the unit sphere (arXiv:2005.10242)."),
        "uniformity": ("log", "Log of the mean of exp(-2 d²) over all pairs of a batch; 0 = all vectors are equal."),
    }

    masking: Masking
    pooling: str = phase_setting(
        "first",
        help="Embedding of a text: its first token, after a dense layer while training, or the mean of all tokens.",
        choices=("first", "mean"),
    )
    temperature: float = phase_setting(0.05, help="Divides the cosine similarities.", above=0.0)
    mlm_weight: float = phase_setting(
        1.0, help="Factor of the loss of masked tokens in a third view; 0 = no such head.", at_least=0.0
    )
    microbatches: int = linked("train.microbatches", 1)

    def check(self) -> None:
        if self.microbatches > 1:
            raise UserError(
                "objective.name=contrastive compares each sequence with all others of its batch, which "
                f"train.microbatches={self.microbatches} would split; set it to 1 (model.remat=full saves memory)"
            )

    @property
    def summary(self) -> str:
        return f"{self.title}{' and masked language modeling' if self.mlm_weight else ''}"

    @property
    def embedding_pooling(self) -> str:
        return self.pooling

    @property
    def heads(self) -> tuple[str, ...]:
        """The heads of the network."""
        return ("mlm",) if self.mlm_weight else ()

    def check_model(self, model: EncoderConfig) -> None:
        if not any(model.rate(f"{name}_dropout") for name in _DROPOUTS):
            raise UserError(
                "objective.name=contrastive makes two views of a text by dropout: without any "
                "(model.hidden_dropout=0, model.attention_dropout=0, ...) both are equal; set model.hidden_dropout=0.1"
            )
        if model.causal:
            raise UserError("objective.name=contrastive reads text from both sides, but model.causal attends to one")
        if model.bi_data:
            raise UserError("objective.name=contrastive reads every sequence twice; set model.bi_data=false")

    @functools.cached_property
    def loss_weights(self) -> dict[str, float]:
        return {"contrastive": 1.0} | ({"mlm": self.mlm_weight} if self.mlm_weight else {})

    @property
    def flops_terms(self) -> tuple[FlopsTerm, ...]:
        masked = (FlopsTerm(self.model, self.masking.predicted_share),) if self.mlm_weight else ()
        return (FlopsTerm(self.model, 0.0, passes=2.0), *masked)

    def init(self, key: Key) -> Params:
        """Returns the encoder's parameters and, for embeddings of the first token, a `projection` [D, D]."""
        params = init_params(self.model, self.heads, key)
        if self.pooling != "first":
            return params
        width = self.model.hidden_size
        kernel = initializer(self.model)(jax.random.fold_in(key, _PROJECTION_KEY), (width, width), jnp.float32)
        return {**params, "projection": {"kernel": kernel, "bias": jnp.zeros(width, jnp.float32)}}

    def network_params(self, params: Params, name: str) -> Params:
        return {part: value for part, value in params.items() if part != "projection"}

    def corrupt(self, batch: Batch, key: Key, cursor: Array) -> Batch:
        """Masks tokens for a third view where the loss of masked tokens has a weight."""
        if not self.mlm_weight:
            return batch
        return mask_batch(batch, key, cursor, self.masking, self.vocabulary)

    def counts(self, batch: Batch) -> dict[str, Array]:
        return {name: batch[_COUNTED[name]].sum() for name in self.loss_weights}

    def loss(self, params: Params, inputs: StepInputs, batch: Batch, key: Key, train: bool) -> LossOutputs:
        """Computes the losses; the two views have dropout even where `train` is False."""
        view_key, mlm_key = jax.random.split(key)
        model = bind(self.model, self.heads, self.network_params(params, "model"))
        unmasked = {**batch, "input_ids": batch.get("original_ids", batch["input_ids"])}
        twice = {name: jnp.repeat(value, 2, axis=0) for name, value in unmasked.items()}
        embeddings = self._embed(model, twice, view_key)
        if "projection" in params:
            embeddings = self._project(params["projection"], embeddings)
        one, other = (embeddings[view::2].reshape(-1, embeddings.shape[-1]) for view in (0, 1))
        weights = batch["example_weights"].reshape(-1)
        sums = contrastive_sums(one, other, weights, self.temperature)
        if not train:
            plain = self._embed(model, unmasked, None)
            sums["uniformity"] = uniformity(plain.reshape(-1, plain.shape[-1]), weights)
        if "mlm" in self.loss_weights:
            sums |= self._mlm_sums(model, batch, mlm_key, train)
        return sums, inputs.carry

    def _embed(self, model: Model, batch: Batch, key: Key | None) -> Float[Array, "B E D"]:
        states = model.encode(**encoder_inputs(batch), key=key).last_hidden_state
        return embed_examples(states, batch, self.pooling)

    def _project(self, projection: Params, embeddings: Float[Array, "B E D"]) -> Float[Array, "B E D"]:
        dense = dot(embeddings, projection["kernel"], self.model.compute_dtype, "float32")
        return jnp.tanh(dense + projection["bias"][None, None])

    def _mlm_sums(self, model: Model, batch: Batch, key: Key, train: bool) -> dict[str, Sum]:
        dropout_key = key if train else None
        encoded = model.encode(**encoder_inputs(batch), key=dropout_key)
        states = model.mlm_hidden_states(
            encoded, batch["segment_ids"], batch["position_ids"], batch["masked_positions"], dropout_key
        )
        targets = batch["masked_ids"], batch["masked_weights"]
        sums = vocab_loss_sums("mlm", model.mlm_logits(states), *targets)
        return sums if train else sums | unigram_sums("mlm", unigram_nll(self.vocabulary), *targets)


def embed_examples(states: Float[Array, "B S D"], batch: Batch, pooling: str) -> Float[Array, "B E D"]:
    """Returns a vector for every example.

    Args:
        states: hidden states of the tokens.
        batch: their batch.
        pooling: "first", the first token, or "mean", the mean of all tokens.
    """
    if pooling == "first":
        return gather_positions(states, batch["example_positions"])
    return average_examples(states, batch["example_positions"].shape[1], batch["segment_ids"])


def contrastive_sums(
    one: Float[Array, "X D"], other: Float[Array, "X D"], weights: Float[Array, "X"], temperature: float
) -> dict[str, Sum]:
    """Computes the cross-entropy of finding `other[i]` for `one[i]` among all of `other` by cosine similarity.

    Args:
        one: embeddings of X examples.
        other: embeddings of the same examples in another view.
        weights: 0 = no example.
        temperature: divides the similarities.

    Returns:
        `contrastive`, `contrastive_accuracy`, and `alignment`: the squared distance of the two views on the unit
        sphere (arXiv:2005.10242).
    """
    one, other = _normalize(one), _normalize(other)
    exists = weights > 0
    scores = jnp.where(exists[None], one @ other.T, -jnp.inf) / temperature
    scores = jnp.where(exists[:, None], scores, 0.0)  # an empty slot gets a softmax of zeros instead of NaN
    correct = jnp.diagonal(scores)
    losses = jax.nn.logsumexp(scores, axis=-1) - correct
    is_right = (correct >= scores.max(axis=-1)).astype(jnp.float32)
    count = weights.sum()
    return {
        "contrastive": Sum((jnp.where(exists, losses, 0.0) * weights).sum(), count),
        "contrastive_accuracy": Sum((is_right * weights).sum(), count),
        "alignment": Sum((((one - other) ** 2).sum(axis=-1) * weights).sum(), count),
    }


def uniformity(embeddings: Float[Array, "X D"], weights: Float[Array, "X"]) -> Sum:
    """Computes the log of the mean of exp(-2 d^2) over all pairs of a batch (arXiv:2005.10242); 0 = all are equal.

    The value of several batches is the mean of their values.
    """
    unit, exists = _normalize(embeddings), weights > 0
    squares = jnp.maximum(2.0 - 2.0 * unit @ unit.T, 0.0)
    pairs = exists[:, None] & exists[None] & ~jnp.eye(len(unit), dtype=bool)
    count = pairs.sum(dtype=jnp.float32)
    total = jnp.where(pairs, jnp.exp(-2.0 * squares), 0.0).sum()
    has_pairs = count > 0
    mean = jnp.where(has_pairs, total / jnp.maximum(count, 1.0), 1.0)
    return Sum(jnp.where(has_pairs, jnp.log(mean), 0.0), has_pairs * 1.0)


def _normalize(x: Float[Array, "X D"]) -> Float[Array, "X D"]:
    """Scales to length 1 in float32; a vector shorter than `_MIN_NORM` stays short, with a finite gradient."""
    x = x.astype(jnp.float32)
    return x / jnp.sqrt(jnp.maximum((x**2).sum(axis=-1, keepdims=True), _MIN_NORM**2))
