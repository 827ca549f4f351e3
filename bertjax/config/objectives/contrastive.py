"""What contrastive learning can be told, checked once. Needs no jax."""

from __future__ import annotations

import dataclasses

from bertjax.config.model import EncoderConfig
from bertjax.config.objectives.base import SENTENCE_OBJECTIVE_FORMATS
from bertjax.config.objectives.masking import MaskingConfig
from bertjax.errors import UserError, require_one_of

POOLINGS = ("first", "mean")


@dataclasses.dataclass(frozen=True)
class ContrastiveConfig:
    """Every field is a key of `objective` in `bertjax/base_config/`; the defaults are unsupervised SimCSE's.

    `microbatches` is that of the run: the negatives of a row are the other rows of its batch.
    """

    masking: MaskingConfig
    pooling: str = "first"
    contrast_temperature: float = 0.05
    mlm_weight: float = 0.0
    microbatches: int = 1

    def __post_init__(self) -> None:
        require_one_of("objective.pooling", self.pooling, POOLINGS)
        if not self.contrast_temperature > 0.0:
            raise UserError(f"objective.contrast_temperature must be above 0, not {self.contrast_temperature}")
        if self.mlm_weight < 0.0:
            raise UserError(f"objective.mlm_weight must not be negative, not {self.mlm_weight}")
        if self.microbatches > 1:
            raise UserError(
                f"objective.name=contrastive tells every row from all others of its batch, which train.microbatches="
                f"{self.microbatches} would tear apart; set it to 1 (model.remat=full saves memory)"
            )

    @property
    def heads(self) -> tuple[str, ...]:
        return ("mlm",) if self.mlm_weight else ()

    def check_model(self, model: EncoderConfig) -> None:
        rates = ["hidden", "attention", "embedding", "attention_output", "feed_forward", "activation", "output"]
        if not any(model.rate(f"{name}_dropout") for name in rates):
            raise UserError(
                "objective.name=contrastive makes two views of a text by dropout: without any (model.hidden_dropout=0, "
                "model.attention_dropout=0, ...) both are the same; set model.hidden_dropout=0.1"
            )
        if model.causal:
            raise UserError("objective.name=contrastive reads text from both sides, but model.causal sees only one")
        if model.bi_data:
            raise UserError("objective.name=contrastive reads every row twice; set model.bi_data=false")

    def check_example_format(self, form: str) -> None:
        if form not in SENTENCE_OBJECTIVE_FORMATS["none"]:
            raise UserError(
                f"objective.name=contrastive needs data.example_format to be one of "
                f"{', '.join(SENTENCE_OBJECTIVE_FORMATS['none'])}, not {form!r}"
            )
