"""Config of masked language modelling. Needs no jax."""

from __future__ import annotations

import dataclasses

from bertjax.config.model import EncoderConfig
from bertjax.config.objectives.base import SENTENCE_OBJECTIVE_FORMATS
from bertjax.config.objectives.masking import MaskingConfig
from bertjax.errors import UserError, require_one_of


@dataclasses.dataclass(frozen=True)
class MlmConfig:
    """`pair` is "nsp", "sop" or "none"; the weights multiply the means. `span_boundary` is one: 0 = no such loss.

    `predict_next`: a hidden word is predicted from the state of the token before it.
    """

    masking: MaskingConfig
    pair: str = "nsp"
    mlm_weight: float = 1.0
    pair_weight: float = 1.0
    span_boundary: float = 0.0
    predict_next: bool = False

    def __post_init__(self) -> None:
        require_one_of("objective.pair", self.pair, tuple(SENTENCE_OBJECTIVE_FORMATS))
        for name in ("mlm_weight", "pair_weight", "span_boundary"):
            if getattr(self, name) < 0.0:
                raise UserError(f"objective.{name} must not be negative, not {getattr(self, name)}")
        if self.predict_next and self.span_boundary:
            raise UserError("objective.predict_next and objective.span_boundary do not go together")

    @property
    def predicted_share(self) -> float:
        """Share of the tokens that are scored against the vocabulary, on average over the run."""
        share = (self.masking.mask_rate + self.masking.last_rate) / 2.0
        return share * (2.0 if self.span_boundary else 1.0)  # the span-boundary head scores the same words once more

    def check_model(self, model: EncoderConfig) -> None:
        if model.causal:
            raise UserError(
                "objective.name=mlm hides words from both sides, but model.causal sees only one; "
                "set objective.name=clm or model.causal=false"
            )
        if self.predict_next and model.enhanced_decoder:
            raise UserError("objective.predict_next needs model.enhanced_decoder=false: it reads the encoder itself")

    def check_example_format(self, form: str) -> None:
        formats = SENTENCE_OBJECTIVE_FORMATS[self.pair]
        if form not in formats:
            raise UserError(
                f"objective.pair={self.pair} needs data.example_format to be {' or '.join(formats)}, not {form!r}"
            )
