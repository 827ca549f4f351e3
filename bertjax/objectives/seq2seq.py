"""Sequence-to-sequence learning (arXiv:1706.03762): an encoder reads the source, a decoder predicts the target."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from bertjax.config.encoder_decoder import EncoderDecoderConfig
from bertjax.config.model import EncoderConfig
from bertjax.config.objectives.seq2seq import EncoderDecoderObjectiveConfig
from bertjax.models.encoder_decoder import DECODER_HEADS, bind, init_params, tower_params
from bertjax.objectives.base import FlopsTerm, Key, LossOutputs, Network, Objective, StepInputs, encoder_inputs
from bertjax.objectives.vocab_loss import chunked_vocab_loss_sums
from bertjax.types import Batch, Params, Vocabulary


class SequenceToSequence(Objective):
    """An encoder-decoder with smoothed labels; other objectives of this form make their targets in `corrupt`.

    Attributes:
        loss_name: name of the loss.

    Args:
        config: label smoothing; an `EncoderDecoderObjectiveConfig`, or that of a task.
        model: the two towers. Without `decoder_start_token_id` targets begin after the tokenizer's first special token.
        vocabulary: vocabulary of the tokenizer that both towers read.
    """

    loss_name = "seq2seq"
    config: EncoderDecoderObjectiveConfig

    def __init__(self, config: Any, model: EncoderDecoderConfig, vocabulary: Vocabulary):
        start = model.decoder_start_token_id
        self.start_id = vocabulary.cls_id if start is None else start
        self.config, self.towers = config, dataclasses.replace(model, decoder_start_token_id=self.start_id)
        self.encoder_decoder: EncoderDecoderConfig | None = self.towers
        self.pad_id = vocabulary.pad_id
        self.loss_weights = {self.loss_name: 1.0}
        self.networks = {
            "model": Network(model.encoder, model.encoder_heads),
            "decoder": Network(model.decoder, DECODER_HEADS),
        }
        # as if half of the tokens were the source's
        self.flops_terms = (FlopsTerm(model.encoder, 0.0, 0.5), FlopsTerm(model.decoder, 0.5, 0.5))

    @classmethod
    def build(
        cls,
        config: Any,
        encoders: Mapping[str, EncoderConfig],
        vocabulary: Vocabulary,
        teacher: Network | None = None,
    ) -> Objective:
        return cls(config, config.decoder.join(encoders["model"], encoders["decoder"], vocabulary), vocabulary)

    def init(self, key: Key) -> Params:
        return init_params(self.towers, key)

    def network_params(self, params: Params, name: str) -> Params:
        return dict(zip(self.networks, tower_params(self.towers, params), strict=True))[name]

    def corrupt(self, batch: Batch, key: Key, cursor: Array) -> Batch:
        """Adds `decoder_input_ids` and `target_weights` [B, T]."""
        inputs = shift_right(
            batch["target_ids"], batch["target_segment_ids"], batch["target_position_ids"], self.start_id, self.pad_id
        )
        weights = (batch["target_segment_ids"] > 0).astype(jnp.float32)
        return {**batch, "decoder_input_ids": inputs, "target_weights": weights}

    def counts(self, batch: Batch) -> dict[str, Array]:
        return {self.loss_name: batch["target_weights"].sum()}

    def loss(self, params: Params, inputs: StepInputs, batch: Batch, key: Key, train: bool) -> LossOutputs:
        model, dropout_key = bind(self.towers, params), key if train else None
        encoded = model.encode(**encoder_inputs(batch), key=dropout_key).last_hidden_state
        states = model.decode(
            *self.decoder_source(encoded, batch),
            batch["decoder_input_ids"],
            batch["target_segment_ids"],
            batch["target_position_ids"],
            jnp.zeros_like(batch["target_ids"]),
            key=dropout_key,
        ).last_hidden_state
        targets = batch["target_ids"], batch["target_weights"]
        sums = chunked_vocab_loss_sums(self.loss_name, model.decoder, states, *targets, self.config.smoothing)
        return sums, inputs.carry

    def decoder_source(
        self, states: Float[Array, "B S D"], batch: Batch
    ) -> tuple[Float[Array, "B K D"], Int[Array, "B K"]]:
        """Returns the states that the decoder attends to, and the examples that they belong to."""
        return states, batch["segment_ids"]


def shift_right(
    target_ids: Int[Array, "B T"],
    segment_ids: Int[Array, "B T"],
    position_ids: Int[Array, "B T"],
    start_id: int,
    pad_id: int,
) -> Int[Array, "B T"]:
    """Returns the inputs of the decoder: before the first token of every example the start token, then the target.

    Args:
        target_ids: tokens to predict.
        segment_ids: example of each token; 0 = padding.
        position_ids: positions in the example.
        start_id: id of the start token.
        pad_id: id of padding.
    """
    before = jnp.pad(target_ids[:, :-1], ((0, 0), (1, 0)))
    shifted = jnp.where(position_ids == 0, start_id, before)
    return jnp.where(segment_ids > 0, shifted, pad_id)
