"""GPT-BERT: every sequence is read either in both directions, masked, or from left to right (arXiv:2410.24159).

    bertjax pretrain --config gpt_bert:base --workdir runs/gptbert --config.data.sources='text:corpus/*.txt'

Sizes: base (for 100M words) and small (for 10M), and smoke (two layers, minutes on a CPU). 15 of 16 sequences are
masked, one is causal; both predict from the previous token. The export is the bidirectional encoder.

Hardware and time: not measured here. Result: by its authors, BLiMP 86.1 (base) and 81.2 (small).

Where this differs from the authors' code (ltgoslo/gpt-bert:pretraining/train_multi_gpu.py): all norms have parameters,
theirs only that of the distances; weights are drawn alike in all layers; spans are of one to three words, not tokens,
and do not prefer what was masked least so far; z-loss is missing, as is the cool-down at the very end; batches grow in
seven steps, not every epoch.
"""

from ml_collections import ConfigDict

from bertjax.config.defaults import base_config, make_smoke
from bertjax.errors import require_one_of

SIZES = ("base", "small", "smoke")

# The tokens of a batch grow in a straight line from a quarter to 4.2M; sequences have 128 tokens until 70 % of the run,
# 256 until 90 %, 512 in the rest, which the config itself describes.
PHASES = (
    "14%:data.seq_len=128,train.batch_size=10240",
    "14%:data.seq_len=128,train.batch_size=13312",
    "14%:data.seq_len=128,train.batch_size=16896",
    "14%:data.seq_len=128,train.batch_size=20224",
    "14%:data.seq_len=128,train.batch_size=23552",
    "20%:data.seq_len=256,train.batch_size=13824",
)


def get_config(size: str = "base") -> ConfigDict:
    """The authors' recipe for one of `SIZES`."""
    require_one_of("size", size, SIZES)
    config = base_config()
    small = size != "base"
    config.model.preset = "gpt-bert-small" if small else "gpt-bert-base"

    config.data.example_format = "block"
    config.data.tokenizer = "bpe"
    config.data.tokenizer_family = "roberta"
    config.data.lowercase = False
    config.data.vocab_size = 8192 if small else 16384
    config.data.seq_len = 512
    config.objective.name = "mixture"
    config.objective.mixture.members = ("mlm@15", "clm@1")
    config.objective.mlm.masked_next_token = True
    config.objective.masking.mask_unit = "span"
    config.objective.masking.max_span = 3
    config.objective.masking.span_geometric_p = 1e-6  # one, two and three words are equally likely
    config.objective.masking.mask_rounding = "random"
    config.objective.masking.replacement_unit = "span"
    config.objective.masking.mask_rate = 0.3
    config.objective.masking.mask_rate_final = 0.15

    config.train.num_steps = 7_812 if small else 15_625
    config.train.batch_size = 7936
    config.train.phases = PHASES
    config.optimizer.name = "lamb"
    config.optimizer.learning_rate = 1e-2
    config.optimizer.b2 = 0.98
    config.optimizer.eps = 1e-8
    config.optimizer.bias_correction = True
    config.optimizer.weight_decay = 0.1
    config.optimizer.clip_norm = 2.0
    config.optimizer.ema_decay = 0.999
    config.schedule.name = "cosine"
    config.schedule.end_lr_ratio = 0.1
    config.schedule.warmup_steps = config.train.get_ref("num_steps") * 16 // 1000
    if size == "smoke":
        make_smoke(config)
        config.optimizer.weight_decay = 0.01
        config.optimizer.ema_decay = None
        config.model.max_relative_positions = 64
    return config
