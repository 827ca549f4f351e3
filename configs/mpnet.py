"""MPNet's architecture as a masked language model: RoBERTa with biases of distances (arXiv:2004.09297).

    bertjax pretrain --config mpnet:base --workdir runs/mpnet --config.data.sources='text:corpus/*.txt'

Sizes: base, and smoke (two layers, minutes on a CPU).

Hardware, time and result: not measured here.

Where this differs from microsoft/MPNet: masked words are predicted from the others alone (its `--input-mode mlm`), not
in permuted order with the positions of those to come. An export is MPNet for `transformers`.
"""

from ml_collections import ConfigDict

from bertjax.config.defaults import base_config, make_smoke
from bertjax.errors import require_one_of

SIZES = ("base", "smoke")


def get_config(size: str = "base") -> ConfigDict:
    """The README's command (microsoft/MPNet), steps and batch of the paper, for one of `SIZES`."""
    require_one_of("size", size, SIZES)
    config = base_config()
    config.model.preset = "mpnet-base"

    config.data.example_format = "full_sentences"
    config.data.tokenizer_family = "mpnet"
    config.data.vocab_size = 30527
    config.data.seq_len = 512
    config.objective.masking.mask_unit = "whole_word"

    config.train.num_steps = 500_000
    config.train.batch_size = 8192
    config.optimizer.learning_rate = 5e-4
    config.optimizer.b2 = 0.98
    config.optimizer.bias_correction = True
    config.optimizer.clip_norm = 0.0
    config.optimizer.decay_exclude = ()  # as in fairseq
    config.schedule.name = "linear"
    config.schedule.warmup_steps = config.train.get_ref("num_steps") * 8 // 100
    if size == "smoke":
        make_smoke(config)
    return config
