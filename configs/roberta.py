"""RoBERTa: BERT without pairs, byte-level tokens, long sequences, large batches (arXiv:1907.11692, table 9).

    bertjax pretrain --config configs/roberta.py:base --workdir runs/roberta --config.data.sources='text:corpus/*.txt'

Sizes: base large distilroberta, and smoke (two layers, minutes on a CPU).

Hardware and time: not measured here. Result: by fairseq's README, GLUE dev MNLI 87.6 for base and 90.2 for large after
500,000 steps of 8,192 sequences on 160 GB of text.

As in fairseq, sequences are as many whole sentences as fit, across documents (format `full_sentences`); special
tokens may be masked and predicted as well, and the number of predictions is random.

Where this differs from fairseq: `</s>` follows every document of a sequence and ends it, but does not follow every
sentence; a sentence that is longer than a sequence is cut.
"""

from ml_collections import ConfigDict

from bertjax.config.defaults import base_config, make_smoke
from bertjax.errors import UserError

SIZES = ("base", "large", "distilroberta", "smoke")


def get_config(size: str = "base") -> ConfigDict:
    """The recipe of table 9 for one of `SIZES`."""
    if size not in SIZES:
        raise UserError(f"unknown size {size!r}; there are {', '.join(SIZES)}")
    config = base_config()
    config.model.preset = {"large": "roberta-large", "distilroberta": "distilroberta"}.get(size, "roberta-base")

    config.data.example_format = "full_sentences"
    config.data.tokenizer = "bpe"
    config.data.tokenizer_family = "roberta"
    config.data.lowercase = False
    config.data.vocab_size = 50265
    config.data.seq_len = 512
    config.objective.masking.mask_rounding = "random"  # fairseq/data/mask_tokens_dataset.py, for these three
    config.objective.masking.allow_mask_special = True
    config.objective.masking.min_random_id = 4

    config.train.num_steps = 500_000
    config.train.batch_size = 8192
    config.optimizer.learning_rate = 4e-4 if size == "large" else 6e-4
    config.optimizer.b2 = 0.98
    config.optimizer.bias_correction = True
    config.optimizer.clip_norm = 0.0
    config.optimizer.decay_exclude = ()  # fairseq decays every parameter (fairseq/optim/adam.py; one list)
    config.schedule.name = "linear"
    config.schedule.warmup_steps = config.train.get_ref("num_steps") * (60 if size == "large" else 48) // 1000
    if size == "smoke":
        make_smoke(config)
    return config
