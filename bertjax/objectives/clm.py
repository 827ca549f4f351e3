"""Causal language modelling: every token predicts the next (openai/gpt-2:src/model.py; GPT-2's report)."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from bertjax.config.model import EncoderConfig
from bertjax.config.objectives.clm import ClmConfig
from bertjax.models.model import Model, bind, init_params
from bertjax.objectives.base import FlopsTerm, Key, Network, Objective, StepInputs, encoder_inputs
from bertjax.objectives.vocab_loss import unigram_nll, vocab_loss_sums
from bertjax.types import Batch, Params, Sum, Vocabulary

_CHUNK_TOKENS = 8192
"""Tokens whose logits are held at once: the vocabulary is dear, and every token has a prediction."""


class CausalLanguageModel(Objective):
    """A causal encoder with the MLM head, whose logits are made, and made again in the backward pass, in chunks."""

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
        """Hides nothing: what is to be predicted is what comes next, in the same example."""
        ids, segments = batch["input_ids"], batch["segment_ids"]
        after = jnp.pad(segments[:, 1:], ((0, 0), (0, 1)))
        weights = ((segments > 0) & (after == segments)).astype(jnp.float32)
        return {**batch, "next_ids": jnp.pad(ids[:, 1:], ((0, 0), (0, 1))), "next_weights": weights}

    def counts(self, batch: Batch) -> dict[str, Array]:
        return {"clm": batch["next_weights"].sum()}

    def loss(
        self, params: Params, inputs: StepInputs, batch: Batch, key: Key, train: bool
    ) -> tuple[dict[str, Sum], dict]:
        model = bind(self.model, self.heads, params)
        hidden = model.encode(**encoder_inputs(batch), key=key if train else None).last_hidden_state
        sums = chunked_vocab_loss_sums("clm", model, hidden, batch["next_ids"], batch["next_weights"])
        if not train:
            baseline = jnp.asarray(self.unigram_nll)[batch["next_ids"]] * batch["next_weights"]
            sums["unigram_loss"] = Sum(baseline.sum(), sums["clm"].count)
        return sums, inputs.carry


def chunked_vocab_loss_sums(
    name: str, model: Model, hidden: Float[Array, "B S D"], ids: Int[Array, "B S"], weights: Float[Array, "B S"]
) -> dict[str, Sum]:
    """`vocab_loss_sums` of every token, a slice of the row at a time, so that [B, S, V] never exists."""
    rows, length = ids.shape
    width = min(length, max(1, _CHUNK_TOKENS // rows))
    short = -length % width

    def chunks(x: Array) -> Array:
        padded = jnp.pad(x, [(0, 0), (0, short), *[(0, 0)] * (x.ndim - 2)])
        return jnp.moveaxis(padded.reshape(rows, -1, width, *x.shape[2:]), 1, 0)

    @jax.checkpoint
    def sums(chunk: tuple[Array, Array, Array]) -> dict[str, Sum]:
        return vocab_loss_sums(name, model.mlm_logits(chunk[0]), chunk[1], chunk[2])

    parts = jax.lax.map(sums, (chunks(hidden), chunks(ids), chunks(weights)))
    return jax.tree.map(lambda part: part.sum(), parts)
