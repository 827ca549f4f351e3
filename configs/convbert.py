"""ConvBERT: ELECTRA's two networks, in whose heads a convolution takes half of the width (arXiv:2008.02496).

    bertjax pretrain --config convbert:small --workdir runs/convbert --config.data.sources='text:corpus/*.txt'

Sizes: small medium-small base, and smoke (two layers, minutes on a CPU). Generator and discriminator both have the
convolution, as by the authors. The discriminator is exported; `bertjax export --network generator` writes the other
one.

Hardware and time: not measured here. Result: by the abstract of the paper, GLUE 86.4 (base).

Where this differs: as `electra` says.
"""

from ml_collections import ConfigDict

from bertjax.config.defaults import base_config, make_smoke
from bertjax.errors import require_one_of

SIZES = ("small", "medium-small", "base", "smoke")
RATES = {"medium-small": 5e-4, "base": 2e-4}


def get_config(size: str = "small") -> ConfigDict:
    """The recipe of yitu-opensource/ConvBert:configure_pretraining.py for one of `SIZES`."""
    require_one_of("size", size, SIZES)
    config = base_config()
    config.model.preset = "convbert-small" if size == "smoke" else f"convbert-{size}"
    config.generator.width_ratio = 1 / 3 if size == "base" else 0.25

    config.data.example_format = "block"
    config.data.tokenizer_family = "electra"
    config.data.vocab_size = 30522
    config.data.seq_len = 128
    config.objective.name = "rtd"
    config.objective.masking.mask_rate = 0.15
    config.objective.masking.mask_token_rate = 0.85  # the other 15 % stay as they are; nothing is replaced at random
    config.objective.masking.random_token_rate = 0.0
    config.objective.masking.with_replacement = True
    config.objective.rtd.average_repeats = True  # as of ELECTRA, whose code it is

    config.train.num_steps = 1_000_000
    config.train.batch_size = 256 if size == "base" else 128
    config.optimizer.learning_rate = RATES.get(size, 3e-4)
    config.schedule.name = "electra"
    config.schedule.warmup_steps = config.train.get_ref("num_steps") // 100
    if size == "smoke":
        make_smoke(config)
        config.model.embedding_size = 64
    return config
