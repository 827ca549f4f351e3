"""BART: an encoder and a decoder that rebuild a text with masked spans and permuted sentences (arXiv:1910.13461).

    bertjax pretrain --config bart:base --workdir runs/bart --config.data.sources='text:corpus/*.txt'

Sizes: base large, and smoke (two layers each, minutes on a CPU). An export is a `BartForConditionalGeneration`.

Hardware and time: not measured here. Result: by its authors, an F1 of 94.6 on SQuAD 1.1 (large).

Where this differs: sequences are parts of single documents; the learning rate and its schedule were not published,
those of RoBERTa are used here.
"""

from ml_collections import ConfigDict

from bertjax.config.defaults import base_config, make_smoke
from bertjax.errors import require_one_of

SIZES = ("base", "large", "smoke")


def get_config(size: str = "base") -> ConfigDict:
    """One of `SIZES`, 8,000 sequences of 512 tokens (section 5.1)."""
    require_one_of("size", size, SIZES)
    config = base_config()
    config.model.preset = "bart-large" if size == "large" else "bart-base"
    config.decoder.start_token = "sep"
    config.objective.name = "infilling"

    config.data.example_format = "block"
    config.data.tokenizer = "bpe"
    config.data.tokenizer_family = "roberta"
    config.data.lowercase = False
    config.data.vocab_size = 50_265
    config.data.seq_len = 512

    config.train.num_steps = 500_000
    config.train.batch_size = 8_000
    config.optimizer.learning_rate = 4e-4 if size == "large" else 6e-4
    config.optimizer.b2 = 0.98
    config.optimizer.bias_correction = True
    config.schedule.name = "linear"
    config.schedule.warmup_steps = config.train.get_ref("num_steps") * 48 // 1000
    if size == "smoke":
        make_smoke(config)
        config.model.max_position_embeddings = config.data.get_ref("seq_len")
    return config
