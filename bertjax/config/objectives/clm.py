"""Config of causal language modelling. Needs no jax."""

from __future__ import annotations

import dataclasses

from bertjax.config.model import EncoderConfig
from bertjax.config.objectives.base import TEXT_FORMATS
from bertjax.errors import UserError


@dataclasses.dataclass(frozen=True)
class ClmConfig:
    """Nothing to choose: every token predicts the next one."""

    def check_model(self, model: EncoderConfig) -> None:
        if not model.causal:
            raise UserError("objective.name=clm needs model.causal=true: else every token sees what it is to predict")

    def check_example_format(self, form: str) -> None:
        if form not in TEXT_FORMATS:
            raise UserError(
                f"objective.name=clm needs data.example_format to be {' or '.join(TEXT_FORMATS)}, not {form!r}"
            )
