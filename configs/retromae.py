"""RetroMAE: a trained encoder learns to hold a text in its first token, from which one layer rebuilds it.

    bertjax pretrain --config retromae:base --workdir runs/retromae --config.init_from=bert-base-uncased/ \\
        --config.data.tokenizer=bert-base-uncased/ --config.data.sources='text:corpus/*.txt'
    bertjax export --workdir runs/retromae --out embedder/ --sentence-transformers --pooling cls

Sizes: base of BERT (arXiv:2205.12035, section 4.1), and smoke, which goes on from the run of `bert:smoke` (a minute on
a CPU):

    bertjax pretrain --config retromae:smoke --workdir runs/retromae --config.init_from=runs/bert \\
        --config.data.tokenizer=runs/bert/tokenizer

Hardware and time: not measured here. Result: by its authors, nDCG@10 of 45.2 on average over BEIR, after training on MS
MARCO.

Where this differs: the decoder masks tokens, the authors' code whole words; one epoch's number of steps is a guess.
"""

from ml_collections import ConfigDict

from bertjax.config.defaults import base_config, make_smoke
from bertjax.errors import require_one_of

SIZES = ("base", "smoke")
NEEDS_INIT_FROM = SIZES


def get_config(size: str = "base") -> ConfigDict:
    """The authors' rates of masking, 30 % of whole words and 50 %, for one of `SIZES`."""
    require_one_of("size", size, SIZES)
    config = base_config()
    config.model.preset = "bert-base"
    config.model.hidden_act = "gelu"
    config.objective.name = "retromae"
    config.objective.masking.mask_rate = 0.3
    config.objective.masking.mask_unit = "whole_word"

    config.data.example_format = "block"
    config.data.seq_len = 512

    config.train.num_steps = 200_000
    config.train.batch_size = 256
    config.optimizer.learning_rate = 1e-4
    config.optimizer.eps = 1e-8
    config.optimizer.bias_correction = True
    config.schedule.name = "linear"
    if size == "smoke":
        make_smoke(config)
        config.model.num_layers = 3
        config.model.hidden_act = "preset"
        config.train.num_steps = 300
        config.optimizer.learning_rate = 1e-4
    return config
