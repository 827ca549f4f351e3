"""Settings of random token substitution. Imports no jax, so that a wrong config is refused at once."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from bertjax.extensions import EncoderConfig, ObjectiveConfig, UserError, setting


@dataclasses.dataclass(frozen=True)
class RtsConfig(ObjectiveConfig, group="objective.rts"):
    """Random token substitution: find the tokens that were replaced at random (arXiv:2204.09462, section 3.1)."""

    title = "random token substitution"
    objective_class = "bertjax_extras.rts:RandomTokenSubstitution"
    loss_titles: ClassVar[dict[str, str]] = {"rts": "Replaced tokens"}
    uses = ()
    needs_mask_token = False

    rate: float = setting(0.15, above=0.0, below=1.0, phase=True, help="Share of the tokens that are replaced.")

    @property
    def summary(self) -> str:
        return f"{self.title} ({self.rate:.0%} of the tokens)"

    @property
    def predicts_at_mask(self) -> bool:
        return False

    def check_model(self, model: EncoderConfig) -> None:
        if model.causal:
            raise UserError("objective.name=rts judges a token by both sides of it; set model.causal=false")
