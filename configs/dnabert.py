"""DNABERT: BERT on overlapping k-mers of a genome (doi:10.1093/bioinformatics/btab083, section 2.3).

    bertjax pretrain --config dnabert:6 --config.data.sources=fasta:GRCh38.fa.gz --workdir runs/dnabert

Sizes: 3 4 5 6, the letters of a k-mer, each with twelve layers of 768; and smoke (3-mers, two layers, minutes on a
CPU).

Hardware and time: by the paper, 25 days on 8 GPUs (2080 Ti); not measured here.

A record of the FASTA file is written as `ATG TGC GCA`, and k neighbors are masked together: the others would tell
most of a k-mer. Words with N are unknown, and neither masked nor predicted. The vocabulary is that of the published
models.

Where this differs from jerryji1993/DNABERT: chromosomes are cut into blocks of 512 tokens, half of the authors'
sequences are shorter and drawn at random positions; special tokens are never masked.
"""

from ml_collections import ConfigDict

from bertjax.config.defaults import base_config, make_smoke
from bertjax.errors import require_one_of

SIZES = ("3", "4", "5", "6", "smoke")


def get_config(size: str = "6") -> ConfigDict:
    """The recipe of the paper for one of `SIZES`."""
    require_one_of("size", size, SIZES)
    config, kmer = base_config(), 3 if size == "smoke" else int(size)
    config.model.preset = "bert-base"
    config.model.hidden_act = "gelu"

    config.data.fasta = f"{kmer}mers"
    config.data.tokenizer = "kmers"
    config.data.kmer = kmer
    config.data.lowercase = False
    config.data.vocab_size = 5 + 4**kmer
    config.data.example_format = "block"
    config.data.seq_len = 512
    config.objective.masking.mask_unit = "span"
    config.objective.masking.min_span = config.objective.masking.max_span = kmer
    config.objective.masking.allow_mask_unk = False
    config.objective.masking.min_random_id = 5  # what precedes are special tokens

    config.train.num_steps = 120_000
    config.train.batch_size = 2000
    config.objective.masking.mask_rate = 0.2  # of the last 20,000 steps
    config.train.phases = ("83.33%:objective.masking.mask_rate=0.15",)
    config.optimizer.learning_rate = 4e-4
    config.optimizer.b2 = 0.98
    config.optimizer.weight_decay = 0.01
    config.optimizer.bias_correction = True
    config.schedule.name = "linear"
    config.schedule.end_lr_ratio = 0.42  # towards 0 at step 200,000, where the authors did not wait for it
    config.schedule.warmup_steps = config.train.get_ref("num_steps") // 12
    if size == "smoke":
        make_smoke(config)
        config.data.vocab_size = 5 + 4**kmer
    return config
