"""What an objective can be told, checked once. Needs no jax, so that a wrong config is refused at once."""

from __future__ import annotations

import dataclasses
from typing import Protocol

from bertjax.models.config import EncoderConfig
from bertjax.types import UserError

UNITS = ("token", "whole_word")

PAIR_FORMS = {"none": ("block", "nsp_pairs"), "nsp": ("nsp_pairs",)}
"""Which row forms every kind of pair loss can read."""


@dataclasses.dataclass(frozen=True)
class MaskingConfig:
    """How tokens are hidden: `mask_rate` of an example's length (specials included), at most `max_predictions`."""

    unit: str = "token"
    dynamic: bool = True
    mask_rate: float = 0.15
    max_predictions: int = 20
    mask_token_rate: float = 0.8
    random_token_rate: float = 0.1

    def __post_init__(self) -> None:
        if self.unit not in UNITS:
            raise UserError(f"objective.masking must be one of {', '.join(UNITS)}, not {self.unit!r}")
        if not 0.0 < self.mask_rate <= 1.0:
            raise UserError(f"objective.mask_rate must lie in (0, 1], not {self.mask_rate}")
        if self.max_predictions < 1:
            raise UserError(f"objective.max_predictions must be at least 1, not {self.max_predictions}")
        shares = (self.mask_token_rate, self.random_token_rate)
        if min(shares) < 0.0 or sum(shares) > 1.0 + 1e-6:
            raise UserError(
                "objective.mask_token_rate and objective.random_token_rate must not be negative and sum to at most 1, "
                f"not {shares[0]} and {shares[1]}"
            )


class ObjectiveConfig(Protocol):
    """What every objective's config can tell before anything is built."""

    @property
    def predicted_share(self) -> float:
        """Share of the tokens that go through the vocabulary projection."""

    def check_form(self, form: str) -> None:
        """Raises `UserError` when rows of this form lack what the loss needs."""

    def check_model(self, model: EncoderConfig) -> None:
        """Raises `UserError` for an encoder that cannot learn this."""


@dataclasses.dataclass(frozen=True)
class MlmConfig:
    """`pair` is "nsp" or "none"; the weights multiply the two means."""

    masking: MaskingConfig
    pair: str = "nsp"
    mlm_weight: float = 1.0
    pair_weight: float = 1.0

    def __post_init__(self) -> None:
        if self.pair not in PAIR_FORMS:
            raise UserError(f"objective.pair must be one of {', '.join(PAIR_FORMS)}, not {self.pair!r}")
        if min(self.mlm_weight, self.pair_weight) < 0.0:
            raise UserError("objective.mlm_weight and objective.pair_weight must not be negative")

    @property
    def predicted_share(self) -> float:
        return self.masking.mask_rate

    def check_model(self, model: EncoderConfig) -> None:
        if model.causal:
            raise UserError(
                "objective.name=mlm hides words from both sides, but model.causal sees only one; "
                "set objective.name=clm or model.causal=false"
            )

    def check_form(self, form: str) -> None:
        if form not in PAIR_FORMS[self.pair]:
            raise UserError(
                f"objective.pair={self.pair} needs data.form to be {' or '.join(PAIR_FORMS[self.pair])}, not {form!r}"
            )


@dataclasses.dataclass(frozen=True)
class CausalConfig:
    """Nothing to choose: every token predicts the next one."""

    predicted_share: float = 1.0

    def check_model(self, model: EncoderConfig) -> None:
        if not model.causal:
            raise UserError("objective.name=clm needs model.causal=true: else every token sees what it is to predict")
        if model.mlm_head == "transform" and model.enhanced_decoder:
            raise UserError("objective.name=clm cannot use model.enhanced_decoder")

    def check_form(self, form: str) -> None:
        if form != "block":
            raise UserError(f"objective.name=clm needs data.form to be block, not {form!r}")
