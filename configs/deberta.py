"""DeBERTa v1, v2 and v3: disentangled attention, and a decoder that adds positions late (arXiv:2006.03654, 2111.09543).

    bertjax pretrain --config deberta:v3-base --workdir runs/v3 --config.data.sources='text:corpus/*.txt'

Sizes: v1-base v1-large v1-xlarge, v2-xlarge v2-xxlarge (with the convolution), v3-xsmall v3-small v3-base v3-large, and
smoke smoke-v1 smoke-v2 (two layers, minutes on a CPU); v1-base-sop v2-xlarge-sop v3-base-sop smoke-sop also learn the
order of two segments (sentence-order prediction, arXiv:1909.11942), which the authors do not.

Hardware and time: not measured here. Result: by the README of microsoft/DeBERTa, MNLI 88.8 (v1 base), 91.7 (v2 xlarge),
90.6 (v3 base).

As in the released code, v1 and v2 mask up to three consecutive words, v3 single tokens, always with [MASK]. v3 learns
to find the tokens that a generator of half the depth replaced; the discriminator is exported, as in the published
models (`bertjax export --network generator` writes the other one). The weight of its loss is 10 as in the code (50 in
reports of the paper): the networks share no weight that both train, so Adam makes the factor almost irrelevant.

Where this differs: sequences do not cross documents. v3's networks train in one step and are clipped together; the
released code trains the generator first, so its tables are one step newer when the discriminator reads them.
"""

from ml_collections import ConfigDict

from bertjax.config.defaults import base_config, make_smoke
from bertjax.errors import require_one_of

PRESETS = {
    **{f"v1-{size}": f"deberta-{size}" for size in ("base", "large", "xlarge")},
    **{f"v2-{size}": f"deberta-v2-{size}" for size in ("xlarge", "xxlarge")},
    **{f"v3-{size}": f"deberta-v3-{size}" for size in ("xsmall", "small", "base", "large")},
    "smoke": "deberta-v3-base",
    "smoke-v1": "deberta-base",
    "smoke-v2": "deberta-v2-xlarge",
}
SIZES = (*PRESETS, *(f"{size}-sop" for size in ("v1-base", "v2-xlarge", "v3-base", "smoke")))


def get_config(size: str = "v3-base") -> ConfigDict:
    """The released script's recipe (microsoft/DeBERTa:experiments/language_model) for one of `SIZES`."""
    require_one_of("size", size, SIZES)
    size, sentences = size.removesuffix("-sop"), size.endswith("-sop")
    config = base_config()
    config.model.preset = PRESETS[size]
    first = PRESETS[size] in ("deberta-base", "deberta-large", "deberta-xlarge")

    config.data.example_format = "sop_pairs" if sentences else "block"
    config.data.tokenizer = "bpe" if first else "unigram"
    config.data.tokenizer_family = "deberta" if first else "deberta-v2"
    config.data.lowercase = False
    config.data.vocab_size = 50265 if first else 128_100
    config.data.seq_len = 512
    config.objective.masking.mask_unit = "ngram_window"
    config.objective.masking.allow_mask_unk = False
    if not first and "v3" in PRESETS[size]:  # experiments/language_model/rtd_*.json
        config.objective.name = "rtd"
        config.objective.rtd.embedding_sharing = "gdes"
        config.objective.rtd.disc_weight = 10.0
        config.generator.depth_ratio = 0.5
        config.objective.masking.max_ngram = 1
        config.objective.masking.mask_token_rate = 1.0
        config.objective.masking.random_token_rate = 0.0

    config.train.num_steps = 1_000_000
    config.train.batch_size = 64 if size == "v3-xsmall" else 256
    config.optimizer.learning_rate = 3e-4 if size == "v3-xsmall" else 1e-4
    if size.startswith("smoke"):
        make_smoke(config)
        config.model.max_relative_positions = 64
        config.generator.num_layers = 2  # the decoder of masked tokens runs the last layer again
        if not first:
            config.model.head_size = 32
            config.model.position_buckets = 32
    return config
