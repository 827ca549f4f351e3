"""NomicBERT: BERT with rotary positions, gated blocks and long sequences, a base for embeddings (arXiv:2402.01613).

    bertjax pretrain --config nomic_bert:2048 --workdir runs/nomic --config.data.sources='text:corpus/*.txt'

Sizes: 2048 (its length in tokens), and smoke (two layers, minutes on a CPU).

Hardware and time: not measured here. Result: by the model card, GLUE 84.

Where this differs from nomic-ai/contrastors: sequences are blocks of one document each, packed, where theirs join
documents; held-out text is masked at 30 % as well (theirs at 15 %).
"""

from ml_collections import ConfigDict

from bertjax.config.defaults import base_config, make_smoke
from bertjax.errors import require_one_of

SIZES = ("2048", "smoke")


def get_config(size: str = "2048") -> ConfigDict:
    """The settings of contrastors:src/contrastors/configs/train/mlm.yaml at 2,048 tokens, for one of `SIZES`."""
    require_one_of("size", size, SIZES)
    config = base_config()
    config.model.preset = "nomic-bert-2048"

    config.data.example_format = "block"
    config.data.packing = "best_fit"
    config.data.vocab_size = 30528
    config.data.seq_len = 2048
    config.objective.masking.mask_rate = 0.3
    config.objective.masking.mask_rounding = "bernoulli"

    config.train.num_steps = 100_000
    config.train.batch_size = 4096
    config.optimizer.learning_rate = 5e-4
    config.optimizer.b2 = 0.98
    config.optimizer.weight_decay = 1e-5
    config.optimizer.bias_correction = True
    config.optimizer.clip_norm = 0.0
    config.schedule.name = "linear"
    config.schedule.warmup_steps = config.train.get_ref("num_steps") * 6 // 100
    if size == "smoke":
        make_smoke(config)
    return config
