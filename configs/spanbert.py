"""SpanBERT: BERT cased that fills spans, also from their boundaries, in single blocks of text (arXiv:1907.10529).

    bertjax pretrain --config spanbert:base --workdir runs/spanbert --config.data.sources='text:corpus/*.txt'

Sizes: base large, and smoke (two layers, minutes on a CPU); base-sop and smoke-sop also learn the order of two segments
(sentence-order prediction, arXiv:1909.11942), which the authors do not.

Hardware and time: by the authors, 15 days on 32 V100 GPUs; not measured here. Result: by their README, SQuAD 1.1 F1
92.4 for base and 94.6 for large after 2.4M steps of about 256 sequences.

Where this differs: blocks are cut at any token, not between sentences, and sentences longer than a block are kept. The
two losses are means over their tokens; the authors' trainer divides the gradient by the number of masked tokens once
more, so that their clipping at norm 1 hardly ever acts.
"""

from ml_collections import ConfigDict

from bertjax.config.defaults import base_config, make_smoke
from bertjax.errors import require_one_of

SIZES = ("base", "large", "smoke", "base-sop", "smoke-sop")


def get_config(size: str = "base") -> ConfigDict:
    """The README's recipe (facebookresearch/SpanBERT) for one of `SIZES`; weight decay as in the paper."""
    require_one_of("size", size, SIZES)
    size, _, sentences = size.partition("-")
    config = base_config()
    config.model.preset = "spanbert-large" if size == "large" else "spanbert-base"

    config.data.example_format = "sop_pairs" if sentences else "block"
    config.data.tokenizer_family = "spanbert"
    config.data.lowercase = False
    config.data.vocab_size = 28996
    config.data.seq_len = 512
    config.objective.masking.mask_unit = "span"
    config.objective.masking.mask_rounding = "ceil"
    config.objective.masking.replacement_unit = "span"
    config.objective.masking.random_token_distribution = "unigram"
    config.objective.mlm.span_boundary_weight = 1.0
    config.model.span_positions = 15

    config.train.num_steps = 2_400_000
    config.train.batch_size = 256
    config.optimizer.eps = 1e-8
    config.optimizer.bias_correction = True
    config.optimizer.weight_decay = 0.1
    config.optimizer.decay_exclude = ()
    config.schedule.warmup_steps = config.train.get_ref("num_steps") // 240
    if size == "smoke":
        make_smoke(config)
    return config
