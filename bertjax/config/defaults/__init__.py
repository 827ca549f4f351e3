"""Every key that a config may set, with its default: BERT's recipe (arXiv:1810.04805, appendix A.2).

A config file starts from `base_config()` and changes values. A key that is not declared cannot be set, neither there
nor on the command line. Values that follow from others are references, so they follow an override of those.
"""

from __future__ import annotations

import functools

from ml_collections import ConfigDict

from bertjax.config.data import DataConfig
from bertjax.config.defaults.debug_size import make_smoke, set_linear_schedule
from bertjax.config.defaults.finetune_recipes import RECIPES, make_task
from bertjax.config.defaults.recipe_phases import phase_text, set_phase_sources
from bertjax.config.defaults.seq2seq_recipes import RECIPES as SEQ2SEQ_RECIPES
from bertjax.config.defaults.seq2seq_recipes import make_seq2seq
from bertjax.config.distributed import DistributedConfig, MeshConfig
from bertjax.config.encoder_decoder import DecoderConfig
from bertjax.config.extensions import TASK_KINDS
from bertjax.config.fields import Setting, Settings, declare
from bertjax.config.filters import FilterConfig
from bertjax.config.model import NETWORK_GROUPS, GeneratorConfig, PresetConfig, network_keys
from bertjax.config.nodes import new_config
from bertjax.config.objectives import GROUPS as OBJECTIVE_GROUPS
from bertjax.config.optimizer import OptimizerConfig, ScheduleConfig
from bertjax.config.run import GROUPS as RUN_GROUPS
from bertjax.config.run import every
from bertjax.config.source_mixture import SourceMixtureConfig
from bertjax.config.task import TaskConfig
from bertjax.config.training import AnomalyConfig, TrainConfig

__all__ = [
    "RECIPES",
    "SEQ2SEQ_RECIPES",
    "base_config",
    "every",
    "make_seq2seq",
    "make_smoke",
    "make_task",
    "phase_text",
    "set_linear_schedule",
    "set_phase_sources",
]

GROUPS: tuple[type[Settings], ...] = (
    *RUN_GROUPS,
    PresetConfig,
    GeneratorConfig,
    DecoderConfig,
    DataConfig,
    FilterConfig,
    SourceMixtureConfig,
    TrainConfig,
    AnomalyConfig,
    OptimizerConfig,
    ScheduleConfig,
    MeshConfig,
    DistributedConfig,
    TaskConfig,
    *TASK_KINDS.builtins(),
    *OBJECTIVE_GROUPS,
)
"""The dataclasses that declare the keys; those of `EncoderConfig` are added for `NETWORK_GROUPS`."""


@functools.cache
def declared_keys() -> dict[str, Setting]:
    """Returns {dotted key: declaration}."""
    networks = {key: each for group in NETWORK_GROUPS for key, each in network_keys(group).items()}
    return declare(GROUPS) | networks


def base_config() -> ConfigDict:
    """Returns a new, locked config with every declared key."""
    config = new_config(declared_keys())
    return config.lock()
