"""BERT, masked tokens and next sentences, at every published size (arXiv:1810.04805; miniatures arXiv:1908.08962).

    bertjax pretrain --config bert:base --workdir runs/bert --config.data.sources='text:corpus/*.txt'

Sizes: tiny mini small medium base large (uncased), base-cased large-cased, and the 24 miniatures as LAYERSxWIDTH, such
as 6x512 (table "Smaller BERT Models" of google-research/bert:README.md); and smoke (three layers, minutes on a CPU).

Hardware and time: by the paper (A.2), base took 4 days on 16 TPU chips and large 4 days on 64; not measured here.
Result: by the paper (table 1), GLUE 79.6 for base and 82.1 for large, after 1M steps of 256 sequences on 3.3G words
(books and Wikipedia), 128 tokens per sequence until 90 % of the steps are done, and 512 in the rest. Without
`data.sources` it trains on the text embedded in Python, which is far too little for these sizes and only shows that
everything runs.
"""

from ml_collections import ConfigDict

from bertjax.config.defaults import base_config, every, make_smoke
from bertjax.errors import require_one_of

NAMED = ("tiny", "mini", "small", "medium", "base", "large")
CASED = ("base-cased", "large-cased")
MINIATURES = tuple(f"{layers}x{hidden}" for layers in (2, 4, 6, 8, 10, 12) for hidden in (128, 256, 512, 768))
SIZES = (*NAMED, *CASED, *MINIATURES, "smoke")


def get_config(size: str = "base") -> ConfigDict:
    """The recipe of the paper for one of `SIZES`."""
    require_one_of("size", size, SIZES)
    config = base_config()
    config.model.preset = "bert-tiny" if size == "smoke" else f"bert-{size.removesuffix('-cased')}"

    config.data.example_format = "nsp_pairs"
    config.data.tokenizer = "wordpiece"
    config.data.lowercase = size not in CASED
    config.data.vocab_size = 28996 if size in CASED else 30522  # as released
    config.data.seq_len = 512
    config.train.phases = ("90%:data.seq_len=128",)  # one schedule over both (A.2)
    config.data.dupe_factor = 10  # RoBERTa's account of BERT's data (arXiv:1907.11692, section 4.1)
    config.objective.masking.dynamic = False  # masks were drawn when the data were written

    config.train.num_steps = 1_000_000
    config.train.batch_size = 256
    config.train.log_interval_steps = 100
    config.optimizer.learning_rate = 1e-4  # reached after 10,000 steps: 1 % of num_steps
    config.eval.interval_steps = every(config, 100)
    config.checkpoint.interval_steps = every(config, 200)
    if size == "smoke":
        make_smoke(config)
        config.model.num_layers = 3  # the smoke sizes of other configs begin with its weights, or learn from it
        config.objective.masking.dynamic = True
        config.train.log_interval_steps = every(config, 60, at_least=10)
        config.checkpoint.interval_steps = every(config, 10)
        # learned positions: neighbors are distinguished much sooner in short sequences
        config.train.phases = ("80%:data.seq_len=32",)
    return config
