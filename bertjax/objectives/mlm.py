"""Masked language modelling, alone or with a sentence objective (BERT, arXiv:1810.04805) or a span-boundary loss.

Only the masked positions go through the vocabulary projection, which saves a factor of 1.2 (base) to 4 (tiny) of all
matmuls.
"""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array

from bertjax.config.model import EncoderConfig
from bertjax.config.objectives.mlm import MlmConfig
from bertjax.models.model import bind, init_params
from bertjax.objectives.base import FlopsTerm, Key, LossOutputs, Network, Objective, StepInputs, encoder_inputs
from bertjax.objectives.masking.corrupt import mask_batch
from bertjax.objectives.sentence_pairs import classify_pairs, pair_loss_weights, with_pair_heads
from bertjax.objectives.span_boundary import add_span_boundaries, span_boundary_sums
from bertjax.objectives.vocab_loss import unigram_nll, unigram_sums, vocab_loss_sums
from bertjax.types import Batch, Params, Vocabulary

_COUNTED = {"mlm": "masked_weights", "pair": "example_weights", "span_boundary": "span_weights"}


class MaskedLanguageModel(Objective):
    """An encoder with the MLM head and, where configured, the pooler and pair head, or the span-boundary head."""

    config: MlmConfig

    def __init__(self, config: MlmConfig, model: EncoderConfig, vocabulary: Vocabulary):
        self.config, self.model, self.vocabulary = config, model, vocabulary
        self.heads: tuple[str, ...] = with_pair_heads(("mlm",), config)
        self.loss_weights = {"mlm": config.mlm_weight, **pair_loss_weights(config)}
        if config.span_boundary_weight:
            self.heads += ("span_boundary",)
            self.loss_weights["span_boundary"] = config.span_boundary_weight
        self.networks = {"model": Network(model, self.heads)}
        self.flops_terms = (FlopsTerm(model, config.predicted_share),)
        self.unigram_nll = unigram_nll(vocabulary)

    def init(self, key: Key) -> Params:
        return init_params(self.model, self.heads, key)

    def corrupt(self, batch: Batch, key: Key, cursor: Array) -> Batch:
        masked = mask_batch(batch, key, cursor, self.config.masking, self.vocabulary)
        if self.config.masked_next_token:
            masked = add_previous_positions(masked)
        if "span_boundary" in self.loss_weights:
            masked = add_span_boundaries(masked, self.vocabulary, self.model.span_positions)
        return masked

    def counts(self, batch: Batch) -> dict[str, Array]:
        return {name: batch[_COUNTED[name]].sum() for name in self.loss_weights}

    def loss(self, params: Params, inputs: StepInputs, batch: Batch, key: Key, train: bool) -> LossOutputs:
        model = bind(self.model, self.heads, params)
        dropout_key = key if train else None
        encoded = model.encode(**encoder_inputs(batch), key=dropout_key)
        positions = batch["prediction_positions" if self.config.masked_next_token else "masked_positions"]
        states = model.mlm_hidden_states(encoded, batch["segment_ids"], batch["position_ids"], positions, dropout_key)
        targets = batch["masked_ids"], batch["masked_weights"]
        sums = vocab_loss_sums("mlm", model.mlm_logits(states), *targets)
        if not train:
            sums |= unigram_sums("mlm", self.unigram_nll, *targets)
        sums |= classify_pairs(model, encoded.last_hidden_state, batch)
        if "span_boundary" in self.loss_weights:
            sums |= span_boundary_sums(model, encoded.last_hidden_state, batch)
        return sums, inputs.carry


def add_previous_positions(batch: Batch) -> Batch:
    """Adds `prediction_positions` [B, M], the positions before the masked ones, to a masked batch.

    The first token of an example has no position before it and is not predicted. In masked next-token prediction
    (arXiv:2410.24159) a token is predicted from the position where a causal model would predict it.
    """
    positions = batch["masked_positions"]
    has_previous = jnp.take_along_axis(batch["position_ids"], positions, axis=1) > 0
    return {
        **batch,
        "prediction_positions": jnp.where(has_previous, positions - 1, 0),
        "masked_weights": batch["masked_weights"] * has_previous,
    }
