"""NeoBERT: 28 narrow layers with gated feed-forward blocks and RMS norms, read up to 4,096 tokens (arXiv:2502.19587).

    bertjax pretrain --config neobert:base --workdir runs/neo --config.data.sources='text:corpus/*.txt' \\
        --config.data.tokenizer=hub:chandar-lab/NeoBERT

Sizes: base (1M steps of 1,024 tokens), base-4096 (the 50,000 steps of 4,096 tokens after it; set `init_from` to what
the first run exported), and smoke (two layers, minutes on a CPU).

Hardware and time: not measured here.

Where this differs from the authors': the rate falls to a tenth over the whole run, theirs over nine tenths of it;
weights begin normal with the deviation of their uniform draw; the second phase begins with new moments at the rate
where the first one ended, and its sequences are those of `data.sources`, theirs mixed with longer documents.
"""

from ml_collections import ConfigDict

from bertjax.config.defaults import base_config, make_smoke
from bertjax.errors import require_one_of

SIZES = ("base", "base-4096", "smoke")
NEEDS_INIT_FROM = ("base-4096",)


def get_config(size: str = "base") -> ConfigDict:
    """The paper's section 3 and the authors' conf/{datacollator,scheduler} for one of `SIZES`."""
    require_one_of("size", size, SIZES)
    config = base_config()
    extended = size == "base-4096"
    config.model.preset = "neobert"

    config.data.example_format = "block"
    config.data.packing = "best_fit"
    config.data.seq_len = 4096 if extended else 1024
    config.objective.masking.mask_rate = 0.2
    config.objective.masking.mask_rounding = "bernoulli"
    config.objective.masking.mask_token_rate = 1.0
    config.objective.masking.random_token_rate = 0.0

    config.train.batch_size = 512 if extended else 2048  # 2M tokens
    config.train.num_steps = 50_000 if extended else 1_000_000
    config.optimizer.learning_rate = 6e-5 if extended else 6e-4
    config.optimizer.b2 = 0.95
    config.optimizer.eps = 1e-8
    config.optimizer.bias_correction = True
    config.optimizer.weight_decay = 0.1
    config.schedule.name = "constant" if extended else "cosine"
    config.schedule.warmup_steps = 0 if extended else config.train.get_ref("num_steps") // 500  # 2,000
    config.schedule.end_lr_ratio = None if extended else 0.1
    if size == "smoke":
        make_smoke(config)
    return config
