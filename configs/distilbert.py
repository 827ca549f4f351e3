"""DistilBERT's encoder: half of BERT's layers, no token types, no pooler (arXiv:1910.01108).

    bertjax pretrain --config configs/distilbert.py:base --workdir runs/distil --config.data.sources='text:corpus/*.txt'

Sizes: base base-cased, and tiny (two layers, minutes on a CPU).

Hardware and time: by the paper, 90 hours on 8 V100 GPUs; not measured here. Result: by its authors, GLUE dev average
77.0 (uncased) with distillation from BERT-base.

As with the authors, rare tokens are hidden more often than frequent ones.

Where this differs from the paper: there is no teacher, and every row hides its own 15 % (the authors draw 15 % of all
tokens of a batch at once, so that rows with many rare words lose more).
"""

from ml_collections import ConfigDict

from bertjax.base_config import base_config, make_tiny
from bertjax.types import UserError

SIZES = ("base", "base-cased", "tiny")


def get_config(size: str = "base") -> ConfigDict:
    """The authors' optimizer (huggingface/transformers-research-projects:distillation/train.py) for one of `SIZES`."""
    if size not in SIZES:
        raise UserError(f"unknown size {size!r}; there are {', '.join(SIZES)}")
    config = base_config()
    config.model.preset = "distilbert"

    config.data.form = "block"
    config.data.tokenizer_family = "distilbert"
    config.data.lowercase = size != "base-cased"
    config.data.vocab_size = 28996 if size == "base-cased" else 30522
    config.data.seq_len = 512
    config.objective.pair = "none"
    config.objective.masking = "frequency"
    config.objective.mask_count = "random"
    config.objective.mask_unknown = False

    config.train.num_steps = 100_000  # three epochs of books and Wikipedia at this batch size, roughly
    config.train.batch_size = 4096
    config.optimizer.learning_rate = 5e-4
    config.optimizer.b2 = 0.98
    config.optimizer.bias_correction = True
    config.optimizer.weight_decay = 0.0
    config.optimizer.clip_norm = 5.0
    config.schedule.name = "linear"
    config.schedule.warmup_steps = config.train.get_ref("num_steps") // 20
    if size == "tiny":
        make_tiny(config)
    return config
