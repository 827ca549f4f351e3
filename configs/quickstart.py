"""A small BERT on the prose that every Python carries: from nothing to a Hugging Face folder in minutes, no network.

    bertjax pretrain --config configs/quickstart.py --workdir runs/quickstart

Hardware and time: 2 CPU cores, about 200 seconds of training.
Result: a held-out masked-token loss at least 1.0 nat below that of always guessing by frequency.
"""

from ml_collections import ConfigDict

from bertjax.base_config import base_config


def get_config() -> ConfigDict:
    """About 0.5M tokens of documentation, a vocabulary of 4096, three layers of 128."""
    config = base_config()
    config.model.preset = "bert-tiny"
    config.model.num_layers = 3
    config.model.hidden_dropout = 0.0  # too short a run to learn anything by heart
    config.model.attention_dropout = 0.0

    config.data.sources = ("builtin:python-docs",)
    config.data.eval_fraction = 0.05
    config.data.vocab_size = 4096
    config.data.seq_len = 128

    config.train.num_steps = 1500
    config.train.batch_size = 32
    config.optimizer.learning_rate = 1e-3
    config.schedule.warmup_steps = (config.train.get_ref("num_steps") + 9) // 10

    config.eval.num_batches = 8
    config.eval.fill_mask = (
        "Return a new [MASK] object.",
        "Raises an [MASK] if the file does not exist.",
        "If the argument is omitted, the [MASK] value is used.",
        "This module provides a [MASK] for reading and writing files.",
    )
    config.export.at_end = True
    return config
