"""Sequence-to-sequence learning (arXiv:1706.03762): an encoder reads the source, a decoder predicts the target."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import ClassVar, TypeVar

import jax.numpy as jnp
from jaxtyping import Array, Float, Int
from ml_collections import ConfigDict

from bertjax.config.encoder_decoder import DecoderConfig, EncoderDecoderConfig, encoder_decoder_config
from bertjax.config.fields import Reader, phase_setting
from bertjax.config.model import EncoderConfig
from bertjax.models.encoder_decoder import DECODER_HEADS, bind, complete_params, init_params
from bertjax.objectives.base import FlopsTerm, Key, LossOutputs, Network, Objective, StepInputs, encoder_inputs
from bertjax.objectives.vocab_loss import chunked_vocab_loss_sums
from bertjax.types import Batch, Params, Vocabulary

T = TypeVar("T", bound="EncoderDecoderObjective")


@dataclasses.dataclass(frozen=True, kw_only=True)
class EncoderDecoderObjective(Objective):
    """An objective of an encoder-decoder, which predicts the tokens of a target; subclasses make it in `corrupt`.

    Attributes:
        loss_name: name of the loss.
        exports_decoder: False: the encoder alone is the result.
        decoder: what encoder and decoder share, and the token before a target.
    """

    reads = ("model", "decoder")
    loss_name: ClassVar[str]
    exports_decoder: ClassVar[bool] = True

    decoder: DecoderConfig = dataclasses.field(default_factory=DecoderConfig)
    built_seq2seq_model: EncoderDecoderConfig | None = dataclasses.field(default=None, repr=False)

    @classmethod
    def read(cls: type[T], reader: Reader) -> T:
        encoder_decoder_config(reader.cfg)  # raises for a decoder that does not fit the model
        return super().read(reader)

    @classmethod
    def read_encoders(cls, cfg: ConfigDict, vocabulary: Vocabulary | None = None) -> dict[str, EncoderConfig]:
        config = encoder_decoder_config(cfg, vocabulary)
        return {"model": config.encoder, "decoder": config.decoder}

    def network_lengths(self, seq_len: int, max_examples: int) -> dict[str, int]:
        return {"model": seq_len, "decoder": seq_len}

    @property
    def smoothing(self) -> float:
        """Probability that the loss gives to all tokens but the target."""
        return 0.0

    def build(
        self: T, encoders: Mapping[str, EncoderConfig], vocabulary: Vocabulary, teacher: Network | None = None
    ) -> T:
        return self.with_model(self.decoder.join(encoders["model"], encoders["decoder"], vocabulary), vocabulary)

    def with_model(self: T, model: EncoderDecoderConfig, vocabulary: Vocabulary) -> T:
        """Returns the objective of a model.

        Args:
            model: the encoder-decoder. Without `decoder_start_token_id` targets begin after the tokenizer's first
                special token.
            vocabulary: vocabulary of the tokenizer that both networks read.
        """
        if model.decoder_start_token_id is None:
            model = dataclasses.replace(model, decoder_start_token_id=vocabulary.cls_id)
        built = super().build({"model": model.encoder, "decoder": model.decoder}, vocabulary)
        return dataclasses.replace(built, built_seq2seq_model=model)

    @property
    def seq2seq_model(self) -> EncoderDecoderConfig:
        """The model that `build` was given."""
        assert self.built_seq2seq_model is not None, "build() the objective first"
        return self.built_seq2seq_model

    @property
    def encoder_decoder(self) -> EncoderDecoderConfig | None:
        return self.seq2seq_model if self.exports_decoder else None

    @property
    def loss_weights(self) -> dict[str, float]:
        return {self.loss_name: 1.0}

    @property
    def networks(self) -> dict[str, Network]:
        return {
            "model": Network(self.seq2seq_model.encoder, self.seq2seq_model.encoder_heads),
            "decoder": Network(self.seq2seq_model.decoder, DECODER_HEADS),
        }

    @property
    def flops_terms(self) -> tuple[FlopsTerm, ...]:
        model = self.seq2seq_model
        return (FlopsTerm(model.encoder, 0.0, 0.5), FlopsTerm(model.decoder, 0.5, 0.5))  # half are sources

    def init(self, key: Key) -> Params:
        return init_params(self.seq2seq_model, key)

    def network_params(self, params: Params, name: str) -> Params:
        return dict(zip(self.networks, complete_params(self.seq2seq_model, params), strict=True))[name]

    def corrupt(self, batch: Batch, key: Key, cursor: Array) -> Batch:
        """Adds `decoder_input_ids` and `target_weights` [B, T]."""
        start, pad = self.seq2seq_model.decoder_start_token_id, self.vocabulary.pad_id
        assert start is not None
        inputs = shift_right(batch["target_ids"], batch["target_segment_ids"], batch["target_position_ids"], start, pad)
        weights = (batch["target_segment_ids"] > 0).astype(jnp.float32)
        return {**batch, "decoder_input_ids": inputs, "target_weights": weights}

    def counts(self, batch: Batch) -> dict[str, Array]:
        return {self.loss_name: batch["target_weights"].sum()}

    def loss(self, params: Params, inputs: StepInputs, batch: Batch, key: Key, train: bool) -> LossOutputs:
        model, dropout_key = bind(self.seq2seq_model, params), key if train else None
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
        sums = chunked_vocab_loss_sums(self.loss_name, model.decoder, states, *targets, self.smoothing)
        return sums, inputs.carry

    def decoder_source(
        self, states: Float[Array, "B S D"], batch: Batch
    ) -> tuple[Float[Array, "B K D"], Int[Array, "B K"]]:
        """Returns the states that the decoder attends to, and the examples that they belong to."""
        return states, batch["segment_ids"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Seq2Seq(EncoderDecoderObjective, group="objective.seq2seq"):
    """An encoder-decoder with smoothed labels: every token of a target from the source and the tokens before.

    Its batches have `target_ids`, which no example format of a corpus makes.
    """

    title = "sequence-to-sequence learning"
    example_formats = ()
    loss_name = "seq2seq"
    loss_titles: ClassVar[dict[str, str]] = {"seq2seq": "Target tokens"}
    needs_mask_token = False

    label_smoothing: float = phase_setting(
        0.1,
        at_least=0.0,
        below=1.0,
        help="Probability that the loss gives to all other tokens together (arXiv:1706.03762: 0.1); 0: none.",
    )

    @property
    def smoothing(self) -> float:
        return self.label_smoothing


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
