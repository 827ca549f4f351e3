"""Causal language modeling: every token predicts the next (openai/gpt-2:src/model.py; GPT-2's report)."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array

from bertjax.config.model import EncoderConfig
from bertjax.config.objectives import TEXT_FORMATS
from bertjax.errors import UserError
from bertjax.models.model import bind
from bertjax.objectives.base import Key, LossOutputs, Objective, StepInputs, encoder_inputs
from bertjax.objectives.vocab_loss import chunked_vocab_loss_sums, unigram_nll, unigram_sums
from bertjax.types import Batch, Params


@dataclasses.dataclass(frozen=True)
class Clm(Objective, group="objective.clm"):
    """A causal encoder with the MLM head, whose logits are computed, and recomputed for gradients, in chunks."""

    title = "causal language modeling"
    example_formats = TEXT_FORMATS
    loss_titles: ClassVar[dict[str, str]] = {"clm": "Next tokens"}
    loss_weights: ClassVar[dict[str, float]] = {"clm": 1.0}
    needs_mask_token = False
    heads = ("mlm",)
    predicted_share = 1.0

    def check_model(self, model: EncoderConfig) -> None:
        if not model.causal:
            raise UserError(
                "objective.name=clm needs model.causal=true: otherwise every token attends to the one it predicts"
            )

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
            sums |= unigram_sums("clm", unigram_nll(self.vocabulary), batch["next_ids"], batch["next_weights"])
        return sums, inputs.carry
