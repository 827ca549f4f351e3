"""Sequence-to-sequence learning (arXiv:1706.03762): an encoder reads the source, a decoder predicts the target."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Int

from bertjax.config.encoder_decoder import EncoderDecoderConfig
from bertjax.config.objectives.seq2seq import Seq2SeqConfig
from bertjax.models.encoder_decoder import DECODER_HEADS, bind, init_params, tower_params
from bertjax.objectives.base import FlopsTerm, Key, LossOutputs, Network, Objective, StepInputs, encoder_inputs
from bertjax.objectives.vocab_loss import chunked_vocab_loss_sums
from bertjax.types import Batch, Params, Vocabulary


class SequenceToSequence(Objective):
    """An encoder-decoder with smoothed labels; other objectives of this form make their targets in `corrupt`.

    Args:
        config: label smoothing.
        model: the two towers. Without `decoder_start_token_id` targets begin after the tokenizer's first special token.
        vocabulary: of the tokenizer that both towers read.
    """

    config: Seq2SeqConfig

    def __init__(self, config: Seq2SeqConfig, model: EncoderDecoderConfig, vocabulary: Vocabulary):
        self.config, self.model = config, model
        self.start_id = vocabulary.cls_id if model.decoder_start_token_id is None else model.decoder_start_token_id
        self.pad_id = vocabulary.pad_id
        self.loss_weights = {"seq2seq": 1.0}
        self.networks = {
            "model": Network(model.encoder, model.encoder_heads),
            "decoder": Network(model.decoder, DECODER_HEADS),
        }
        # as if half of the tokens were the source's
        self.flops_terms = (FlopsTerm(model.encoder, 0.0, 0.5), FlopsTerm(model.decoder, 0.5, 0.5))

    def init(self, key: Key) -> Params:
        return init_params(self.model, key)

    def network_params(self, params: Params, name: str) -> Params:
        return dict(zip(self.networks, tower_params(self.model, params), strict=True))[name]

    def corrupt(self, batch: Batch, key: Key, cursor: Array) -> Batch:
        """Adds `decoder_input_ids` and `target_weights` [B, T]."""
        inputs = shift_right(
            batch["target_ids"], batch["target_segment_ids"], batch["target_position_ids"], self.start_id, self.pad_id
        )
        weights = (batch["target_segment_ids"] > 0).astype(jnp.float32)
        return {**batch, "decoder_input_ids": inputs, "target_weights": weights}

    def counts(self, batch: Batch) -> dict[str, Array]:
        return {"seq2seq": batch["target_weights"].sum()}

    def loss(self, params: Params, inputs: StepInputs, batch: Batch, key: Key, train: bool) -> LossOutputs:
        model, dropout_key = bind(self.model, params), key if train else None
        source = model.encode(**encoder_inputs(batch), key=dropout_key).last_hidden_state
        states = model.decode(
            source,
            batch["segment_ids"],
            batch["decoder_input_ids"],
            batch["target_segment_ids"],
            batch["target_position_ids"],
            jnp.zeros_like(batch["target_ids"]),
            key=dropout_key,
        ).last_hidden_state
        targets = batch["target_ids"], batch["target_weights"]
        smoothing = self.config.label_smoothing
        return chunked_vocab_loss_sums("seq2seq", model.decoder, states, *targets, smoothing), inputs.carry


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
