"""Sentence embeddings by telling a text's twin from other texts (unsupervised SimCSE, arXiv:2104.08821).

Every row goes through the encoder twice, and dropout makes the two differ. It is the corruption of this objective, not
a remedy against learning by heart, so held-out rows are dropped from, too, by the fixed key of the evaluation: without
that, twins would be equal, and finding them nothing to measure. The embeddings that an export computes, and the figure
`uniformity` on held-out text, are without dropout.

The dense layer on the summary (princeton-nlp/SimCSE:simcse/models.py, MLPLayer) is only trained with, as in the
original: it is no part of the network.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from bertjax.config.model import EncoderConfig
from bertjax.config.objectives.contrastive import ContrastiveConfig
from bertjax.config.objectives.mlm import MlmConfig
from bertjax.models.heads import gather_positions
from bertjax.models.linear import dot, initializer
from bertjax.models.model import Model, bind, init_params
from bertjax.objectives.base import FlopsTerm, Key, Network, Objective, StepInputs, encoder_inputs
from bertjax.objectives.masking import mask_batch
from bertjax.objectives.vocab_loss import unigram_nll, vocab_loss_sums
from bertjax.types import Batch, Params, Sum, Vocabulary

_PROJECTION_KEY = 0x517  # apart from the encoder's own parameters
_LEAST = 1e-8  # of a norm, as in torch's CosineSimilarity


class Contrastive(Objective):
    """An encoder whose summaries of equal texts are to be near, of others far; on request with a masked-word head."""

    config: ContrastiveConfig

    def __init__(self, config: ContrastiveConfig, model: EncoderConfig, vocabulary: Vocabulary):
        self.config, self.model, self.vocabulary = config, model, vocabulary
        self.loss_weights = {"contrastive": 1.0}
        self.heads = config.heads
        self.networks = {"model": Network(model, self.heads)}
        self.flops_terms = (FlopsTerm(model, 0.0, passes=2.0),)
        self.unigram_nll = unigram_nll(vocabulary)
        if config.mlm_weight:
            self.loss_weights["mlm"] = config.mlm_weight
            self.flops_terms += (FlopsTerm(model, MlmConfig(config.masking).predicted_share),)

    def init(self, key: Key) -> Params:
        """The encoder's parameters and, for summaries of the first token, the dense layer on them [D, D]."""
        params = init_params(self.model, self.heads, key)
        if self.config.pooling != "first":
            return params
        width = self.model.hidden_size
        kernel = initializer(self.model)(jax.random.fold_in(key, _PROJECTION_KEY), (width, width), jnp.float32)
        return {**params, "projection": {"kernel": kernel, "bias": jnp.zeros(width, jnp.float32)}}

    def network_params(self, params: Params, name: str) -> Params:
        return {part: value for part, value in params.items() if part != "projection"}

    def corrupt(self, batch: Batch, key: Key, cursor: Array) -> Batch:
        """Nothing but dropout, unless words are hidden for the masked-word loss, in a third view."""
        if not self.config.mlm_weight:
            return batch
        return mask_batch(batch, key, cursor, self.config.masking, self.vocabulary)

    def counts(self, batch: Batch) -> dict[str, Array]:
        """Examples; masked words."""
        weights = {"contrastive": "example_weights", "mlm": "masked_weights"}
        return {name: batch[weights[name]].sum() for name in self.loss_weights}

    def loss(
        self, params: Params, inputs: StepInputs, batch: Batch, key: Key, train: bool
    ) -> tuple[dict[str, Sum], dict]:
        """`train=False` drops from the views all the same: see above."""
        twins, third = jax.random.split(key)
        model = bind(self.model, self.heads, self.network_params(params, "model"))
        shown = {**batch, "input_ids": batch.get("original_ids", batch["input_ids"])}
        summaries = self._summaries(model, {name: jnp.repeat(value, 2, axis=0) for name, value in shown.items()}, twins)
        if "projection" in params:
            summaries = self._projected(params["projection"], summaries)
        one, other = (summaries[first::2].reshape(-1, summaries.shape[-1]) for first in (0, 1))
        weights = batch["example_weights"].reshape(-1)
        sums = contrastive_sums(one, other, weights, self.config.contrast_temperature)
        if not train:
            plain = self._summaries(model, shown, None)
            sums["uniformity"] = uniformity(plain.reshape(-1, plain.shape[-1]), weights)
        if "mlm" in self.loss_weights:
            sums |= self._words(model, batch, third if train else None, train)
        return sums, inputs.carry

    def _summaries(self, model: Model, batch: Batch, key: Key | None) -> Float[Array, "B E D"]:
        hidden = model.encode(**encoder_inputs(batch), key=key).last_hidden_state
        if self.config.pooling == "first":
            return gather_positions(hidden, batch["example_positions"])
        examples = jnp.arange(1, batch["example_positions"].shape[1] + 1)
        own = (batch["segment_ids"][:, None, :] == examples[None, :, None]).astype(jnp.float32)
        total = jnp.einsum("bes,bsd->bed", own, hidden.astype(jnp.float32))
        return total / jnp.maximum(own.sum(-1, keepdims=True), 1.0)

    def _projected(self, projection: Params, summaries: Float[Array, "B E D"]) -> Float[Array, "B E D"]:
        dense = dot(summaries, projection["kernel"], self.model.compute_dtype, "float32")
        return jnp.tanh(dense + projection["bias"][None, None])

    def _words(self, model: Model, batch: Batch, key: Key | None, train: bool) -> dict[str, Sum]:
        encoded = model.encode(**encoder_inputs(batch), key=key)
        places = batch["segment_ids"], batch["position_ids"]
        logits = model.mlm_logits(model.mlm_hidden_states(encoded, *places, batch["masked_positions"], key))
        sums = vocab_loss_sums("mlm", logits, batch["masked_ids"], batch["masked_weights"])
        if not train:
            baseline = jnp.asarray(self.unigram_nll)[batch["masked_ids"]] * batch["masked_weights"]
            sums["unigram_loss"] = Sum(baseline.sum(), sums["mlm"].count)
        return sums


