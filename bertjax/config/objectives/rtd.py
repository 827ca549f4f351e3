"""What replaced token detection can be told, checked once. Needs no jax."""

from __future__ import annotations

import dataclasses

from bertjax.config.model import EncoderConfig
from bertjax.config.objectives.masking import PAIR_FORMS, MaskingConfig
from bertjax.errors import UserError


@dataclasses.dataclass(frozen=True)
class RtdConfig:
    """The weights multiply the means; the words that the generator offers are drawn at `temperature`.

    `average_repeats`: where a position was drawn k times (`masking.with_replacement`) the generator is asked k times,
    and ELECTRA's code puts the mean of the k ids, rounded down, in its place: an unrelated word, if they differ.
    """

    masking: MaskingConfig
    mlm_weight: float = 1.0
    disc_weight: float = 50.0
    temperature: float = 1.0
    average_repeats: bool = False

    def __post_init__(self) -> None:
        for name in ("mlm_weight", "disc_weight"):
            if getattr(self, name) < 0.0:
                raise UserError(f"objective.{name} must not be negative, not {getattr(self, name)}")
        if not self.temperature > 0.0:
            raise UserError(f"objective.temperature must be above 0, not {self.temperature}")
        if self.average_repeats and not self.masking.with_replacement:
            raise UserError(
                "objective.average_repeats needs objective.mask_with_replacement: else no position is drawn twice"
            )

    def check_model(self, model: EncoderConfig) -> None:
        if model.causal:
            raise UserError("objective.name=rtd judges words by both sides, but model.causal sees only one")

    def check_form(self, form: str) -> None:
        if form not in PAIR_FORMS["none"]:
            raise UserError(
                f"objective.name=rtd needs data.form to be one of {', '.join(PAIR_FORMS['none'])}, not {form!r}"
            )
