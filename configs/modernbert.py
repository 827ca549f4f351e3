"""ModernBERT: rotary positions, gated feed-forward blocks, two local layers after every global one (arXiv:2412.13663).

    bertjax pretrain --config modernbert:base --workdir runs/modern --config.data.sources='text:corpus/*.txt'

Sizes: base large (the authors' began as base: `init_from` and `init_growth=tile`), their extension to 8,192 tokens and
the decay that ends it in one run base-8192 large-8192 (set `init_from` to what the first run exported), all three
phases in one run base-whole large-whole (1.719T tokens in sequences of 1,024 with base 10,000 of the rotation, 250G in
8,192 with 160,000, 50G of decay), and smoke smoke-whole (four layers, minutes on a CPU).

Data: `--config modernbert:base-whole,sources` reads the sources of the phases from phase-1.txt, phase-2.txt and
phase-3.txt of a folder, one per line, such as `text:web/*.txt.zst@0.7`; the authors decayed on more of their better
text. Otherwise all phases read `data.sources`.

Hardware and time: not measured here. Result: by the paper, GLUE 88.4 (base) after 2T tokens.

Where this differs from the authors': StableAdamW slows down each matrix by itself, where theirs holds query, key and
value in one and both inner matrices of the feed-forward block in another; the extension starts with new moments and a
short warmup; the large model is not rolled back to a tenth of its rate for the last 800B tokens; long documents
continue in a new sequence, where theirs are cut off; sequences are packed from a million chunks of documents, theirs
from five batches per device; and held-out text is masked at 30 % as well (theirs at 15 %). `smoke` trains with AdamW.
"""

from ml_collections import ConfigDict

from bertjax.config.defaults import base_config, make_smoke, phase_text, set_phase_sources
from bertjax.errors import require_one_of

SIZES = ("base", "large", "base-8192", "large-8192", "base-whole", "large-whole", "smoke", "smoke-whole")
SECOND = {"model.global_rope_theta": 160_000}  # as the third: they differ in their sources
NEEDS_INIT_FROM = ("base-8192", "large-8192")


def get_config(argument: str = "base") -> ConfigDict:
    """The phases of AnswerDotAI/ModernBERT:yamls/modernbert for one of `SIZES`; after a comma, a folder of sources."""
    size, _, folder = argument.partition(",")
    require_one_of("size", size, SIZES)
    config = base_config()
    large, extended, whole = size.startswith("large"), size.endswith("8192"), size.endswith("whole")
    config.model.preset = "modernbert-large" if large else "modernbert-base"
    if not extended and not whole:
        config.model.global_rope_theta = 10_000.0  # 160,000 belongs to the extension
        config.model.max_position_embeddings = 1024

    config.data.example_format = "block"
    config.data.packing = "best_fit"
    config.data.tokenizer = "bpe"
    config.data.tokenizer_family = "modernbert"
    config.data.lowercase = False
    config.data.vocab_size = 50368
    config.data.seq_len = 8192 if extended else 1024
    config.objective.masking.mask_rate = 0.3
    config.objective.masking.mask_rounding = "bernoulli"
    config.objective.masking.allow_mask_special = True

    config.train.batch_size = (616 if large else 576) if extended else (4928 if large else 4608)
    if not extended:  # initial batch size, and the share of the run in which it grows (50G, large 10G tokens)
        config.train.initial_batch_size = 448 if large else 768
        config.train.batch_ramp_steps = config.train.get_ref("num_steps") // (86 if large else 18)
    tokens = 300e9 if extended else 1.719e12  # the extension with the 50G of its decay; the first phase
    config.train.num_steps = round(tokens / config.train.batch_size / config.data.seq_len / 100) * 100
    config.optimizer.learning_rate = (5e-5 if large else 3e-4) if extended else (5e-4 if large else 8e-4)
    config.optimizer.name = "stable_adamw"
    config.optimizer.b2 = 0.98
    config.optimizer.bias_correction = True
    config.optimizer.weight_decay = 1e-6 if large and extended else 1e-5  # times the share of the peak rate
    config.optimizer.clip_norm = 0.0  # StableAdamW needs no clipping
    config.schedule.name = "constant"
    if extended:
        config.schedule.name = "wsd"
        config.schedule.decay_steps = (config.train.get_ref("num_steps") + 5) // 6
        config.schedule.end_lr_ratio = 0.001
    # 3G (large: 2G) of the 1.719T tokens
    config.schedule.warmup_steps = config.train.get_ref("num_steps") // (860 if large else 573)
    if whole:
        _join(config, get_config(f"{'large' if large else 'base'}-8192"))
    if size.startswith("smoke"):
        make_smoke(config)
        config.model.num_layers = 4
        config.model.local_attention = 16
        config.model.attention_output_dropout = 0.0
        if whole:  # sequences eight times as long for the last fifth, at a lower rate
            config.data.seq_len = 256
            config.train.batch_size = 8
            config.optimizer.learning_rate = 7.5e-4
            first = {"data.seq_len": 32, "train.batch_size": 32, "optimizer.learning_rate": 2e-3}
            first["model.global_rope_theta"] = 10_000
            config.train.phases = (phase_text(0.8, first), phase_text(0.1, SECOND))
    set_phase_sources(config, folder)
    return config


def _join(config: ConfigDict, extension: ConfigDict) -> None:
    """Makes a config of the first 1.719T tokens the first phase of a run that ends as its extension does."""
    first, steps = config.train.num_steps, extension.train.num_steps
    phase = {
        "data.seq_len": config.data.seq_len,
        "train.batch_size": config.train.batch_size,
        "optimizer.learning_rate": config.optimizer.learning_rate,
        "optimizer.weight_decay": config.optimizer.weight_decay,
        "model.global_rope_theta": 10_000,
    }
    ramp, warmup = config.train.batch_ramp_steps, config.schedule.warmup_steps
    total, length = first + steps, config.train.get_ref("num_steps")
    config.train.num_steps = total
    config.train.batch_ramp_steps, config.schedule.warmup_steps = length * ramp // total, length * warmup // total
    config.train.phases = (phase_text(first / total, phase), phase_text(5 / 6 * steps / total, SECOND))
    config.data.seq_len, config.train.batch_size = extension.data.seq_len, extension.train.batch_size
    config.optimizer.learning_rate = extension.optimizer.learning_rate
    config.optimizer.weight_decay = extension.optimizer.weight_decay
    config.schedule.name, config.schedule.end_lr_ratio = extension.schedule.name, extension.schedule.end_lr_ratio
    config.schedule.decay_steps = (length * steps + 6 * total - 1) // (6 * total)
