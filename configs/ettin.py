"""Ettin, pairs of an encoder and its causal twin (arXiv:2507.11412).

    bertjax pretrain --config ettin:encoder-150m --workdir runs/e --config.data.sources='text:corpus/*.txt'

Sizes: encoder-17m -32m -68m -150m -400m -1b, decoder-17m to decoder-1b (the same with a causal mask, trained on the
next token), and smoke smoke-decoder (four layers, minutes on a CPU). All are ModernBERT's network and recipe: the
first phase, of 1,024 tokens; `modernbert` shows the extension and the decay after it.

Hardware and time: by the authors, 141 hours (17m) to 2,170 hours (1b) of four H100 for all phases of Ettin; not
measured here. Result: by the authors, GLUE 88.9 (encoder-150m).

Where this differs from the authors': as `modernbert` says; Ettin's sequences were not packed, here they are.
`smoke` trains with AdamW.
"""

from ml_collections import ConfigDict

from bertjax.config.defaults import base_config, make_smoke
from bertjax.errors import require_one_of

# JHU-CLSP/ettin-encoder-vs-decoder:pretraining/configs/standard: peak learning rate, weight decay, warmup and batch
# ramp in G tokens, first batch (microbatches of the authors' four devices).
RECIPES = {
    "17m": (3e-3, 3e-4, 4, 125, 576),
    "32m": (3e-3, 3e-4, 4, 100, 512),
    "68m": (3e-3, 3e-4, 3, 75, 384),
    "150m": (8e-4, 1e-5, 3, 50, 288),
    "400m": (5e-4, 1e-5, 2, 10, 192),
    "1b": (5e-4, 5e-5, 2, 3, 144),  # theirs 96: every size of a batch is compiled
}
TOKENS = 1700  # G
SIZES = (*(f"{kind}-{size}" for kind in ("encoder", "decoder") for size in RECIPES), "smoke", "smoke-decoder")


def get_config(size: str = "encoder-150m") -> ConfigDict:
    """The first phase of one of `SIZES`."""
    require_one_of("size", size, SIZES)
    full = {"smoke": "encoder-17m", "smoke-decoder": "decoder-17m"}.get(size, size)
    rate, decay, warmup, ramp, first_batch = RECIPES[full.split("-")[1]]
    config = base_config()
    config.model.preset = f"ettin-{full}"
    config.model.global_rope_theta = config.model.local_rope_theta = 10_000.0  # 160,000 belongs to the extension
    config.model.max_position_embeddings = 1024

    config.data.example_format = "block"
    config.data.packing = "best_fit"
    config.data.tokenizer = "bpe"
    config.data.tokenizer_family = "modernbert"
    config.data.lowercase = False
    config.data.vocab_size = 50368
    config.data.seq_len = 1024
    if full.startswith("decoder"):
        config.objective.name = "clm"
    else:
        config.objective.masking.mask_rate = 0.3
        config.objective.masking.mask_rounding = "bernoulli"
        config.objective.masking.allow_mask_special = True

    config.train.batch_size = 4608
    config.train.num_steps = round(TOKENS * 1e9 / 4608 / 1024 / 100) * 100
    config.train.initial_batch_size = first_batch
    config.train.batch_ramp_steps = config.train.get_ref("num_steps") * ramp // TOKENS
    config.optimizer.name = "stable_adamw"
    config.optimizer.learning_rate = rate
    config.optimizer.b2 = 0.98
    config.optimizer.bias_correction = True
    config.optimizer.weight_decay = decay  # times the share of the peak rate
    config.optimizer.clip_norm = 0.0  # StableAdamW needs no clipping
    config.schedule.name = "constant"
    config.schedule.warmup_steps = config.train.get_ref("num_steps") * warmup // TOKENS
    if size.startswith("smoke"):
        make_smoke(config)
        config.model.num_layers = 4
        config.model.local_attention = 16
        config.model.attention_output_dropout = 0.0
    return config
