"""A small BERT on the prose that every Python carries: from nothing to a Hugging Face folder in minutes, no network.

    bertjax pretrain --config quickstart --workdir runs/quickstart

Hardware and time: 2 CPU cores that multiply bfloat16: 2.5 minutes of training (200 s with the installation).
Result: held-out masked-token loss 4.37 nats, 2.0 below always guessing by frequency (Python 3.11).
"""

from ml_collections import ConfigDict

from bertjax.config.defaults import base_config, every


def get_config() -> ConfigDict:
    """About 0.4M tokens of documentation, a vocabulary of 4096, three layers of 128."""
    config = base_config()
    config.model.preset = "bert-tiny"
    config.model.num_layers = 3
    config.model.num_heads = 4
    # Too narrow a model for BERT's 0.02: its first attention scores would all be alike, and it would learn for
    # thousands of steps to distinguish neighbours.
    config.model.initializer_range = 0.05
    config.model.hidden_dropout = 0.0  # the run is too short to overfit
    config.model.attention_dropout = 0.0

    config.data.sources = ("builtin:python-docs",)
    config.data.eval_fraction = 0.05
    config.data.vocab_size = 4096
    # Short sequences: few positions, each read often. So little text teaches mostly neighbours.
    config.data.seq_len = 32
    config.model.max_position_embeddings = config.data.get_ref("seq_len")  # every position is trained

    config.train.num_steps = 3000
    config.train.batch_size = 64
    config.train.log_interval_steps = every(config, 60, at_least=10)
    config.optimizer.learning_rate = 2e-3
    config.optimizer.b2 = 0.98
    config.optimizer.eps = 1e-8
    config.optimizer.bias_correction = True
    config.schedule.warmup_steps = (config.train.get_ref("num_steps") + 19) // 20

    config.eval.interval_steps = every(config, 12)
    config.eval.num_batches = 16
    config.eval.fill_mask = (
        "If the argument is [MASK], the default value is used.",
        "Return true if the object is [MASK] instance of the class.",
        "Raises an [MASK] if the file does not exist.",
        "Open the [MASK] for reading.",
        "The return value is a [MASK] of strings.",
    )
    return config
