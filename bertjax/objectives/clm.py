"""Causal language modelling: every token predicts the next (openai/gpt-2:src/model.py; GPT-2's report)."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from bertjax.config.model import EncoderConfig
from bertjax.config.objectives.clm import ClmConfig
from bertjax.models.model import Model, bind, init_params
from bertjax.objectives.base import FlopsTerm, Key, LossOutputs, Network, Objective, StepInputs, encoder_inputs
from bertjax.objectives.vocab_loss import unigram_nll, unigram_sums, vocab_loss_sums
from bertjax.types import Batch, Params, Sum, Vocabulary

_CHUNK_TOKENS = 8192
"""Tokens whose logits are held at once: they are large, and every token has a prediction."""


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


def chunked_vocab_loss_sums(
    name: str,
    model: Model,
    hidden_states: Float[Array, "B S D"],
    ids: Int[Array, "B S"],
    weights: Float[Array, "B S"],
) -> dict[str, Sum]:
    """Computes `vocab_loss_sums` of every token, a slice of the sequence at a time: [B, S, V] never exists.

    Args:
        name: the name of the loss.
        model: the model with the MLM head.
        hidden_states: the inputs of the head.
        ids: the right tokens.
        weights: 0 = no prediction.
    """
    batch_size, length = ids.shape
    chunk_len = min(length, max(1, _CHUNK_TOKENS // batch_size))
    padding = -length % chunk_len

    def split(x: Array) -> Array:
        padded = jnp.pad(x, [(0, 0), (0, padding), *[(0, 0)] * (x.ndim - 2)])
        return jnp.moveaxis(padded.reshape(batch_size, -1, chunk_len, *x.shape[2:]), 1, 0)

    @jax.checkpoint
    def chunk_sums(chunk: tuple[Array, Array, Array]) -> dict[str, Sum]:
        return vocab_loss_sums(name, model.mlm_logits(chunk[0]), chunk[1], chunk[2])

    sums = jax.lax.map(chunk_sums, (split(hidden_states), split(ids), split(weights)))
    return jax.tree.map(lambda values: values.sum(), sums)
