"""Configs of objectives with an encoder-decoder, and of sequence-to-sequence learning. Needs no jax."""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Self

from ml_collections import ConfigDict

from bertjax.config.encoder_decoder import DecoderConfig, encoder_decoder_config
from bertjax.config.fields import phase_setting
from bertjax.config.model import EncoderConfig
from bertjax.config.objectives.base import ObjectiveConfig
from bertjax.types import Vocabulary


@dataclasses.dataclass(frozen=True, kw_only=True)
class EncoderDecoderObjectiveConfig(ObjectiveConfig):
    """Config of an objective whose model is an encoder-decoder.

    Attributes:
        decoder: what the towers share, and the token before a target.
    """

    decoder: DecoderConfig = dataclasses.field(default_factory=DecoderConfig)

    @classmethod
    def from_config(cls, cfg: ConfigDict) -> Self:
        encoder_decoder_config(cfg)  # raises for a decoder that does not fit the model
        return super().from_config(cfg)

    @classmethod
    def read_encoders(cls, cfg: ConfigDict, vocabulary: Vocabulary | None = None) -> dict[str, EncoderConfig]:
        config = encoder_decoder_config(cfg, vocabulary)
        return {"model": config.encoder, "decoder": config.decoder}

    def tower_lengths(self, seq_len: int, max_examples: int) -> dict[str, int]:
        return {"model": seq_len, "decoder": seq_len}

    @property
    def smoothing(self) -> float:
        """Probability that the loss gives to all tokens but the target."""
        return 0.0


@dataclasses.dataclass(frozen=True)
class Seq2SeqConfig(EncoderDecoderObjectiveConfig, group="objective.seq2seq"):
    """Sequence-to-sequence learning: a decoder predicts every token of a target from the source and the tokens before.

    Its batches have `target_ids`, which no example format of a corpus makes.
    """

    title = "sequence-to-sequence learning"
    objective_class = "bertjax.objectives.seq2seq:SequenceToSequence"
    uses = ()
    example_formats = ()
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
