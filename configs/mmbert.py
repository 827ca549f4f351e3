"""mmBERT: 60, 110, then 1,833 languages, with ever fewer masks and ever more equal shares (arXiv:2509.06888).

    bertjax pretrain --config mmbert:base,languages --workdir runs/mmbert

Sizes: small base, and smoke (four layers, minutes on a CPU).

Data: a folder after the size (languages above) has the files phase-1.txt, phase-2.txt and phase-3.txt, with a line per
language: a source such as `text:fineweb2/deu_Latn/*.txt.zst`. Shares are size ** 0.7, then 0.5, then 0.3; a language of
several phases continues where it stopped, as long as sequences have one length. Without a folder all phases read
`data.sources`. The vocabulary is Gemma 2's, so set `data.tokenizer=hub:google/gemma-2-9b`; by default one of its size
is trained on the text of all phases. Set `data.eval_sources` to a few languages: otherwise documents of every language
are held out, and every evaluation reads them.

Phases: 2.3T tokens in sequences of 1,024 at mask rate 0.3; 600G in 8,192 at 0.15, with base 160,000 of all rotations;
100G at 0.05, in which the learning rate falls by 1 - sqrt. The small model has half the rate after the first.

Hardware and time: not measured here. Result: by the authors, XTREME and GLUE above XLM-R (base).

Where this differs from the authors' (JHU-CLSP/mmBERT:configs): as `modernbert` says; their file of the first phase has
mask rate 0.25, the paper 0.3; they decay three times, in English, 110 and 1,833 languages, and merge the weights;
English and code are sources like others here. `smoke` trains with AdamW.
"""

from ml_collections import ConfigDict

from bertjax.config.defaults import base_config, make_smoke, phase_text, set_phase_sources
from bertjax.errors import require_one_of

SIZES = ("small", "base", "smoke")
TOKENS = (2300, 600, 100)  # G, by phase
FIRST = {
    "optimizer.learning_rate": 8e-4,
    "optimizer.weight_decay": 8e-5,  # times the share of the peak rate
    "data.seq_len": 1024,
    "data.mixture_alpha": 0.7,
    "objective.masking.mask_rate": 0.3,
    "model.global_rope_theta": 10_000,
    "model.local_rope_theta": 10_000,
}
SECOND = {"data.mixture_alpha": 0.5, "objective.masking.mask_rate": 0.15}


def get_config(argument: str = "base") -> ConfigDict:
    """The three phases of one of `SIZES`; after a comma, the folder of their sources."""
    size, _, folder = argument.partition(",")
    require_one_of("size", size, SIZES)
    config = base_config()
    config.model.preset = "mmbert-base" if size == "base" else "mmbert-small"
    config.data.example_format = "block"
    config.data.packing = "best_fit"
    config.data.tokenizer = "bpe"
    config.data.tokenizer_family = "modernbert"
    config.data.lowercase = False
    config.data.vocab_size = 256_000
    config.data.seq_len = 8192
    config.data.mixture_alpha = 0.3
    config.objective.masking.mask_rate = 0.05
    config.objective.masking.mask_rounding = "bernoulli"
    config.objective.masking.allow_mask_special = True

    config.train.batch_size = 4608
    steps = [tokens * 1e9 / 4608 / length for tokens, length in zip(TOKENS, (1024, 8192, 8192), strict=True)]
    total = config.train.num_steps = round(sum(steps) / 100) * 100
    length = config.train.get_ref("num_steps")
    config.train.phases = (phase_text(steps[0] / total, FIRST), phase_text(steps[1] / total, SECOND))
    warmup, ramp = (4, 100) if size == "small" else (3, 60)  # G tokens of the first phase
    config.train.initial_batch_size = 384
    config.train.batch_ramp_steps = length * round(ramp / TOKENS[0] * steps[0]) // total
    config.optimizer.name = "stable_adamw"
    config.optimizer.learning_rate = 4e-4 if size == "small" else 8e-4
    config.optimizer.b2 = 0.95
    config.optimizer.eps = 1e-8
    config.optimizer.bias_correction = True
    config.optimizer.weight_decay = 4e-5 if size == "small" else 8e-5
    config.optimizer.clip_norm = 0.0  # StableAdamW needs no clipping
    config.schedule.name = "wsd"
    config.schedule.warmup_steps = length * round(warmup / TOKENS[0] * steps[0]) // total
    config.schedule.decay_steps = (length * round(steps[2]) + total - 1) // total
    config.schedule.end_lr_ratio = 0.04 if size == "small" else 0.02
    if size == "smoke":
        make_smoke(config)
        config.model.num_layers = 4
        config.model.local_attention = 16
        config.model.attention_output_dropout = 0.0
        config.data.seq_len = 256
        config.train.batch_size = 8
        smaller = {"data.seq_len": 64, "train.batch_size": 32, "optimizer.weight_decay": config.optimizer.weight_decay}
        first = FIRST | smaller | {"optimizer.learning_rate": config.optimizer.learning_rate}
        config.train.phases = (phase_text(0.7, first), phase_text(0.2, SECOND))
        config.schedule.name = "wsd"
    set_phase_sources(config, folder)
    return config
