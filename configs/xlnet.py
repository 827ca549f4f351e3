"""XLNet: permutation language modeling with a memory, relative positions and segments (arXiv:1906.08237).

    bertjax pretrain --config xlnet:base --workdir runs/xlnet --config.data.sources='text:corpus/*.txt'

Sizes: base large, and smoke (two layers, minutes on a CPU).

Hardware and time: not measured here. Result: by the README of zihangdai/xlnet, GLUE dev MNLI 86.8 (base) and 89.8
(large).

Where this differs from the paper and its code: a corpus is read in one order in every epoch, where the authors shuffled
files; targets are drawn again whenever a sequence is read, not once with the data; half of the whole batch is reversed,
not half of each chip's.
"""

from ml_collections import ConfigDict

from bertjax.config.defaults import base_config, make_smoke
from bertjax.errors import require_one_of

SIZES = ("base", "large", "smoke")


def get_config(size: str = "base") -> ConfigDict:
    """The recipe of appendix A.4.1, with the README's lengths, for one of `SIZES`."""
    require_one_of("size", size, SIZES)
    config = base_config()
    config.model.preset = "xlnet-large" if size == "large" else "xlnet-base"
    config.model.bi_data = True  # memory and reuse stay 3/4 and 1/2 of a sequence: 384 and 256

    config.data.example_format = "segments"
    config.data.tokenizer = "unigram"
    config.data.tokenizer_family = "xlnet"
    config.data.lowercase = False
    config.data.vocab_size = 32000
    config.data.seq_len = 512

    config.objective.name = "plm"  # 85 of 512 tokens, K = 6
    config.objective.plm.max_ngram = 5

    config.train.num_steps = 500_000
    config.train.batch_size = 8192
    config.optimizer.learning_rate = 4e-4
    config.schedule.name = "linear"
    config.schedule.warmup_steps = config.train.get_ref("num_steps") * 8 // 100
    config.eval.batch_size = 64  # as many streams of held-out text
    if size == "smoke":
        make_smoke(config)
        config.model.activation_dropout = 0.0
        config.model.output_dropout = 0.0
        config.eval.batch_size = 32
    return config
