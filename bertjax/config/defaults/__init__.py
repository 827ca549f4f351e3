"""Every key that a config may set, with its default: BERT's recipe (arXiv:1810.04805, appendix A.2).

A config file starts from `base_config()` and changes values. A key that is not declared cannot be set, neither there
nor on the command line. Values that follow from others are references, so they follow an override of those.
"""

from __future__ import annotations

from ml_collections import ConfigDict

from bertjax.config.defaults.debug_size import make_smoke, set_linear_schedule
from bertjax.config.defaults.finetune_recipes import RECIPES, make_task
from bertjax.config.defaults.recipe_phases import phase_text, set_phase_sources
from bertjax.config.defaults.seq2seq_recipes import RECIPES as SEQ2SEQ_RECIPES
from bertjax.config.defaults.seq2seq_recipes import make_seq2seq
from bertjax.config.keys import declared_keys
from bertjax.config.nodes import new_config
from bertjax.config.run import every

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


def base_config() -> ConfigDict:
    """Returns a new, locked config with every declared key."""
    config = new_config(declared_keys())
    return config.lock()
