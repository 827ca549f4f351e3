"""Config of causal language modelling. Needs no jax."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from bertjax.config.model import EncoderConfig
from bertjax.config.objectives.base import TEXT_FORMATS, ObjectiveConfig
from bertjax.errors import UserError


@dataclasses.dataclass(frozen=True)
class ClmConfig(ObjectiveConfig, group="objective.clm"):
    """Causal language modelling, which has no options: every token predicts the next one."""

    title = "causal language modelling"
    objective_class = "bertjax.objectives.clm:CausalLanguageModel"
    uses = ()
    example_formats = TEXT_FORMATS
    loss_titles: ClassVar[dict[str, str]] = {"clm": "Next tokens"}
    needs_mask_token = False

    def check_model(self, model: EncoderConfig) -> None:
        if not model.causal:
            raise UserError(
                "objective.name=clm needs model.causal=true: otherwise every token attends to the one it predicts"
            )
