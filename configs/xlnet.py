"""XLNet's encoder: relative positions and relative segments, no absolute ones (arXiv:1906.08237).

    bertjax pretrain --config configs/xlnet.py:base --workdir runs/xlnet --config.data.sources='text:corpus/*.txt'

Sizes: base large, and tiny (two layers, minutes on a CPU).

Hardware and time: not measured here. Result: by the README of zihangdai/xlnet, GLUE dev MNLI 86.8 (base) and 89.8
(large).

Where this differs from the paper: tokens are hidden behind <mask> and read from the content stream; the permutation
loss is not trained, and rows are single blocks of text instead of streams with a memory. Both streams and the memory
are in the model, and run for Hugging Face folders.
"""

from ml_collections import ConfigDict

from bertjax.base_config import base_config, make_tiny
from bertjax.types import UserError

SIZES = ("base", "large", "tiny")


def get_config(size: str = "base") -> ConfigDict:
    """The recipe of appendix A.4.1 for one of `SIZES`."""
    if size not in SIZES:
        raise UserError(f"unknown size {size!r}; there are {', '.join(SIZES)}")
    config = base_config()
    config.model.preset = "xlnet-large" if size == "large" else "xlnet-base"

    config.data.form = "block"
    config.data.tokenizer = "unigram"
    config.data.tokenizer_family = "xlnet"
    config.data.lowercase = False
    config.data.vocab_size = 32000
    config.data.seq_len = 512
    config.objective.pair = "none"

    config.train.num_steps = 500_000
    config.train.batch_size = 8192
    config.optimizer.learning_rate = 4e-4
    config.schedule.name = "linear"
    config.schedule.warmup_steps = config.train.get_ref("num_steps") * 8 // 100
    if size == "tiny":
        make_tiny(config)
        config.model.activation_dropout = 0.0
        config.model.output_dropout = 0.0
    return config
