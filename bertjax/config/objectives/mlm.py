"""Config of masked language modelling. Needs no jax."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from bertjax.config.fields import phase_setting
from bertjax.config.model import EncoderConfig
from bertjax.config.objectives.base import PairObjectiveConfig
from bertjax.config.objectives.masking import MaskingConfig
from bertjax.errors import UserError


@dataclasses.dataclass(frozen=True)
class MlmConfig(PairObjectiveConfig, group="objective.mlm"):
    """Masked language modelling, alone or with a sentence objective or the span-boundary objective."""

    title = "masked language modelling"
    objective_class = "bertjax.objectives.mlm:MaskedLanguageModel"
    loss_titles: ClassVar[dict[str, str]] = {
        "mlm": "Masked tokens",
        "pair": "Sentence pairs",
        "span_boundary": "Tokens from their span boundary",
    }

    masking: MaskingConfig
    mlm_weight: float = phase_setting(1.0, help="Factor of the mean loss of masked tokens.", at_least=0.0)
    span_boundary_weight: float = phase_setting(
        0.0, help="Factor of SpanBERT's span-boundary loss; 0 = no such head.", at_least=0.0
    )
    masked_next_token: bool = phase_setting(
        False,
        help="Predict a masked token from the position before it, as a causal model does (GPT-BERT; MNTP of LLM2Vec).",
    )

    def check(self) -> None:
        if self.masked_next_token and self.span_boundary_weight:
            raise UserError("objective.mlm.masked_next_token and objective.mlm.span_boundary_weight cannot be combined")

    @property
    def summary(self) -> str:
        title = "masked next-token prediction" if self.masked_next_token else self.title
        parts = [title, *filter(None, [self.sentence_objective])]
        parts += ["the span-boundary objective"] if self.span_boundary_weight else []
        return f"{' and '.join(parts)} ({self.masking.summary})"

    @property
    def predicts_at_mask(self) -> bool:
        return not self.masked_next_token

    @property
    def predicted_share(self) -> float:
        """The share of the tokens that are scored against the vocabulary, on average over the run."""
        return self.masking.predicted_share * (2.0 if self.span_boundary_weight else 1.0)

    def check_model(self, model: EncoderConfig) -> None:
        if model.causal:
            raise UserError(
                "objective.name=mlm predicts from both sides, but model.causal attends to one; set objective.name=clm "
                "or model.causal=false"
            )
        if self.masked_next_token and model.enhanced_decoder:
            raise UserError("objective.mlm.masked_next_token needs model.enhanced_decoder=false")
