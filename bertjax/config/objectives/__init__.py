"""The objectives by name, as configs that need no jax.

No other package compares names of objectives: what it needs to know of one is an attribute of `ObjectiveConfig`.
"""

from __future__ import annotations

from ml_collections import ConfigDict

from bertjax.config.extensions import OBJECTIVES as OBJECTIVES
from bertjax.config.fields import Settings
from bertjax.config.objectives.base import ObjectiveChoice, ObjectiveConfig
from bertjax.config.objectives.masking import MaskingConfig
from bertjax.config.objectives.seq2seq import Seq2SeqConfig
from bertjax.errors import UserError

GROUPS: tuple[type[Settings], ...] = (ObjectiveChoice, MaskingConfig, Seq2SeqConfig, *OBJECTIVES.builtins())
"""The dataclasses that declare the keys of objectives."""


def objective_class(name: str) -> type[ObjectiveConfig]:
    """Returns the config class of an objective, the value of `objective.name`; raises `UserError` if there is none."""
    return OBJECTIVES.load(name)


def objective_config(cfg: ConfigDict) -> ObjectiveConfig:
    """Reads the config of the objective that `objective.name` chooses; raises `UserError` for a wrong value."""
    return objective_class(cfg.objective.name).from_config(cfg)


def loss_titles() -> dict[str, str]:
    """Returns the headings of all losses by name."""
    return {loss: title for config in OBJECTIVES.usable() for loss, title in config.loss_titles.items()}


def require_pretraining(cfg: ConfigDict) -> None:
    """Raises `UserError` for the config of a task: it has no corpus, and that of the defaults is not meant."""
    if objective_class(cfg.objective.name).is_finetuning:
        raise UserError(
            f"objective.name={cfg.objective.name} is finetuning, which reads task.train and no corpus: use `bertjax "
            "finetune`, or the config of an objective of pretraining"
        )
