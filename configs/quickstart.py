"""A small ModernBERT on the prose that every Python carries: to a Hugging Face folder in minutes, without network.

    bertjax pretrain --config quickstart --workdir runs/quickstart

Hardware and time: 2 CPU cores with AVX2 alone: three minutes, preparation and export included.
Result: held-out masked-token loss 4.48 nats, 1.9 below always guessing by frequency (Python 3.11).
"""

from ml_collections import ConfigDict

from bertjax.config.defaults import base_config, every


def get_config() -> ConfigDict:
    """About 0.4M tokens of documentation, a vocabulary of 4096, three layers of 128."""
    config = base_config()
    # ModernBERT's form, with rotary positions, is one nat below the unigram loss before step 300, BERT's with learned
    # ones at step 1,250.
    config.model.preset = "modernbert-base"
    config.model.num_layers = 3
    config.model.hidden_size = 128
    config.model.num_heads = 4
    config.model.intermediate_size = 192
    config.model.local_attention = 16
    config.model.global_rope_theta = 10_000.0
    config.model.initializer_range = 0.05  # 0.02 is too little for so narrow a model
    config.model.attention_output_dropout = 0.0  # the run is too short to overfit

    config.data.sources = ("builtin:python-docs",)
    config.data.example_format = "block"
    config.data.eval_fraction = 0.05
    config.data.vocab_size = 4096
    config.data.seq_len = 32
    config.model.max_position_embeddings = config.data.get_ref("seq_len")

    config.train.num_steps = 1000
    config.train.batch_size = 64
    config.train.log_interval_steps = every(config, 60, at_least=10)
    config.optimizer.learning_rate = 3e-3
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
