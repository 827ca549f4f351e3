"""Recipes made small enough for a laptop."""

from __future__ import annotations

from ml_collections import ConfigDict

from bertjax.config.run import every


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
