"""Every key that a config may set, with its default: BERT's recipe (arXiv:1810.04805, appendix A.2).

A config file starts from `base_config()` and changes values. A key that is not declared cannot be set, neither there
nor on the command line. Values that follow from others are references, so they follow an override of those.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

from bertjax.config.fields import format_value
from bertjax.config.finetune_recipes import RECIPES as RECIPES
from bertjax.config.finetune_recipes import SEQ2SEQ_RECIPES as SEQ2SEQ_RECIPES
from bertjax.config.finetune_recipes import make_seq2seq as make_seq2seq
from bertjax.config.finetune_recipes import make_task as make_task
from bertjax.config.keys import declared_keys
from bertjax.config.nodes import new_config
from bertjax.config.run import every as every


def base_config() -> ConfigDict:
    """Returns a new, locked config with every declared key."""
    return new_config(declared_keys()).lock()


def set_linear_schedule(config: ConfigDict) -> None:
    """Sets a learning rate that rises for a tenth of the steps and falls to zero."""
    config.schedule.name = "linear"
    config.schedule.warmup_steps = (config.train.get_ref("num_steps") + 9) // 10
    for key in ("end_lr_ratio", "power", "decay_steps", "period_steps", "factor"):
        config.schedule[key] = None


def make_smoke(config: ConfigDict) -> None:
    """Turns a recipe into a small one of the same family: two layers of 128, minutes on two CPU cores, then exported.

    The maths stays that of the family; sizes, data and optimizer become much like those of configs/quickstart.py.
    """
    config.model.num_layers = 2
    config.model.hidden_size = 128
    config.model.num_heads = 4
    config.model.intermediate_size = 512
    config.model.initializer_range = 0.05  # 0.02 is too little for so narrow a model
    config.model.hidden_dropout = 0.0  # too short a run to learn anything by heart
    config.model.attention_dropout = 0.0
    config.data.vocab_size = 4096
    config.data.seq_len = 64
    config.train.num_steps = 1500
    config.train.batch_size = 32
    config.train.initial_batch_size = config.train.batch_ramp_steps = None
    config.train.phases = ()
    config.optimizer.name = "adamw"
    config.optimizer.learning_rate = 2e-3
    config.optimizer.b2 = 0.98
    config.optimizer.eps = 1e-8
    config.optimizer.clip_norm = 1.0
    config.optimizer.bias_correction = True
    set_linear_schedule(config)
    config.eval.interval_steps = every(config, 10)
    config.eval.num_batches = 16


def phase_text(share: float, settings: Mapping[str, Any]) -> str:
    """Returns an item of `train.phases`: settings for a share of the run."""
    return f"{100 * share:.4f}%:" + ",".join(f"{key}={format_value(value)}" for key, value in settings.items())


def set_phase_sources(config: ConfigDict, folder: str) -> None:
    """Gives the phases of a config the sources that FOLDER/phase-1.txt and so on name; no folder changes nothing."""
    if folder:
        phases = config.train.phases
        lists = [f"@{folder.rstrip('/')}/phase-{number + 1}.txt" for number in range(len(phases) + 1)]
        config.train.phases = tuple(
            f"{phase},data.sources={text}" for phase, text in zip(phases, lists[:-1], strict=True)
        )
        config.data.sources = (lists[-1],)