def contrastive_sums(
    one: Float[Array, "X D"], other: Float[Array, "X D"], weights: Float[Array, "X"], temperature: float
) -> dict[str, Sum]:
    """Cross-entropy of finding `other[i]` for `one[i]` among all of `other` by cosine, over what has a weight.

    Also `contrastive_accuracy`, and `alignment`: the squared distance of twins on the unit sphere (arXiv:2005.10242).
    """
    one, other = _unit(one), _unit(other)
    there = weights > 0
    scores = jnp.where(there[None], one @ other.T, -jnp.inf) / temperature
    scores = jnp.where(there[:, None], scores, 0.0)  # where nothing is there, a softmax of zeros is no NaN
    right = jnp.diagonal(scores)
    losses = jax.nn.logsumexp(scores, axis=-1) - right
    found = (right >= scores.max(axis=-1)).astype(jnp.float32)
    count = weights.sum()
    return {
        "contrastive": Sum((jnp.where(there, losses, 0.0) * weights).sum(), count),
        "contrastive_accuracy": Sum((found * weights).sum(), count),
        "alignment": Sum((((one - other) ** 2).sum(axis=-1) * weights).sum(), count),
    }


def uniformity(embeddings: Float[Array, "X D"], weights: Float[Array, "X"]) -> Sum:
    """The logarithm of the mean of exp(-2 d^2) over all pairs of the batch (arXiv:2005.10242): 0 = all in one place.

    Of every batch for itself: the figure of several is the mean of theirs.
    """
    unit, there = _unit(embeddings), weights > 0
    squares = jnp.maximum(2.0 - 2.0 * unit @ unit.T, 0.0)
    pairs = there[:, None] & there[None] & ~jnp.eye(len(unit), dtype=bool)
    count = pairs.sum(dtype=jnp.float32)
    total = jnp.where(pairs, jnp.exp(-2.0 * squares), 0.0).sum()
    some = count > 0
    return Sum(jnp.where(some, jnp.log(jnp.where(some, total / jnp.maximum(count, 1.0), 1.0)), 0.0), some * 1.0)


def _unit(x: Float[Array, "X D"]) -> Float[Array, "X D"]:
    """Of length 1, float32; what is shorter than `_LEAST` stays short, and its gradient finite."""
    x = x.astype(jnp.float32)
    return x / jnp.sqrt(jnp.maximum((x**2).sum(axis=-1, keepdims=True), _LEAST**2))
