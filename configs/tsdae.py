"""TSDAE: a trained encoder learns vectors from which a decoder can rebuild a sentence (arXiv:2104.06979).

    bertjax pretrain --config tsdae:base --workdir runs/tsdae --config.init_from=bert-base-uncased/ \\
        --config.data.tokenizer=bert-base-uncased/ --config.data.sources=lines:sentences.txt
    bertjax export --workdir runs/tsdae --out embedder/ --sentence-transformers --pooling cls

Sizes: base of BERT, and smoke, which goes on from the run of `bert:smoke` (a minute on a CPU):

    bertjax pretrain --config tsdae:smoke --workdir runs/tsdae --config.init_from=runs/bert \\
        --config.data.tokenizer=runs/bert/tokenizer

`lines:` reads every line as one text. The decoder has the encoder's weights, and starts with its masked-token head.

Hardware and time: not measured here. Result: by its authors, up to 93.1 % of what training on labeled pairs achieves.

No difference is known.
"""

from ml_collections import ConfigDict

from bertjax.config.defaults import base_config, make_smoke
from bertjax.errors import require_one_of

SIZES = ("base", "smoke")
NEEDS_INIT_FROM = SIZES


def get_config(size: str = "base") -> ConfigDict:
    """The authors' optimizer: a constant rate (appendix; sentence-transformers: examples, TSDAE) for one of `SIZES`."""
    require_one_of("size", size, SIZES)
    config = base_config()
    config.model.preset = "bert-base"
    config.model.hidden_act = "gelu"
    config.decoder.sharing = "all"
    config.objective.name = "tsdae"

    config.data.example_format = "block"
    config.data.seq_len = 64

    config.train.num_steps = 100_000
    config.train.batch_size = 8
    config.optimizer.learning_rate = 3e-5
    config.optimizer.eps = 1e-6
    config.optimizer.bias_correction = True
    config.optimizer.weight_decay = 0.0
    config.schedule.name = "constant"
    config.schedule.warmup_steps = 0
    if size == "smoke":
        make_smoke(config)
        config.model.num_layers = 3
        config.model.hidden_act = "preset"
        config.train.num_steps = 300
        config.optimizer.learning_rate = 1e-4
    return config
