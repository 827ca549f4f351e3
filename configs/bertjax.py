"""The recipe of this project: rotary positions, norms before blocks, gated blocks, Muon, plain masked tokens.

    bertjax pretrain --config bertjax --minutes 60 --workdir runs/mine --config.data.sources='text:corpus/*.txt'

Sizes: nano micro mini small base, and smoke (minutes on a CPU). With `--minutes` and no size, the size and the number
of steps are those of `bertjax plan`. It works for any language: bytes that are not in the vocabulary are tokens of
their own. The export is a plain ModernBERT (all layers global) of transformers.

Evidence, nats of held-out masked tokens below the unigram loss after 6.6M tokens of English Wikipedia (nano,
docs/results.md): published BERT of this size 0.54; rotary positions, norms before blocks and gated blocks with AdamW in
batches of 64 at the peak rate 8e-3 1.37, at 2e-3 2.00, at 4e-3 2.31; in batches of 32 at 2.8e-3 2.58; Muon for the
matrices of the layers at 2.8e-3 2.69, at 8e-3 2.97. The rates of the other sizes are not measured: they fall with the
root of the width, as the spectral norm of a step of Muon grows. In micro 276 steps of warmup instead of 56 gain 0.50
after 920 steps; a rate that falls from its peak instead of from BERT's line, 0.20 after 400 steps of micro and 0.03
after 1,102 of nano. A causal start gains 0.18 with AdamW, but is not part of the recipe.

Hardware and time: `bertjax plan` measures it. Result: docs/results.md.
"""

from ml_collections import ConfigDict

from bertjax.config.defaults import base_config, every, make_smoke
from bertjax.errors import require_one_of

SIZES = ("nano", "micro", "mini", "small", "base", "smoke")
# layers, width, heads, width of the gated block, vocabulary, peak rate
SHAPES = {
    "nano": (6, 96, 3, 256, 4096, 8e-3),
    "micro": (6, 160, 5, 512, 8192, 6e-3),
    "mini": (8, 256, 4, 1024, 8192, 5e-3),
    "small": (12, 384, 6, 1280, 16384, 4e-3),
    "base": (12, 768, 12, 2560, 16384, 3e-3),
}


def get_config(size: str = "micro") -> ConfigDict:
    """The recipe for one of `SIZES`."""
    require_one_of("size", size, SIZES)
    config = base_config()
    layers, width, heads, inner, vocabulary, rate = SHAPES["nano" if size == "smoke" else size]
    config.model.preset = "modernbert-base"
    config.model.num_layers = layers
    config.model.hidden_size = width
    config.model.num_heads = heads
    config.model.intermediate_size = inner
    config.model.global_attn_every_n_layers = 1
    config.model.local_attention = 0
    config.model.global_rope_theta = 10_000.0
    config.model.initializer_range = (2 / 5 / width) ** 0.5
    config.model.attention_output_dropout = 0.0

    config.data.example_format = "block"
    config.data.tokenizer = "bpe"
    config.data.tokenizer_family = "modernbert"
    config.data.lowercase = False
    config.data.vocab_size = vocabulary
    config.data.seq_len = 128
    config.model.max_position_embeddings = config.data.get_ref("seq_len")
    config.objective.masking.mask_rate = 0.3

    config.train.num_steps = 10_000
    config.train.batch_size = 32  # `plan` takes 16 for short runs, more for long ones; the rate grows by the root
    config.optimizer.name = "muon"
    config.optimizer.learning_rate = rate
    config.optimizer.b2 = 0.98
    config.optimizer.eps = 1e-8
    config.optimizer.bias_correction = True
    config.optimizer.weight_decay = 0.1
    config.schedule.name = "linear"  # BERT's drops by the share of the warmup when it ends: a half in short runs
    steps = config.train.get_ref("num_steps")
    config.schedule.warmup_steps = (steps + 19) // 20 + 200 * steps // (steps + 200)
    config.eval.interval_steps = every(config, 20)
    config.eval.num_batches = 16
    if size == "smoke":
        make_smoke(config)
    return config
