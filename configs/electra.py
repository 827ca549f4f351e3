"""ELECTRA's encoders: discriminators and generators, as masked language models (arXiv:2003.10555).

    bertjax pretrain --config configs/electra.py:small --workdir runs/electra --config.data.sources='text:corpus/*.txt'

Sizes: small base large, their generators small-generator (a quarter as wide, as in the paper), small-generator-released
base-generator large-generator, and tiny (two layers, minutes on a CPU).

Hardware and time: not measured here. Result: by the README of google-research/electra, GLUE dev MNLI 81.3 (small), 88.8
(base), 90.9 (large), as discriminators.

Where this differs from the paper: every size is trained to fill masks, as its generators are; the discriminators' loss
(replaced token detection) is not trained. Their heads can be held, saved and loaded. A token that is drawn twice gets
one decision between [MASK] and itself, not two.
"""

from ml_collections import ConfigDict

from bertjax.base_config import base_config, make_tiny
from bertjax.types import UserError

GENERATORS = ("small-generator", "small-generator-released", "base-generator", "large-generator")
SIZES = ("small", "base", "large", *GENERATORS, "tiny")


def get_config(size: str = "small") -> ConfigDict:
    """The recipe of google-research/electra:configure_pretraining.py for one of `SIZES`."""
    if size not in SIZES:
        raise UserError(f"unknown size {size!r}; there are {', '.join(SIZES)}")
    config = base_config()
    config.model.preset = "electra-small" if size == "tiny" else f"electra-{size}"
    small, large = size.startswith(("small", "tiny")), size.startswith("large")

    config.data.form = "block"
    config.data.tokenizer_family = "electra"
    config.data.vocab_size = 30522
    config.data.seq_len = 128 if small else 512
    config.objective.pair = "none"
    config.objective.mask_rate = 0.25 if large else 0.15
    config.objective.mask_token_rate = 0.85  # the other 15 % stay as they are; nothing is replaced at random
    config.objective.random_token_rate = 0.0
    config.objective.mask_with_replacement = True

    config.train.num_steps = 1_000_000 if small else 400_000 if large else 766_000
    config.train.batch_size = 128 if small else 2048 if large else 256
    config.optimizer.learning_rate = 5e-4 if small else 2e-4
    config.schedule.name = "electra"
    config.schedule.warmup_steps = config.train.get_ref("num_steps") * 10 // (1000 if small else 400 if large else 766)
    if size == "tiny":
        make_tiny(config)
        config.model.embedding_size = 64
    return config
