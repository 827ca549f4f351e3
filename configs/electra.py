"""ELECTRA: a generator fills masks, and the model finds the tokens that it got wrong (arXiv:2003.10555).

    bertjax pretrain --config electra:small --workdir runs/electra --config.data.sources='text:corpus/*.txt'

Sizes: small base large, and smoke (two layers, minutes on a CPU); base-sop and smoke-sop also learn the order of two
segments (sentence-order prediction, arXiv:1909.11942), which the authors do not. With
`--config.objective.name=mlm` the same encoder learns to fill masks. The discriminator is exported; `bertjax export
--network generator` writes the other one.

Hardware and time: not measured here. Result: by the README of google-research/electra, GLUE dev MNLI 78.9 (small, this
recipe on OpenWebText), 81.3 (small, four times as long and with `--config.generator.width_ratio=1`), 88.8 (base), 90.9
(large), the last two trained longer than here, too.

Where this differs: sequences are one segment, where the authors split most of them into two; a token that is
drawn twice gets one decision between [MASK] and itself, not two; the score's weights are drawn like all others.
"""

from ml_collections import ConfigDict

from bertjax.config.defaults import base_config, make_smoke
from bertjax.errors import require_one_of

SIZES = ("small", "base", "large", "smoke", "base-sop", "smoke-sop")


def get_config(size: str = "small") -> ConfigDict:
    """The recipe of google-research/electra:configure_pretraining.py for one of `SIZES`."""
    require_one_of("size", size, SIZES)
    size, _, sentences = size.partition("-")
    config = base_config()
    config.model.preset = "electra-small" if size == "smoke" else f"electra-{size}"
    # As deep as the discriminator. Paper, table 6; base: issue 39 of the repository.
    config.generator.width_ratio = 1 / 3 if size == "base" else 0.25
    small, large = size in ("small", "smoke"), size == "large"

    config.data.example_format = "sop_pairs" if sentences else "block"
    config.data.tokenizer_family = "electra"
    config.data.vocab_size = 30522
    config.data.seq_len = 128 if small else 512
    config.objective.name = "rtd"
    config.objective.masking.mask_rate = 0.25 if large else 0.15
    config.objective.masking.mask_token_rate = 0.85  # the other 15 % stay as they are; nothing is replaced at random
    config.objective.masking.random_token_rate = 0.0
    config.objective.masking.with_replacement = True
    config.objective.rtd.average_repeats = True  # run_pretraining.py, scatter_update; repository's issue 41

    config.train.num_steps = 1_000_000 if small else 400_000 if large else 766_000
    config.train.batch_size = 128 if small else 2048 if large else 256
    config.optimizer.learning_rate = 5e-4 if small else 2e-4
    config.schedule.name = "electra"
    config.schedule.warmup_steps = config.train.get_ref("num_steps") * 10 // (1000 if small else 400 if large else 766)
    if size == "smoke":
        make_smoke(config)
        config.model.embedding_size = 64
    return config
