"""GPT-2: the same blocks with a causal mask, the decoder that encoders are compared with (openai/gpt-2).

    bertjax pretrain --config gpt2:small --workdir runs/gpt2 --config.data.sources='text:corpus/*.txt'

Sizes: small medium large xl (124, 355, 774 and 1,558 million parameters), and smoke (two layers, minutes on a CPU).

Hardware and time: not measured here. Result: by its report, perplexity 29.41 (small) on WikiText-2 without training on
it.

Where this differs from the report: sequences are cut from single documents, with <|endoftext|> at both ends; the
optimizer and its rate were not published, the values here are common choices.
"""

from ml_collections import ConfigDict

from bertjax.config.defaults import base_config, make_smoke
from bertjax.errors import require_one_of

PRESETS = {"small": "gpt2", "medium": "gpt2-medium", "large": "gpt2-large", "xl": "gpt2-xl", "smoke": "gpt2"}
SIZES = tuple(PRESETS)


def get_config(size: str = "small") -> ConfigDict:
    """One of `SIZES`, 512 rows of 1,024 tokens."""
    require_one_of("size", size, SIZES)
    config = base_config()
    config.model.preset = PRESETS[size]

    config.objective.name = "clm"
    config.data.example_format = "block"
    config.data.tokenizer = "bpe"
    config.data.tokenizer_family = "gpt2"
    config.data.lowercase = False
    config.data.vocab_size = 50257
    config.data.seq_len = 1024

    config.train.num_steps = 300_000
    config.train.batch_size = 512
    config.optimizer.learning_rate = 6e-4
    config.optimizer.b2 = 0.95
    config.optimizer.eps = 1e-8
    config.optimizer.bias_correction = True
    config.optimizer.weight_decay = 0.1
    config.schedule.name = "cosine"
    if size == "smoke":
        make_smoke(config)
    return config
