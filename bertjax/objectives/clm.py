"""Causal language modelling: every token predicts the next (openai/gpt-2:src/model.py; GPT-2's report)."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array

from bertjax.config.model import EncoderConfig
from bertjax.config.objectives.clm import ClmConfig
from bertjax.models.model import bind, init_params
from bertjax.objectives.base import FlopsTerm, Key, LossOutputs, Network, Objective, StepInputs, encoder_inputs
from bertjax.objectives.vocab_loss import chunked_vocab_loss_sums, unigram_nll, unigram_sums
from bertjax.types import Batch, Params, Vocabulary


class CausalLanguageModel(Objective):
    """A causal encoder with the MLM head, whose logits are computed, and recomputed for gradients, in chunks."""

    config: ClmConfig

    def __init__(self, config: ClmConfig, model: EncoderConfig, vocabulary: Vocabulary):
        self.config, self.model = config, model
        self.heads = ("mlm",)
        self.loss_weights = {"clm": 1.0}
        self.networks = {"model": Network(model, self.heads)}
        self.flops_terms = (FlopsTerm(model, 1.0),)
        self.unigram_nll = unigram_nll(vocabulary)

    def init(self, key: Key) -> Params:
        return init_params(self.model, self.heads, key)

    def corrupt(self, batch: Batch, key: Key, cursor: Array) -> Batch:
        """Adds `next_ids` and `next_weights` [B, S]: the next token, where it belongs to the same example."""
        ids, segments = batch["input_ids"], batch["segment_ids"]
        following = jnp.pad(segments[:, 1:], ((0, 0), (0, 1)))
        weights = ((segments > 0) & (following == segments)).astype(jnp.float32)
        return {**batch, "next_ids": jnp.pad(ids[:, 1:], ((0, 0), (0, 1))), "next_weights": weights}

    def counts(self, batch: Batch) -> dict[str, Array]:
        return {"clm": batch["next_weights"].sum()}

    def loss(self, params: Params, inputs: StepInputs, batch: Batch, key: Key, train: bool) -> LossOutputs:
        model = bind(self.model, self.heads, params)
        states = model.encode(**encoder_inputs(batch), key=key if train else None).last_hidden_state
        sums = chunked_vocab_loss_sums("clm", model, states, batch["next_ids"], batch["next_weights"])
        if not train:
            sums |= unigram_sums("clm", self.unigram_nll, batch["next_ids"], batch["next_weights"])
        return sums, inputs.carry
