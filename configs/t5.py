"""T5: an encoder and a decoder that return the dropped spans of a text (arXiv:1910.10683, section 3.1.4).

    bertjax pretrain --config t5:small --workdir runs/t5 --config.data.sources='text:corpus/*.txt'

Sizes: small base large of v1.0, v1.1-base v1.1-large, and smoke (two layers each, minutes on a CPU); others with
`--config.model.preset=t5-3b`. An export is a `T5ForConditionalGeneration`. Of the 569 tokens of a sequence span
corruption leaves 512, and the target has 114.

Hardware and time: not measured here. Result: by its authors, an average of 83.28 on GLUE for the baseline (table 1).

Where this differs: sequences are parts of single documents that [CLS] opens; weights are drawn alike in all matrices;
AdamW and its rate instead of Adafactor with a rate of 0.01 relative to the size of the weights.
"""

from ml_collections import ConfigDict

from bertjax.config.defaults import base_config, make_smoke
from bertjax.errors import require_one_of

SIZES = ("small", "base", "large", "v1.1-base", "v1.1-large", "smoke")


def get_config(size: str = "small") -> ConfigDict:
    """One of `SIZES`, 128 sequences, the baseline's number of steps."""
    require_one_of("size", size, SIZES)
    config = base_config()
    config.model.preset = "t5-small" if size == "smoke" else f"t5-{size}"
    config.decoder.start_token = "pad"
    config.objective.name = "span_corruption"

    config.data.example_format = "block"
    config.data.tokenizer = "unigram"
    config.data.tokenizer_family = "albert"
    config.data.lowercase = False
    config.data.vocab_size = 32_000
    config.data.seq_len = 569

    config.train.num_steps = 524_288
    config.train.batch_size = 128
    config.optimizer.learning_rate = 1e-3
    config.optimizer.bias_correction = True
    config.optimizer.weight_decay = 0.0
    config.schedule.name = "inverse_sqrt"
    config.schedule.warmup_steps = (config.train.get_ref("num_steps") + 51) // 52
    if size.startswith("v1.1"):  # pretrained without dropout
        for rate in ("hidden_dropout", "attention_dropout", "activation_dropout", "output_dropout"):
            config.model[rate] = 0.0
    if size == "smoke":
        make_smoke(config)
        config.model.head_size = 32
        config.model.activation_dropout = config.model.output_dropout = 0.0
        config.objective.span_corruption.num_sentinels = 16
    return config
