"""ALBERT: factorised embeddings and one set of parameters for all layers (arXiv:1909.11942).

    bertjax pretrain --config albert:base-v2 --workdir runs/albert --config.data.sources='text:corpus/*.txt'

Sizes: base large xlarge xxlarge, each as -v1 and -v2 (v2 without dropout), and smoke (minutes on a CPU). `smoke-groups`
shows two groups of two inner layers.

Hardware and time: not measured here. Result: by google-research/albert's README, average of five tasks 80.1 (base) and
91.0 (xxlarge) for the first versions, 82.3 and 90.9 for the second, which saw more data and 3 to 10 million steps.

As in the released code, up to three words are masked together, at most 20 tokens per sequence, and a chunk of text of a
single sentence is paired with a random one, which counts as swapped (`data.sop_drop_single_sentences=true` drops such
chunks).

Where this differs: `smoke` trains with AdamW, not with LAMB.
"""

from ml_collections import ConfigDict

from bertjax.config.defaults import base_config, make_smoke
from bertjax.errors import require_one_of

SIZES = (*(f"{size}-{version}" for size in ("base", "large", "xlarge", "xxlarge") for version in ("v1", "v2")),)
SIZES = (*SIZES, "smoke", "smoke-groups")


def get_config(size: str = "base-v2") -> ConfigDict:
    """The recipe of section 4.1 for one of `SIZES`."""
    require_one_of("size", size, SIZES)
    config = base_config()
    config.model.preset = "albert-base-v2" if size.startswith("smoke") else f"albert-{size}"

    config.data.example_format = "sop_pairs"
    config.data.tokenizer = "unigram"
    config.data.tokenizer_family = "albert"
    config.data.vocab_size = 30000
    config.data.seq_len = 512
    config.data.dupe_factor = 40
    config.objective.masking.dynamic = False
    config.objective.masking.mask_unit = "ngram"
    config.objective.masking.max_predictions = (
        20  # 4 % of a full sequence; the authors confirm it (google-research/albert#51)
    )

    config.train.num_steps = 125_000
    config.train.batch_size = 4096
    config.optimizer.name = "lamb"
    config.optimizer.learning_rate = 1.76e-3
    config.schedule.warmup_steps = config.train.get_ref("num_steps") // 40
    if size.startswith("smoke"):
        make_smoke(config)
        config.model.embedding_size = 64
    if size == "smoke-groups":
        config.model.num_groups = 2
        config.model.inner_layers = 2
    return config
