"""Config of contrastive learning. Needs no jax."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from bertjax.config.fields import phase_setting, setting
from bertjax.config.model import EncoderConfig
from bertjax.config.objectives.base import ObjectiveConfig
from bertjax.config.objectives.masking import MaskingConfig
from bertjax.errors import UserError

_DROPOUTS = ("hidden", "attention", "embedding", "attention_output", "feed_forward", "activation", "output")


@dataclasses.dataclass(frozen=True)
class ContrastiveConfig(ObjectiveConfig, group="objective.contrastive"):
    """Contrastive sentence embeddings; the defaults are those of unsupervised SimCSE."""

    title = "contrastive sentence embeddings"
    objective_class = "bertjax.objectives.contrastive:ContrastiveLearning"
    loss_titles: ClassVar[dict[str, str]] = {"contrastive": "Contrastive", "mlm": "Masked tokens"}
    metrics: ClassVar[dict[str, tuple[str, str]]] = {
        "alignment": ("squared distance", "Mean of two views of a text on the unit sphere (arXiv:2005.10242)."),
        "uniformity": ("log", "Log of the mean of exp(-2 d²) over all pairs of a batch; 0 = all vectors are equal."),
    }

    masking: MaskingConfig
    pooling: str = phase_setting(
        "first",
        help="Embedding of a text: its first token, after a dense layer while training, or the mean of all tokens.",
        choices=("first", "mean"),
    )
    temperature: float = phase_setting(0.05, help="Divides the cosine similarities.", above=0.0)
    mlm_weight: float = phase_setting(
        1.0, help="Factor of the loss of masked tokens in a third view; 0 = no such head.", at_least=0.0
    )
    microbatches: int = setting(1, help="Microbatches of the run.", key=False)

    def check(self) -> None:
        if self.microbatches > 1:
            raise UserError(
                "objective.name=contrastive compares each sequence with all others of its batch, which "
                f"train.microbatches={self.microbatches} would split; set it to 1 (model.remat=full saves memory)"
            )

    @property
    def summary(self) -> str:
        return f"{self.title}{' and masked language modelling' if self.mlm_weight else ''}"

    @property
    def embedding_pooling(self) -> str:
        return self.pooling

    @property
    def heads(self) -> tuple[str, ...]:
        """The heads of the network."""
        return ("mlm",) if self.mlm_weight else ()

    def check_model(self, model: EncoderConfig) -> None:
        if not any(model.rate(f"{name}_dropout") for name in _DROPOUTS):
            raise UserError(
                "objective.name=contrastive makes two views of a text by dropout: without any "
                "(model.hidden_dropout=0, model.attention_dropout=0, ...) both are equal; set model.hidden_dropout=0.1"
            )
        if model.causal:
            raise UserError("objective.name=contrastive reads text from both sides, but model.causal attends to one")
        if model.bi_data:
            raise UserError("objective.name=contrastive reads every sequence twice; set model.bi_data=false")
