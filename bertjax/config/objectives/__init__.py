"""The objectives by name, as configs that need no jax.

No other package compares names of objectives: what it needs to know of one is an attribute of `ObjectiveConfig`.
"""

from __future__ import annotations

import importlib

from ml_collections import ConfigDict

from bertjax.config.fields import Settings
from bertjax.config.objectives.base import ObjectiveChoice, ObjectiveConfig
from bertjax.config.objectives.clm import ClmConfig
from bertjax.config.objectives.contrastive import ContrastiveConfig
from bertjax.config.objectives.distillation import DistillationConfig
from bertjax.config.objectives.masking import MaskingConfig
from bertjax.config.objectives.mixture import MixtureConfig
from bertjax.config.objectives.mlm import MlmConfig
from bertjax.config.objectives.plm import PlmConfig
from bertjax.config.objectives.rtd import RtdConfig
from bertjax.config.objectives.task import TaskObjectiveConfig
from bertjax.errors import USER_CODE_ERRORS, UserError, require_one_of

OBJECTIVES: dict[str, type[ObjectiveConfig]] = {
    "mlm": MlmConfig,
    "clm": ClmConfig,
    "plm": PlmConfig,
    "rtd": RtdConfig,
    "distillation": DistillationConfig,
    "contrastive": ContrastiveConfig,
    "mixture": MixtureConfig,
    "task": TaskObjectiveConfig,
}
"""The configs by `objective.name`."""

GROUPS: tuple[type[Settings], ...] = (ObjectiveChoice, MaskingConfig, *OBJECTIVES.values())
"""The dataclasses that declare the keys of objectives."""


def objective_class(name: str) -> type[ObjectiveConfig]:
    """Returns the config class of an objective.

    Args:
        name: the value of `objective.name`: a name of `OBJECTIVES`, or `package.module:Class` of a subclass of
            `ObjectiveConfig`.

    Raises:
        UserError: the objective does not exist.
    """
    if ":" not in name:
        require_one_of("objective.name", name, tuple(OBJECTIVES))
        return OBJECTIVES[name]
    module, _, attribute = name.partition(":")
    try:
        config = getattr(importlib.import_module(module), attribute)
    except USER_CODE_ERRORS as error:
        raise UserError(f"objective.name={name} cannot be imported: {type(error).__name__}: {error}") from error
    if not (isinstance(config, type) and issubclass(config, ObjectiveConfig)):
        raise UserError(f"objective.name={name} must be a subclass of bertjax.config.objectives.base.ObjectiveConfig")
    return config


def objective_config(cfg: ConfigDict) -> ObjectiveConfig:
    """Reads the config of the objective that `objective.name` chooses; raises `UserError` for a wrong value."""
    return objective_class(cfg.objective.name).from_config(cfg)


def loss_titles() -> dict[str, str]:
    """Returns the headings of all losses by name."""
    return {loss: title for config in OBJECTIVES.values() for loss, title in config.loss_titles.items()}


def require_pretraining(cfg: ConfigDict) -> None:
    """Raises `UserError` for the config of a task: it has no corpus, and that of the defaults is not meant."""
    if objective_class(cfg.objective.name).is_finetuning:
        raise UserError(
            f"objective.name={cfg.objective.name} is finetuning, which reads task.train and no corpus: use `bertjax "
            "finetune`, or the config of an objective of pretraining"
        )
