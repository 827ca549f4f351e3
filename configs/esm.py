"""ESM-2: proteins, one residue per token, masked (doi:10.1126/science.ade2574, supplement A.2).

    bertjax pretrain --config esm:8m --config.data.sources=fasta:uniref50.fasta.gz --workdir runs/esm

Sizes: 8m 35m 150m 650m 3b 15b, and smoke (two layers, minutes on a CPU).

Hardware and time: not measured here. Result: by the paper, perplexity on held-out UniRef50 falls from 10.45 (8m) to
6.37 (15b).

The vocabulary is that of the published models and depends on no text, so their weights are continued with
`init_from`. Unknown residues and gaps are read, but neither masked nor predicted.

Where this differs from the authors: they draw clusters of UniRef50, then a protein of UniRef90 from each, and crop
it at random; here proteins come from the file as they are, longer ones are cut into blocks, and short ones packed.
The rate falls to a tenth at the end of the run, theirs after 90 % of it.
"""

from ml_collections import ConfigDict

from bertjax.config.defaults import base_config, make_smoke
from bertjax.errors import require_one_of

SIZES = ("8m", "35m", "150m", "650m", "3b", "15b", "smoke")


def get_config(size: str = "8m") -> ConfigDict:
    """The recipe of the paper for one of `SIZES`."""
    require_one_of("size", size, SIZES)
    config = base_config()
    config.model.preset = f"esm2-{'8m' if size == 'smoke' else size}"

    config.data.tokenizer = "protein"
    config.data.tokenizer_family = "esm"
    config.data.lowercase = False
    config.data.vocab_size = 33
    config.data.example_format = "block"
    config.data.packing = "best_fit"
    config.data.seq_len = 1024
    config.objective.masking.mask_rounding = "random"
    config.objective.masking.min_random_id = 4  # what precedes are special tokens
    config.objective.masking.never_masked = ("X", ".", "-", "<null_1>", "<mask>")

    config.train.num_steps = 270_000 if size == "15b" else 500_000
    config.train.batch_size = 3072 if size == "15b" else 2048  # 3.2 and 2 million tokens
    config.optimizer.learning_rate = 1.6e-4 if size == "15b" else 4e-4
    config.optimizer.b2 = 0.98
    config.optimizer.eps = 1e-8
    config.optimizer.bias_correction = True
    config.optimizer.weight_decay = 0.01
    config.schedule.name = "linear"
    config.schedule.end_lr_ratio = 0.1
    config.schedule.warmup_steps = config.train.get_ref("num_steps") * 4 // 1000
    if size == "smoke":
        make_smoke(config)
        config.data.vocab_size = 33
    return config
